"""Which parameters of a model the optimizer that trains it is handed, and which it should be.

Whether a parameter is trained its optimizer was told when it was made; whether it is frozen says
`requires_grad`, which may change later. The model is the outermost module of which all that can be
trained was handed over in the first step; a list that somebody chose otherwise, as a part of it,
has none, and nothing is said of it. The parameters are looked at when a step has ended, for then
the gradients are there: in each of the first hundred, and then for a thousandth of the time.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import ref

from tracer.recorder import host
from tracer.recorder.backend import Iterations
from tracer.recorder.instances import instances
from tracer.recorder.torch_optim import compat
from tracer.recorder.torch_optim.parameters import models_with

_AT_ONCE = 100
_REST = 1000
_LONGEST_REST = 0.5


class _Late(NamedTuple):
    """A parameter that requires a gradient, has one, and was not handed over."""

    parameter: "ref[Any]"
    name: str
    version: int
    """How often it had been written to when that was seen."""


class Handing(host.Handing):
    """The parameters that the optimizers of one recorder are handed, and those that they are not.

    Nothing of them is kept alive.
    """

    def __init__(self, variables: Any, iterations: Callable[[], Mapping[int, Iterations]]) -> None:
        """See `tracer.recorder.backend.Backend.new_handing`."""
        super().__init__(variables, iterations)
        self._trained: dict[int, tuple[ref[Any], str]] = {}
        self._out_of_reach: dict[int, tuple[ref[Any], str]] = {}  # frozen, and not handed over
        self._late: dict[int, _Late] = {}
        self._frozen: dict[int, str] = {}
        self._looks = 0
        self._due = 0.0

    def met(self, parameters: Sequence[Any]) -> None:
        """An optimizer steps with these parameters for the first time."""
        models = models_with(parameters)
        names = {id(p): name for model in models for p, name in model}
        for parameter in parameters:
            self._out_of_reach.pop(id(parameter), None)
            self._late.pop(id(parameter), None)
            if parameter.requires_grad:
                name = names.get(id(parameter), "parameter")
                self._trained[id(parameter)] = ref(parameter), name
        handed = {*map(id, parameters), *self._trained}
        for model in models:
            if all(id(p) in handed for p, _ in model if p.requires_grad):
                for p, name in model:
                    if id(p) not in handed:
                        self._out_of_reach[id(p)] = ref(p), name

    def called(self) -> None:
        """A step has ended."""
        begin = time.perf_counter()
        if begin < self._due:
            return
        with suppress(Exception):
            self._look()
        end = time.perf_counter()
        self._looks += 1
        if self._looks >= _AT_ONCE:
            self._due = end + min(_LONGEST_REST, _REST * (end - begin))

    def never_handed(self) -> tuple[str, ...]:
        """The names of what came to require a gradient and has one, and nothing updates."""
        if not self._late:
            return ()
        others = {
            id(parameter)
            for optimizer in instances([compat.Optimizer])
            for group in vars(optimizer).get("param_groups", ())
            for parameter in group["params"]
        }
        return tuple(
            late.name
            for key, late in self._late.items()
            if (own := late.parameter()) is None
            or (key not in others and own._version == late.version)
        )

    def frozen(self) -> tuple[str, ...]:
        """The names of what was frozen and is updated all the same."""
        return tuple(self._frozen.values())

    def _look(self) -> None:
        for key, (reference, name) in self._out_of_reach.items():
            own = reference()
            if own is not None and own.requires_grad and own.grad is not None:
                self._late.setdefault(key, _Late(reference, name, own._version))
        for key, (reference, name) in self._trained.items():
            own = reference()
            if own is not None and not own.requires_grad and own.grad is not None:
                self._frozen[key] = name
