"""Find the parameters that a step of the program's own code wrote to, by their versions.

PyTorch increments the version of a tensor at each write. A write through `.data` or NumPy, and that
of a fused kernel (PyTorch's own, bitsandbytes, Triton), changes no version. Where a version may not
show an update, the trace is incomplete: see `Writes.note`.
"""

from collections.abc import Mapping, Sequence
from operator import eq
from typing import Any

from tracer.backends.torch import compat

_MAY_HIDE = (
    "{name} has a custom step that may write to tensors without changing their versions, as "
    "`.data`, NumPy and fused kernels do: {counted}"
)
_BY_GRADIENT = "a parameter counts as updated if its version changed or it has a gradient"
_BY_VERSION = "a parameter counts as updated only if its version changed"

Versions = Mapping[int, int | None]
"""By `id`, the versions of all but lazy parameters before a step."""


class Writes:
    """What the steps of one optimizer wrote to."""

    def __init__(self, name: str, by_itself: bool, hides: bool = False) -> None:
        """`by_itself` if steps run code outside PyTorch; `hides` if writes may change no version.

        Then a parameter that has a gradient counts as updated, whatever its version.
        """
        self._name = name if by_itself else ""
        self.hides = hides
        self._shows = self._was_idle = self._was_guessed = False
        """Whether a step ever changed a version or ran an inner step; whether one did neither;
        whether an update was counted without either."""

    def wrote_to_all(self, before: Versions, parameters: Sequence[Any]) -> bool:
        """True if the versions of all parameters moved; all have a gradient."""
        now = compat.versions_of(parameters)
        known = len(parameters) == len(now) and before.keys() == now.keys()
        moved = known and not any(map(eq, before.values(), now.values()))
        self._shows |= moved
        return moved

    def wrote_to(
        self, before: Versions, copies: Mapping[int, Any], parameter: Any, asks: bool
    ) -> bool:
        """True if a step wrote to a parameter, which has a gradient if it `asks`.

        LBFGS adds 0 to a parameter that never had a gradient: then `copies` decide.
        """
        key = id(parameter)
        if key not in before:
            return asks  # it was added during the step, or was lazy until then
        if before[key] == compat.version_of(parameter):
            self._was_guessed |= asks and self.hides
            return asks and self.hides
        return asks or key not in copies or not copies[key].equal(parameter)

    def ended(self, updated: bool, asked: bool) -> None:
        """A step ended: it or an inner step `updated`, or a parameter with a gradient `asked`."""
        self._shows |= updated
        self._was_idle |= not updated and (asked or self.hides)

    def note(self) -> str:
        """The note that updates may have been missed, or counted without one; empty for none.

        A step that changed no version is believed to have updated nothing, as one that accumulates,
        if another one did, and the code of the class does not suggest that it `hides` writes.
        """
        is_idle = self._was_idle and (self.hides or not self._shows)
        if not self._name or not (is_idle or self._was_guessed):
            return ""
        counted = _BY_GRADIENT if self.hides else _BY_VERSION
        return _MAY_HIDE.format(name=self._name, counted=counted)
