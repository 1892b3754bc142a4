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
        self.moved: set[int] = set()
        """By `id`, the parameters of which a step, or one inside it, ever changed the version."""
        self._still: set[int] = set()
        """Those with a gradient of which a step did not."""
        self._was_missed = False
        """Whether an update may have been missed, or was counted without a new version."""

    def wrote_to_all(self, before: Versions, parameters: Sequence[Any]) -> bool:
        """True if the versions of all parameters moved; all have a gradient."""
        now = compat.versions_of(parameters)
        known = len(parameters) == len(now) and before.keys() == now.keys()
        moved = known and not any(map(eq, before.values(), now.values()))
        if moved:
            self.moved |= before.keys()
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
            if asks:
                self._still.add(key)
            return asks and self.hides
        self.moved.add(key)
        return asks or key not in copies or not copies[key].equal(parameter)

    def ended(self, updated: bool) -> None:
        """A step ended: it or an inner step `updated` a parameter."""
        self._was_missed |= self.hides and not updated

    def forget(self) -> None:
        """A parameter is gone, and another one may get its `id`."""
        self._was_missed = bool(self.note())
        self.moved.clear()
        self._still.clear()

    def note(self) -> str:
        """The note that updates may have been missed, or counted without one; empty for none.

        A step that left a version as it was is believed to have updated nothing, as one that
        accumulates, if another one changed it, and the code of the class does not suggest that it
        `hides` writes.
        """
        still = self._still if self.hides else self._still - self.moved
        if not self._name or not (still or self._was_missed):
            return ""
        counted = _BY_GRADIENT if self.hides else _BY_VERSION
        return _MAY_HIDE.format(name=self._name, counted=counted)
