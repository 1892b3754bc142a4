"""The optimizers of one recorder: what they are, and what ran unseen (`older_functions`)."""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any
from weakref import ref

from tracer.core.backend import Backend, Blocks, Iterations, Stepped
from tracer.core.interrupts import suppress_faults
from tracer.kinds import SETTINGS, OptimizerKind
from tracer.model.names import distinct
from tracer.model.records import Optimizer, Remark, Setting

OWN_STEP = "own-step"
"""The code of the remark on a step method that may update variables by itself."""
FITTED = "fitted"
"""The code of the remark on an optimizer without a step with which `fit` came to its end."""
NO_RESULT = "no-result"
"""The code of the remark on an apply method that returned None in a graph, which needs an op."""

_turns = count(1)


@dataclass(eq=False)
class _Traced:
    """An optimizer, held weakly, and what was seen of it: it may be gone when a trace is read."""

    optimizer: ref[Any]
    name: Callable[[], str]
    class_name: str
    kind: OptimizerKind
    own_steps: Sequence[str]
    settings: dict[str, Setting]
    made: str
    started: int | None = None
    """Its iterations when it was wrapped first."""
    is_let_go: bool = False
    """Whether the program has unwrapped it, and it is not traced again."""
    ended: int | None = None
    """Its iterations then."""
    is_loaded: bool = False
    """Whether a file has set its state."""
    remains: "_Remains | None" = None
    """What is read of it if it is gone."""
    returned_nothing: dict[str, None] = field(default_factory=dict)
    """Its apply methods that returned None in a graph."""
    called: set[str] = field(default_factory=set)
    """The methods of `BESIDE` that were called."""


class _Remains:
    """What is kept of an optimizer, to be read when the program has let go of it.

    The report of a program is read at its end, and what it made in a function is gone by then. A
    variable in a graph of TensorFlow 1 is not kept: it would keep the graph.
    """

    def __init__(self, name: str, iterations: Any, dynamic_scale: Any) -> None:
        self.called = name
        self._iterations, self.dynamic_scale = (
            None if getattr(each, "graph", None) is not None else each
            for each in (iterations, dynamic_scale)
        )


