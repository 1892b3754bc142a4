"""Holds the optimizers of one recorder: their classes, settings and own counts of steps."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import ref

from tracer.core import locks
from tracer.core.backend import Backend, Blocks, own_attributes
from tracer.core.call_paths import line_of_caller
from tracer.core.late_wrap import Late
from tracer.errors import suppress_faults
from tracer.kinds import SETTINGS, OptimizerKind
from tracer.model import evidence
from tracer.model.names import distinct
from tracer.model.records import Optimizer, Setting


class Made(NamedTuple):
    """The line of the program that made an optimizer: `train.py:12`; empty if unknown."""

    line: str
    number: int
    """The optimizer's number among those of the line."""
    by_line: Counter[str]
    """The number of optimizers that each line has made."""


_made: Counter[str] = Counter()
NOT_SEEN = Made("", 0, _made)
"""The origin of an optimizer that was made while nothing was recorded."""


def made_here(optimizer: object) -> Made:
    """The running line of the program, which makes `optimizer`, with the number of the optimizer.

    Call this once for each optimizer.
    """
    line = line_of_caller(optimizer)
    if not line:
        return NOT_SEEN
    _made[line] += 1
    return Made(line, _made[line], _made)


def forget_numbers() -> None:
    """Number the optimizers of each line from 1 again, as a new recording does."""
    global _made
    _made = Counter()


@dataclass(eq=False)
class Binding:
    """An optimizer that is or was wrapped, held weakly: it may be gone when a trace is read."""

    optimizer: ref[Any]
    recorder: Any
    """The `Recorder` that counts it."""
    name: Callable[[], str]
    cls: type
    """Its class, without what the tracer adds."""
    class_name: str
    kind: OptimizerKind
    own_steps: Sequence[str]
    """The step methods that may update variables without the apply methods."""
    index: int = 0
    """Its index among the optimizers of the recorder."""
    made: Made = NOT_SEEN
    """The program line that made or wrapped the optimizer."""
    holders: set[Any] = field(default_factory=set)
    """It is traced as long as there is a `registry.Holder`."""
    settled: bool = False
    """Whether its first step has searched for nested optimizers."""
    observer: Any = None
    """Sees its steps, if its class is not replaced."""
    former: Any = None
    """Its earlier observer, to be reused."""
    settings: dict[str, Setting] = field(default_factory=dict)
    started: int | None = None
    """The optimizer's iterations when first wrapped."""
    remains: Any = None
    """Read in place of the optimizer once it is gone: see `_remains_of`."""
    called: Counter[str] = field(default_factory=Counter)
    """The number of calls of each method of `tracer.kinds.AUXILIARY`."""

    def readable(self) -> Any:
        """The optimizer, or its remains once it is gone; None if there are none."""
        optimizer = self.optimizer()
        return self.remains if optimizer is None else optimizer


