"""Find the parameters that a step of the program's own code wrote to.

PyTorch increments the version of a tensor at each write. Code may bypass the version, by `.data` or
NumPy. So each parameter is copied before a step and its bits are compared, until its version is
seen to move; and once more when the version first stands still after that.
"""

from collections.abc import Mapping, Sequence
from operator import eq
from typing import Any, NamedTuple

from tracer.backends.torch import compat, effects

_PAST = (
    "{name} has a custom step that may write to tensors without changing their versions, for "
    "example through `.data`: an update is not counted if the parameter has the same bits "
    "afterwards, or if only its version was compared before this was noticed"
)
_NOT_COMPARABLE = (
    "{name} has a custom step, and neither the versions nor the bits of all its parameters can "
    "be compared: each parameter that has a gradient counts as updated"
)


class Before(NamedTuple):
    """The parameters before a step, by `id`."""

    versions: Mapping[int, int | None]
    """The versions of all but lazy parameters."""
    copies: Mapping[int, Any]
    """Copies where versions may not show writes; None if the bits cannot be compared."""


class Writes:
    """What the steps of one optimizer write to, and what earlier steps showed."""

    def __init__(self, name: str, by_itself: bool, names_data: bool = False) -> None:
        """`by_itself` if steps run code outside PyTorch; `names_data` if names in that code, such
        as `.data`, suggest writes that bypass versions.
        """
        self.name = name
        self._moved: set[int] = set()
        """By `id`, the parameters whose version was seen to move."""
        self._stood: set[int] = set()
        """Parameters whose bits were seen to stay while the version stood still."""
        self._left: set[int] = set()
        """Parameters with a gradient that a step left alone, by version or bits."""
        self._believed: set[int] = set()
        """Parameters in `_left` by the version alone, with no comparison of bits since."""
        self.seen = not by_itself
        """Whether a step ever moved a version or ran an inner step."""
        self._names_data = names_data
        self._past = False
        """Whether bits ever changed while the version stood still."""
        self._was_left = self._was_doubtful = self._is_not_comparable = False

    def before(self, parameters: Sequence[Any], bits: bool) -> Before:
        """Read the versions of the parameters before a step, and copy where needed or if `bits`."""
        versions = compat.versions_of(parameters)
        copied = set(versions)
        if not (bits or self._past):
            copied -= self._moved - (self._left - self._stood)
        if not copied:
            return Before(versions, {})
        copies = {id(each): effects.copy_of(each) for each in parameters if id(each) in copied}
        return Before(versions, copies)

    def wrote_to_all(self, before: Before, parameters: Sequence[Any]) -> bool:
        """True if the versions of all parameters moved; all have a gradient."""
        now = compat.versions_of(parameters)
        known = len(parameters) == len(now) and before.versions.keys() == now.keys()
        if not known or any(map(eq, before.versions.values(), now.values())):
            return False
        self._moved |= now.keys()
        self.seen = True
        return True

    def wrote_to(
        self, before: Before, parameter: Any, asks: bool, *, bits: bool, waits: bool
    ) -> Any:
        """True if a step wrote to a parameter, which has a gradient if it `asks`.

        Unless `waits`, a tensor on the device that is true if the parameter kept its bits; then
        call `learn` with its value. If `bits`, the versions of parameters without a gradient show
        nothing.
        """
        key = id(parameter)
        if key not in before.versions:
            return asks  # it was added during the step, or was lazy until then
        moved = before.versions[key] != compat.version_of(parameter)
        if moved and (asks or not bits):
            self._moved.add(key)
            self.seen = True
            return True
        if key not in before.copies:
            self._left.add(key)
            self._believed |= {key} - self._stood if asks else set()
            return False
        if before.copies[key] is None:
            self._is_not_comparable |= asks
            return asks
        if not before.copies[key].numel():
            return False  # an empty shard
        same = effects.is_left(before.copies[key], parameter)
        if asks and not waits and not isinstance(same, bool):
            return same
        if asks or not moved:
            self.learn(key, asks, bool(same))
        return not same

    def learn(self, key: int, asks: bool, same: bool) -> None:
        """Store whether the bits of a parameter stayed the same while its version stood still."""
        if not same:
            self._past = True
            return
        self._stood.add(key)
        self._believed.discard(key)
        self._left |= {key} if asks else set()

    def forget(self, key: int) -> None:
        """Forget a parameter that is gone; another one may get its `id`."""
        self._was_left |= key in self._left
        self._was_doubtful |= key in self._doubtful()
        for known in (self._moved, self._stood, self._left, self._believed):
            known.discard(key)

    def _doubtful(self) -> set[int]:
        """Parameters left alone by code that names `.data`, and never updated by their version."""
        return self._left - self._moved if self._names_data else set()

    def notes(self) -> list[str]:
        """Notes for the trace: updates that change no bit may have been missed."""
        left = bool(self._left) or self._was_left
        doubtful = bool(self._believed or self._doubtful()) or self._was_doubtful
        found = [_PAST] * (doubtful or (left and (self._past or not self.seen)))
        found += [_NOT_COMPARABLE] * self._is_not_comparable
        return [each.format(name=self.name) for each in found]
