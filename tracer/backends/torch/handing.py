"""Which parameters get gradients and are in no optimizer, and which are frozen and updated.

Of a model, the optimizer of a part of it is asked; of another model only one that is handed what
makes no sense: parameters none of which has a gradient, as those of a model that was made anew, or
those that another optimizer is handed, too. For who trains an image, or against a judge of another
model, leaves that as it is, and its gradients may come and go.

The parameters are looked at when a step has ended, for then the gradients are there: in each of the
first hundred, and then for a thousandth of the time.
"""

import time
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from tracer.backends.torch import compat
from tracer.backends.torch.parameters import beside, known_names
from tracer.core import backend
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults

_AT_ONCE = 100
_REST = 1000
_LONGEST_REST = 0.5


_all: "WeakSet[Handing]" = WeakSet()
"""One for each recorder."""


class _Left(NamedTuple):
    """A parameter that the optimizer is not handed."""

    parameter: "ref[Any]"
    name: str
    same_model: bool


class _Gradient(NamedTuple):
    """A gradient that such a parameter had, and how often both had been written to by then."""

    gradient: "ref[Any]"
    version: int
    of_parameter: int


class Handing(backend.Handing):
    """The parameters that the optimizers of one recorder are handed, and those that they are not.

    Nothing of them is kept alive.
    """

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        _all.add(self)
        self._trained: dict[int, tuple[ref[Any], str]] = {}
        self._left: dict[int, _Left] = {}
        self._gradients: dict[int, _Gradient] = {}
        self._late: dict[int, int] = {}
        """What got another gradient while steps ran, and how often it had been written to."""
        self._frozen: dict[int, str] = {}
        self._useful = False
        """Whether a parameter that was handed over ever had a gradient."""
        self._looks = 0
        self._due = 0.0

    def met(self, parameters: Sequence[Any]) -> None:
        """An optimizer steps with these parameters for the first time."""
        names = known_names(parameters)
        for parameter in parameters:
            for table in (self._left, self._gradients, self._late):
                table.pop(id(parameter), None)
            if parameter.requires_grad:
                name = names.get(id(parameter), "parameter")
                self._trained[id(parameter)] = ref(parameter), name
        for own, name in beside(parameters, same_model=True):
            if id(own) not in self._trained:
                self._left[id(own)] = _Left(ref(own), name, True)

    def called(self) -> None:
        """A step has ended."""
        begin = time.perf_counter()
        if begin < self._due:
            return
        with suppress_faults():
            self._look()
        end = time.perf_counter()
        self._looks += 1
        if self._looks >= _AT_ONCE:
            self._due = end + min(_LONGEST_REST, _REST * (end - begin))

    def never_handed(self) -> tuple[str, ...]:
        """The names of what gets gradients, and nothing updates."""
        if not self._late:
            return ()
        others = {
            id(parameter)
            for optimizer in instances([compat.Optimizer])
            for group in vars(optimizer).get("param_groups", ())
            for parameter in group["params"]
        }
        handings, astray = list(_all), self._is_astray()
        return tuple(
            left.name
            for left, version in ((self._left[key], each) for key, each in self._late.items())
            if (astray or left.same_model)
            and not any(each.trains(left.parameter) for each in handings)
            and _is_left_alone(left.parameter(), version, others)
        )

    def trains(self, parameter: "ref[Any]") -> bool:
        """Whether a parameter that may be gone was handed over here."""
        return any(parameter is own for own, _ in self._trained.values())

    def frozen(self) -> tuple[str, ...]:
        """The names of what was frozen and is updated all the same."""
        return tuple(self._frozen.values())

    def _look(self) -> None:
        if self._looks == 1 and self._is_astray():
            handed = [own for each, _ in self._trained.values() if (own := each()) is not None]
            for own, name in beside(handed, same_model=False):
                self._left.setdefault(id(own), _Left(ref(own), name, False))
        for key, left in self._left.items():
            own = left.parameter()
            if own is not None and own.is_leaf and own.requires_grad and own.grad is not None:
                self._note(key, own)
        for key, (reference, name) in self._trained.items():
            own = reference()
            if own is not None and own.grad is not None:
                self._useful = True
                if not own.requires_grad:
                    self._frozen[key] = name

    def _note(self, key: int, own: Any) -> None:
        """A parameter that was not handed over has a gradient, which may be an old one."""
        known = self._gradients.get(key)
        gradient = own.grad
        if known is None or known.of_parameter != own._version:
            self._late.pop(key, None)
            self._gradients[key] = _Gradient(ref(gradient), gradient._version, own._version)
        elif known.version != gradient._version or known.gradient() is not gradient:
            self._late[key] = own._version

    def _is_astray(self) -> bool:
        """Whether the optimizer is handed what makes no sense."""
        return not self._useful or any(map(self._has_the_same, list(_all)))

    def _has_the_same(self, other: "Handing") -> bool:
        """Whether another one is handed just the same parameters."""
        ours, theirs = self._trained, other._trained
        return (
            other is not self
            and ours.keys() == theirs.keys()
            and all(ours[key][0] is theirs[key][0] for key in ours)
        )


def _is_left_alone(own: Any, version: int, handed: Collection[int]) -> bool:
    """Whether nothing was known to update a parameter; one that is gone was seen last before."""
    if own is None:
        return True
    return id(own) not in handed and bool(own._version == version)
