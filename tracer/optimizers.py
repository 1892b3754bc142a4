"""The optimizers of one recorder: what they are, how far they were, and what they ran unseen.

A graph that was traced before its optimizer was wrapped holds no counter. What it runs shows only
in the optimizer's own count of its steps, `iterations`, that moves by more than the steps counted.
"""

import math
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ref

from tracer import compat, snapshot
from tracer.kinds import SETTINGS, OptimizerKind
from tracer.model.records import Optimizer, Remark, Setting
from tracer.variables import canonical


class _Traced(NamedTuple):
    """An optimizer, held weakly."""

    optimizer: ref[Any]
    name: Callable[[], str]
    class_name: str
    kind: OptimizerKind
    remarks: tuple[Remark, ...]
    settings: dict[str, Setting]


class _Mark(NamedTuple):
    """How far an optimizer was when it was wrapped."""

    iterations: int
    steps: int
    used: bool


class Optimizers:
    """A root optimizer and those nested in it, by index."""

    def __init__(self) -> None:
        self.root = 0
        self._lock = threading.Lock()
        self._all: list[_Traced] = []
        self._marks: dict[int, _Mark] = {}
        self._suspects: list[tuple[int, ref[Any]]] = []
        self._older: dict[int, bool] = {}  # by index, whether a graph is older than its mark

    def add(
        self,
        optimizer: Any,
        name: Callable[[], str],
        class_name: str,
        kind: OptimizerKind,
        remarks: tuple[Remark, ...],
    ) -> int:
        """Take in an optimizer; returns its index."""
        settings = _settings(optimizer)
        with self._lock:
            self._all.append(_Traced(ref(optimizer), name, class_name, kind, remarks, settings))
            return len(self._all) - 1

    def remarked(self, codes: Collection[str]) -> bool:
        """Whether the class of an optimizer has a remark with one of these codes."""
        return any(remark.code in codes for each in self._all for remark in each.remarks)

    def kinds(self) -> set[str]:
        """The names of their kinds."""
        return {each.kind.name for each in self._all}

    def step_methods(self) -> set[str]:
        """The names of the methods that are a step of one of them."""
        return {method for each in self._all for method in each.kind.step_methods}

    def names(self) -> list[str]:
        """Their names, made distinct."""
        return snapshot.distinct(each.name() for each in self._all)

    def records(self, names: Sequence[str], before: dict[int, int]) -> Iterator[Optimizer]:
        """What a trace says of each; `before` is how far each had moved already."""
        moved = self.moved()
        for index, (name, each) in enumerate(zip(names, self._all, strict=True)):
            optimizer = each.optimizer()
            if optimizer is not None:
                each.settings.update(_settings(optimizer))
            iterations = moved.get(index)
            if iterations is not None:
                iterations -= before.get(index, 0)
            yield Optimizer(
                name,
                each.class_name,
                each.kind.name,
                self.root,
                dict(each.settings),
                iterations,
                each.remarks,
            )

    def mark(self, index: int, steps: Callable[[], int]) -> str:
        """Note how far an optimizer has come that may have been used before; `steps` were counted.

        Where it has no count of its own steps that can be read, its graphs are looked for. Returns
        what the trace has to say of it at once, if anything.
        """
        each = self._all[index]
        optimizer = each.optimizer()
        iterations = iterations_of(optimizer)
        if iterations is not None:
            used = getattr(optimizer, "built", None) or getattr(optimizer, "_built", None)
            self._marks[index] = _Mark(iterations, steps(), bool(iterations or used))
            self._older.pop(index, None)
        elif each.kind.name == "v1":
            graphs = compat.graphs_updated_by(each.name())
            self._suspects += [(index, ref(graph)) for graph in graphs]
        elif each.kind.name == "legacy" and getattr(optimizer, "_iterations", None) is not None:
            return _early(each.name())
        return ""

    def moved(self) -> dict[int, int]:
        """How far each optimizer's own count of steps has moved since it was wrapped."""
        moved = {}
        for index, each in enumerate(self._all):
            now = iterations_of(each.optimizer())
            if now is not None:
                moved[index] = now - (self._marks[index].iterations if index in self._marks else 0)
        return moved

    def unseen(self, steps: int, counters: Sequence[Any]) -> dict[int, int]:
        """For each optimizer by how much its `iterations` moved more than the `steps` counted.

        Each graph of ours has captured one of `counters`.
        """
        unseen = {}
        for index, mark in self._marks.items():
            optimizer = self._all[index].optimizer()
            now = iterations_of(optimizer)
            late = 0 if now is None else (now - mark.iterations) - (steps - mark.steps)
            # A new optimizer's iterations may be set by a checkpoint: only an older graph of its
            # own says that they were not.
            if late > 0 and not mark.used and index not in self._older:
                self._older[index] = _older_graph(optimizer, counters)  # a sweep: once is enough
            if late > 0 and (mark.used or self._older[index]):
                unseen[index] = late
        return unseen

    def missed(
        self,
        names: Sequence[str],
        unseen: dict[int, int],
        before: dict[int, int],
        met_in: Callable[[Any], bool],
    ) -> Iterator[str]:
        """Notes on what ran in graphs that were traced before the tracer came.

        `met_in` says whether a variable of the trace is in a graph.
        """
        for index, steps in unseen.items():
            if steps > before.get(index, 0):
                yield _late(names[index], steps - before.get(index, 0))
        early = {index for index, graph in self._suspects if met_in(graph())}
        yield from (_early(names[index]) for index in sorted(early))


def iterations_of(optimizer: Any) -> int | None:
    """The optimizer's own count of its steps; None if it has none yet or it cannot be read now."""
    iterations = canonical(getattr(optimizer, "_iterations", None))
    handle = getattr(getattr(iterations, "_primary", iterations), "handle", None)
    if not isinstance(handle, compat.EagerTensor):
        return None  # it has none, or one in a v1 graph
    with compat.init_scope():
        return int(iterations.numpy())


def _older_graph(optimizer: Any, counters: Sequence[Any]) -> bool:
    """Whether a graph counts the optimizer's iterations that holds no counter of ours."""
    ours = {id(handle) for handle in counters}
    own = canonical(optimizer._iterations)
    theirs = {id(each.handle) for each in getattr(own, "values", (own,))}
    for graph in compat.graphs_alive():
        if isinstance(graph, compat.FuncGraph):
            captured = {id(outer) for outer, _ in graph.captures}
            if captured & theirs and not captured & ours:
                return True
    return False


def _settings(optimizer: Any) -> dict[str, Setting]:
    """What the optimizer was told that changes the counts, as far as it is plain to read."""
    own = object.__getattribute__(optimizer, "__dict__")
    mixins = {base.__name__ for base in type(optimizer).__mro__}
    delegating = "DelegatingTrackableMixin" in mixins
    found: dict[str, Setting] = {}
    for name in SETTINGS:
        value = own.get(name, own.get(f"_{name}"))
        if value is None and delegating and hasattr(type(optimizer), name):
            value = getattr(optimizer, name, None)  # a property, in the loss scale of tf_keras
        if isinstance(value, float) and not math.isfinite(value):
            value = str(value)
        if isinstance(value, bool | int | float | str):
            found[name] = value
    return found


def _late(name: str, steps: int) -> str:
    return (
        f"{name}: {steps} steps ran in graphs traced before the tracer came and are not counted; "
        "wrap the optimizer before it trains (or `iterations` was set, as by a checkpoint)"
    )


def _early(name: str) -> str:
    return (
        f"{name}: a graph with updates by an optimizer of this name was built before it was "
        "wrapped; what that graph runs is not counted, so wrap the optimizer first"
    )
