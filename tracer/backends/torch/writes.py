"""Which parameters a step of the program's own code wrote to: where a gradient proves no update.

A tensor has a version, which counts what PyTorch writes to it. Code may write past it, as to
`.data` or by NumPy. So a parameter is copied before a step, and its bits are compared, until its
version was seen to move; and once more when that stood still for the first time.
"""

from collections.abc import Mapping, Sequence
from operator import eq
from typing import Any, NamedTuple

from tracer.backends.torch import compat, effects

_PAST = (
    "{name} has a step of its own that may write past the versions of tensors, as to `.data`: "
    "where a parameter with a gradient holds the same bits after a step, or a version was believed "
    "until then, whether the step updated it is not known, and it is not counted"
)
_NOT_COMPARABLE = (
    "{name} has a step of its own, and neither the versions nor the bits of all its parameters "
    "can be compared: each that has a gradient counts as updated"
)


class Before(NamedTuple):
    """What a step may write to, by `id`, as it was when the step began."""

    versions: Mapping[int, int | None]
    """Of all but lazy parameters."""
    copies: Mapping[int, Any]
    """Of those whose versions may not tell; None of one that cannot be compared."""


class Writes:
    """What the steps of one optimizer write to, and what was learned of how they do it."""

    def __init__(self, name: str, by_itself: bool, names_data: bool = False) -> None:
        """`by_itself` if the steps run code that is not PyTorch's own: it `names_data` if a name in
        it may write past versions.
        """
        self.name = name
        self._moved: set[int] = set()
        """The parameters, by `id`, whose version was seen to move."""
        self._stood: set[int] = set()
        """Those that held the same bits while their version stood still, as was compared."""
        self._left: set[int] = set()
        """Those that had a gradient and were left alone, as their versions or bits say."""
        self._believed: set[int] = set()
        """The parameters for which only the version said so, and no bits since."""
        self.seen = not by_itself
        """Whether an update was ever seen that moved a version, or by a step inside of one."""
        self._names_data = names_data
        self._past = False
        """Whether bits were seen to change where no version moved."""
        self._was_left = self._was_doubtful = self._is_not_comparable = False

    def before(self, parameters: Sequence[Any], bits: bool) -> Before:
        """Look at the parameters before a step; if `bits`, copy all of them."""
        versions = compat.versions_of(parameters)
        copied = set(versions)
        if not (bits or self._past):
            copied -= self._moved - (self._left - self._stood)
        if not copied:
            return Before(versions, {})
        copies = {id(each): effects.copy_of(each) for each in parameters if id(each) in copied}
        return Before(versions, copies)

    def wrote_to_all(self, before: Before, parameters: Sequence[Any]) -> bool:
        """Whether the versions of all parameters moved, which all have a gradient."""
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
        """Whether a step wrote to a parameter, which has a gradient if it `asks`.

        True, False, or unless it `waits` for the device a tensor that will say whether the same
        bits are there: then `learn` is to be called with the answer. If `bits`, the versions of
        parameters without a gradient tell nothing.
        """
        key = id(parameter)
        if key not in before.versions:
            return asks  # it came while the step ran, or was lazy until then
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
        same = effects.is_left(before.copies[key], parameter)
        if asks and not waits and not isinstance(same, bool):
            return same
        if asks or not moved:
            self.learn(key, asks, bool(same))
        return not same

    def learn(self, key: int, asks: bool, same: bool) -> None:
        """Learn from the bits of a parameter, whose version did not move."""
        if not same:
            self._past = True
            return
        self._stood.add(key)
        self._believed.discard(key)
        self._left |= {key} if asks else set()

    def forget(self, key: int) -> None:
        """A parameter is gone: another one may come to have its `id`."""
        self._was_left |= key in self._left
        self._was_doubtful |= key in self._doubtful()
        for known in (self._moved, self._stood, self._left, self._believed):
            known.discard(key)

    def _doubtful(self) -> set[int]:
        """What was left alone by code that names `.data`, and never updated as its version says."""
        return self._left - self._moved if self._names_data else set()

    def notes(self) -> list[str]:
        """What a trace has to say of it: an update that changes no bit may have been missed."""
        left = bool(self._left) or self._was_left
        doubtful = bool(self._believed or self._doubtful()) or self._was_doubtful
        found = [_PAST] * (doubtful or (left and (self._past or not self.seen)))
        found += [_NOT_COMPARABLE] * self._is_not_comparable
        return [each.format(name=self.name) for each in found]
