"""Which functions were traced to graphs, for what signature, and how much of it ran."""

import dataclasses
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, ref

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.causes import Events
from tracer.backends.tensorflow.functions import Definition
from tracer.backends.tensorflow.ledger import Use
from tracer.core import backend
from tracer.core.figures import Event, Figures, Key, TotalOf, Tracing


class _BlockInGraph(NamedTuple):
    replica: int
    step: bool
    use: Use
    place: int
    """The same number for the blocks of one function's graph inside the outermost one."""


class Handed(NamedTuple):
    """What a step was handed."""

    variables: frozenset[int | None]
    gradient: str
    """The name of the first gradient in the graph; empty if that is not known."""


class _Tracing(Tracing):
    """An outermost graph with the blocks in it."""

    def __init__(self, root: Any, after: int, event: Event | None) -> None:
        super().__init__(compat.function_name(root), compat.signature(root), after)
        self.root_id = id(root)
        self.event = event
        self.root: ref[Any] | None = None
        self.blocks: list[_BlockInGraph] = []
        self._steps_in: WeakKeyDictionary[Any, dict[int, list[Handed]]] = WeakKeyDictionary()
        self._places: WeakKeyDictionary[Any, int] = WeakKeyDictionary()

    def add(self, graph: Any, replica: int, step: Handed | None, use: Use) -> None:
        place = self._places.setdefault(compat.called_graph(graph), len(self.blocks))
        self.blocks.append(_BlockInGraph(replica, step is not None, use, place))
        if self.event is not None:
            self.event.replica = min(self.event.replica, replica)
        if step is not None:
            # A branch of a condition is a graph of its own, which another one excludes.
            steps = self._steps_in.setdefault(graph, {}).setdefault(replica, [])
            steps.append(step)
            self.step_calls = max(self.step_calls, len(steps))
            if len(steps) > 1:
                before = steps[-2]
                again = bool(step.gradient) and step.gradient == before.gradient
                self.parted |= again or step.variables != before.variables

    def follow(self, root: Any, gone: "deque[_Tracing]") -> None:
        """Put it into `gone` when the graph is."""
        self.root = ref(root, lambda _: gone.append(self))

    def add_to(self, figures_of: dict[Key, Figures], total_of: TotalOf) -> None:
        replica = min(block.replica for block in self.blocks)
        ran = [
            (block, block.use.ran(total_of(block.replica, block.use.number)))
            for block in self.blocks
        ]
        steps = [times for block, times in ran if block.step and block.replica == replica]
        idle = not any(times for _, times in ran)
        ran_steps = sum(steps) if steps else max(times for _, times in ran)
        self.sum_up(figures_of, replica, idle, ran_steps, self._idle_inside(ran))

    def _idle_inside(self, ran: list[tuple[_BlockInGraph, int]]) -> int:
        """How many graphs with a step in them, inside the outermost one, never ran, if others did.

        A function that makes variables is traced twice also where it is called in another one, as
        `one_step_on_data` of Keras 3 is, and the outer one is traced once.
        """
        runs_of: Counter[int] = Counter()
        for block, times in ran:
            if block.step:
                runs_of[block.place] += times
        idle = sum(not times for times in runs_of.values())
        return idle if idle < len(runs_of) else 0


class Tracings(backend.Tracings):
    """The graph tracings of one root optimizer; those whose graph is gone are only added up."""

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[int, _Tracing] = {}
        self._gone: deque[_Tracing] = deque()
        self._sums: dict[Key, Figures] = {}
        self._events = Events(self.kept)

    def add(
        self,
        graph: Any,
        replica: int,
        step: Handed | None,
        use: Use,
        steps_so_far: Callable[[], int],
        failed: bool,
        caused_by: Callable[[], tuple[Definition | None, int]],
    ) -> None:
        """The block that makes `use` of a counter on `replica` was traced into `graph`.

        `step` is what it was handed, if it is one; `failed` if an error ended it, which as a rule
        ends the tracing. `caused_by` gives what an outermost function is traced for, and by which
        path of calls.
        """
        root = compat.graphs_around(graph)[-1]
        tracing = self._alive.get(id(root))
        if tracing is None or tracing.root is None or tracing.root() is not root:
            self._settle()
            steps = steps_so_far()
            event = self._events.begin(root, replica, *caused_by(), steps)
            tracing = self._alive[id(root)] = _Tracing(root, steps, event)
            tracing.follow(root, self._gone)
        tracing.add(graph, replica, step, use)
        tracing.failed |= failed

    def figures(self, total_of: TotalOf) -> dict[Key, Figures]:
        """The figures now, in the order of the first tracing of each."""
        self._settle()
        figures_of = {key: dataclasses.replace(figures) for key, figures in self._sums.items()}
        for tracing in [*self._gone, *self._alive.values()]:
            tracing.add_to(figures_of, total_of)
        return figures_of

    def _settle(self) -> None:
        """Add up what is gone, once its counters have been released."""
        for _ in range(len(self._gone)):
            tracing = self._gone.popleft()
            if self._alive.get(tracing.root_id) is tracing:
                del self._alive[tracing.root_id]
            if any(block.use.released is None for block in tracing.blocks):
                self._gone.append(tracing)
            else:
                tracing.add_to(self._sums, lambda replica, number: 0)