class Optimizers:
    """A root optimizer and its nested optimizers, by index."""

    def __init__(self, backend: Backend, note: Callable[..., None]) -> None:
        """`note` is `Root.note`."""
        self.root = 0
        self._backend = backend
        self._lock = locks.new_lock("rows")
        self.all: list[Binding] = []
        self.stale = backend.new_stale(note)
        self.stepping: dict[int, int | None] = {}
        """The iterations of each optimizer when its first step began; None if it had none yet."""
        self.stateless = True
        """Whether no step has ended: see `first_step_ended`."""

    def add(self, traced: Binding) -> None:
        """Add an optimizer, and set its index."""
        with self._lock:
            traced.index = len(self.all)
            self.all.append(traced)

    def names(self) -> list[str]:
        return distinct(each.name() for each in self.all)

    def alive(self) -> list[Any]:
        """The optimizers that are still alive."""
        return [each for traced in self.all if (each := traced.optimizer()) is not None]

    def first_step_ended(self) -> None:
        """Save the state of each optimizer: it may be gone when a trace is read."""
        self.stateless = False
        for each in self.all:
            optimizer = each.optimizer()
            if optimizer is not None:
                each.remains = _remains_of(each.name(), optimizer)
                each.settings.update(self._settings(optimizer))

    def records(
        self, names: Sequence[str], before: Mapping[int, int], blocks: Blocks
    ) -> Iterator[Optimizer]:
        """Yield each optimizer's record; `before` has the `iterations` when the trace began."""
        for index, (name, traced) in enumerate(zip(names, self.all, strict=True)):
            optimizer = traced.readable()
            if optimizer is not None:
                traced.settings.update(self._settings(optimizer))
            moved, counted = None, []
            if not blocks.is_behind(optimizer):
                own = self._backend.iterations_of(optimizer)
                moved = self._moved(index, own, optimizer, before, blocks)
                # In Keras 3, a loss scale counts no steps.
                has_stepped = index in self.stepping and "LossScale" not in traced.class_name
                if own is not None and moved is not None and has_stepped:
                    counted = [evidence.Iterations(own - moved, own)]
            yield Optimizer(
                name,
                traced.class_name,
                traced.kind.name,
                self.root,
                dict(traced.settings),
                moved,
                (
                    *(evidence.ClassMethod("own step", name) for name in traced.own_steps),
                    *blocks.evidence(index),
                    *counted,
                ),
                traced.made.line,
                made_as=(traced.made.number, traced.made.by_line[traced.made.line]),
            )

    def begin(self, index: int, retrace: bool) -> None:
        """Begin or continue to trace an optimizer that may have been used before.

        Its class is replaced already. If `retrace`, functions traced with it before are traced
        again; otherwise they are noted.
        """
        traced = self.all[index]
        optimizer = traced.optimizer()
        if traced.started is None:
            traced.started = self._backend.iterations_of(optimizer)
        own_steps = bool(traced.own_steps)
        self.stale.find(Late(index, optimizer, traced.kind, traced.name(), own_steps), retrace)

    def first_step(self, index: int) -> None:
        """Save the iterations of an optimizer whose first step begins, also if only traced.

        Whatever moved its iterations before, such as loading a model, was no step.
        """
        steps = None
        with suppress_faults():
            steps = self._backend.iterations_of(self.all[index].optimizer())
        self.stepping.setdefault(index, steps)

    def iterations(self) -> dict[int, int]:
        """The own counts of the optimizers that have stepped, if they have one."""
        found = {n: self._backend.iterations_of(self.all[n].readable()) for n in [*self.stepping]}
        return {index: steps for index, steps in found.items() if steps is not None}

    def _moved(
        self,
        index: int,
        now: int | None,
        optimizer: object,
        before: Mapping[int, int],
        blocks: Blocks,
    ) -> int | None:
        """How far the optimizer's own count has moved since `before`, or its first step."""
        if now is None:
            return None
        first = before.get(index, self.stepping.get(index))
        if first is not None:
            return now - first
        if index in self.stepping:
            # Its variable could not be read at that time, and a file may have set it.
            moved = blocks.counters.moved(optimizer)
            if moved is not None or self._backend.is_restored(optimizer):
                return moved
        return now - (self.all[index].started or 0)

    def _settings(self, optimizer: object) -> dict[str, Setting]:
        """The optimizer's settings that affect the counts, and its current loss scale.

        Only plain attributes are read.
        """
        own = own_attributes(optimizer)
        delegating = "DelegatingTrackableMixin" in [
            base.__name__ for base in type(optimizer).__mro__
        ]
        values: dict[str, Any] = {}
        for name in SETTINGS:
            values[name] = own.get(name, own.get(f"_{name}"))
            if values[name] is None and delegating and hasattr(type(optimizer), name):
                # A property, in tf_keras's loss scale.
                values[name] = getattr(optimizer, name, None)
        values[_SCALE] = self._backend.number_in(_scale_in(own))
        return {
            name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
            for name, value in values.items()
            if isinstance(value, bool | int | float | str)
        }


_SCALE = "dynamic_scale"
"""The variable of Keras 3's loss scale; a trace records its value."""


def _scale_in(own: Mapping[str, Any]) -> Any:
    return own.get(_SCALE, own.get(f"_{_SCALE}"))


def _remains_of(name: str, optimizer: object) -> Any:
    """Keep the parts of an optimizer that are read after the program has released it.

    A program's report is read at its end, when optimizers made in a function are gone. A variable
    in a graph of TensorFlow 1 is not kept, because it would keep the graph alive.
    """
    own = own_attributes(optimizer)
    kept = {"_iterations": getattr(optimizer, "_iterations", None), _SCALE: _scale_in(own)}
    variables = {key: each for key, each in kept.items() if getattr(each, "graph", None) is None}
    return SimpleNamespace(name=name, **variables)