class Optimizers:
    """A root optimizer and those nested in it, by index."""

    def __init__(self, backend: Backend) -> None:
        self.root = 0
        self._backend = backend
        self._lock = threading.Lock()
        self._all: list[_Traced] = []
        self.stale = backend.new_stale()
        self._gaps = 0
        self.stepping: dict[int, int | None] = {}
        """The iterations of each when its first step began; None if it had none yet."""
        self.calls_beside = 0
        """How often one of these methods was called."""
        self._turns = (0, 0)
        self.stateless = True
        """Whether no step has ended: see `first_step_ended`."""

    def add(
        self,
        optimizer: Any,
        name: Callable[[], str],
        class_name: str,
        kind: OptimizerKind,
        own_steps: Sequence[str] = (),
        made: str = "",
    ) -> int:
        """Take in an optimizer; returns its index.

        `own_steps` are the methods that may update variables past its apply methods, `made` is the
        line of the program that made it.
        """
        settings = self._settings(optimizer)
        with self._lock:
            self._all.append(
                _Traced(ref(optimizer), name, class_name, kind, own_steps, settings, made)
            )
            return len(self._all) - 1

    def __len__(self) -> int:
        return len(self._all)

    def tell(self, index: int, **settings: Setting) -> None:
        """Note what an optimizer is used with, as if it had been told so."""
        self._all[index].settings.update(settings)

    def returned_nothing(self, index: int, method: str) -> None:
        """An apply method returned None in a graph, where some kinds of optimizer need an op."""
        if self._all[index].kind.name in ("legacy", "v1"):
            self._all[index].returned_nothing.setdefault(method)

    def with_own_step(self) -> set[int]:
        """The indices of those whose step method may update variables by itself."""
        return {index for index, traced in enumerate(self._all) if traced.own_steps}

    def kinds(self) -> set[str]:
        """The names of their kinds."""
        return {each.kind.name for each in self._all}

    def step_methods(self) -> set[str]:
        """The names of the methods that are a step of one of them."""
        return {method for each in self._all for method in each.kind.step_methods}

    def names(self) -> list[str]:
        """Their names, made distinct."""
        return distinct(map(self._name_of, range(len(self._all))))

    def alive(self) -> list[Any]:
        """Those that the program holds."""
        return [each for traced in self._all if (each := traced.optimizer()) is not None]

    def called_beside(self, index: int, method: str) -> None:
        """One of the methods of `tracer.kinds.BESIDE` was called."""
        self._all[index].called.add(method)
        self.calls_beside += 1

    def known(self, index: int) -> tuple[Any, OptimizerKind]:
        """One of them, None if it is gone, and its kind."""
        return self._all[index].optimizer(), self._all[index].kind

    def called(self, index: int) -> set[str]:
        """The methods of `tracer.kinds.BESIDE` that were called of one."""
        return self._all[index].called

    def take_turn(self) -> None:
        """One of them steps, and the step before was one of another recorder of the process.

        The turns are numbered: two optimizers step in turns if theirs overlap. A turn has any
        number of steps. Steps in a graph of a `Session` take none.
        """
        turn = next(_turns)
        self._turns = self._turns[0] or turn, turn

    def first_step_ended(self) -> None:
        """Note what each is like then: it may be gone when a trace is read."""
        self.stateless = False
        for each in self._all:
            optimizer = each.optimizer()
            if optimizer is not None:
                each.remains = _remains_of(each.name(), optimizer)
                each.settings.update(_plain_settings(optimizer))

    def records(
        self, names: Sequence[str], before: Mapping[int, Iterations], blocks: Blocks
    ) -> Iterator[Optimizer]:
        """What a trace says of each; `before` is what `iterations` gave when the trace began."""
        for index, (name, traced) in enumerate(zip(names, self._all, strict=True)):
            optimizer = self._readable(index)
            if optimizer is not None:
                traced.settings.update(self._settings(optimizer))
            moved = None
            if not blocks.is_behind(optimizer):
                moved = self._moved(index, optimizer, before.get(index), blocks)
            own_steps = (Remark(OWN_STEP, each) for each in traced.own_steps)
            fitted = "finalize_variable_values" in traced.called and index not in self.stepping
            no_result = (Remark(NO_RESULT, each) for each in list(traced.returned_nothing))
            yield Optimizer(
                name,
                traced.class_name,
                traced.kind.name,
                self.root,
                dict(traced.settings),
                moved,
                (
                    *own_steps,
                    *blocks.remarks(),
                    *no_result,
                    *([Remark(FITTED, "finalize_variable_values")] if fitted else ()),
                ),
                traced.made,
                turns=self._turns if index == self.root else (0, 0),
            )

    def begin(self, index: int, retrace: bool) -> None:
        """Tracing begins, or goes on, with an optimizer that may have been used before.

        The functions that were traced with it meanwhile are to be traced anew if `retrace`, and
        watched.
        """
        traced = self._all[index]
        optimizer = traced.optimizer()
        if traced.started is None:
            traced.started = self._backend.iterations_of(optimizer)
        self._gaps += self._in_gap(traced)
        traced.is_let_go = False
        own = index in self.with_own_step()
        self.stale.find(index, optimizer, traced.kind, traced.name(), own, retrace)
        self.stale.begin(index)

    def end(self, index: int) -> None:
        """Tracing of this one ends, at least for a while."""
        self.stale.let_go(index)

    def unwrapped(self, index: int) -> None:
        """The program unwraps this one: what it does until it is traced again is a gap."""
        traced = self._all[index]
        traced.ended, traced.is_let_go = self._count_of(traced), True

    def gaps(self) -> int:
        """How often an optimizer that was traced before stepped, or may have, untraced."""
        return self._gaps + sum(map(self._in_gap, list(self._all)))

    def _in_gap(self, traced: _Traced) -> bool:
        """Whether it may have stepped since tracing ended, and tracing has not begun again."""
        return traced.is_let_go and (traced.ended is None or self._count_of(traced) != traced.ended)

    def _count_of(self, traced: _Traced) -> int | None:
        with suppress_faults():
            return self._backend.iterations_of(traced.optimizer())
        return None

    def first_step(self, index: int) -> None:
        """The first step of one begins, also if it is only traced.

        What moved its iterations until then, as a model that is loaded, was no step.
        """
        self.stepping.setdefault(index, self._count_of(self._all[index]))

    def stepped(self, names: Sequence[str]) -> Iterator[Stepped]:
        """Those whose own counts of steps can be read, and how far these were at first."""
        for index, name in enumerate(names):
            optimizer = self._readable(index)
            if optimizer is not None:
                traced = self._all[index]
                yield Stepped(name, optimizer, None if traced.is_loaded else traced.started)

    def loads(self, index: int) -> None:
        """A file sets the state of one, its count of steps too."""
        self._all[index].is_loaded = True

    def iterations(self) -> dict[int, Iterations]:
        """Each optimizer's own count of its steps, where it has one."""
        counts = {}
        for index in range(len(self._all)):
            steps = self._backend.iterations_of(self._readable(index))
            if steps is not None:
                counts[index] = Iterations(steps, index in self.stepping)
        return counts

    def _moved(
        self, index: int, optimizer: Any, before: Iterations | None, blocks: Blocks
    ) -> int | None:
        """How far its own count of its steps has moved since `before`, or since it was wrapped."""
        now = self._backend.iterations_of(optimizer)
        if now is None:
            return None
        if before is not None and before.stepping:
            return now - before.steps
        first = self.stepping.get(index)
        if first is not None:
            return now - first
        told = blocks.counters.moved(optimizer) if index in self.stepping else None
        if told is not None:  # its variable could not be read then, and a file may have set it
            return told
        if index in self.stepping and self._backend.is_restored(optimizer):
            return None  # they were made in the first step, and set
        return now - ((self._all[index].started or 0) if before is None else before.steps)

    def _name_of(self, index: int) -> str:
        traced = self._all[index]
        if traced.remains is None or traced.optimizer() is not None:
            return traced.name()
        return traced.remains.called

    def _readable(self, index: int) -> Any:
        """An optimizer, or what is left of one that is gone; None if nothing is."""
        traced = self._all[index]
        optimizer = traced.optimizer()
        return traced.remains if optimizer is None else optimizer

    def _settings(self, optimizer: Any) -> dict[str, Setting]:
        """What the optimizer was told that changes the counts, and what its loss scale is now."""
        settings = _plain_settings(optimizer)
        own = object.__getattribute__(optimizer, "__dict__")
        scale = self._backend.number_in(_scale_in(own))
        if scale is not None:
            settings[_SCALE] = scale if math.isfinite(scale) else str(scale)
        return settings


_SCALE = "dynamic_scale"
"""The variable of Keras 3's loss scale, of which a trace has the value that it had then."""


def _scale_in(own: Mapping[str, Any]) -> Any:
    return own.get(_SCALE, own.get(f"_{_SCALE}"))


def _remains_of(name: str, optimizer: Any) -> _Remains:
    own = object.__getattribute__(optimizer, "__dict__")
    return _Remains(name, getattr(optimizer, "_iterations", None), _scale_in(own))


def _plain_settings(optimizer: Any) -> dict[str, Setting]:
    """What the optimizer was told that changes the counts, as far as it is plain to read."""
    own = object.__getattribute__(optimizer, "__dict__")
    mixins = {base.__name__ for base in type(optimizer).__mro__}
    delegating = "DelegatingTrackableMixin" in mixins
    settings: dict[str, Setting] = {}
    for name in SETTINGS:
        value = own.get(name, own.get(f"_{name}"))
        if value is None and delegating and hasattr(type(optimizer), name):
            value = getattr(optimizer, name, None)  # a property, in the loss scale of tf_keras
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        if isinstance(value, bool | int | float | str):
            settings[name] = value
    return settings
