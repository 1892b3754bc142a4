"""What a `Session` runs of a step, but not the step: updates that are fetched one by one.

A step of a v1 graph counts itself, by a callback on the op that `apply_gradients` returned. A
program may run some of its updates without that op. A callback on each update would cost as much
as the update, so what was fetched is looked at, and the graph above it, once for each set of
fetches.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakMethod

from tracer.recorder.tensorflow import compat


class _Step(NamedTuple):
    """A step in a graph: its op, and the ops that write for each of its updates."""

    op: str
    updates: Sequence[tuple[Sequence[str], int]]
    """The names of the ops, with the update's site."""


class PartsOfSteps:
    """Tells of each update that a Session ran without its step."""

    def __init__(self, ran: Callable[[int], None]) -> None:
        """`ran`, a method that is held weakly, is called with the site of each such update."""
        self._ran = WeakMethod(ran)
        self._steps: WeakKeyDictionary[Any, list[_Step]] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[Any, dict[Any, list[int]]] = WeakKeyDictionary()

    def add(self, graph: Any, step: Any, updates: Iterable[tuple[Sequence[Any], int]]) -> None:
        """The op `step` of `graph` is a step, with these ops for each update and its site."""
        names = [([op.name for op in ops], site) for ops, site in updates]
        self._steps.setdefault(graph, []).append(_Step(step.name, names))
        self._known.pop(graph, None)
        compat.watch_sessions(self.ran)

    def stop(self) -> None:
        """Look at no more Sessions."""
        compat.watch_sessions_no_more(self.ran)

    def ran(self, graph: Any, fetched: Sequence[Any]) -> None:
        """A Session has run these ops of `graph`."""
        if graph not in self._steps:
            return
        known = self._known.setdefault(graph, {})
        names = tuple(op.name for op in fetched)
        if names not in known:
            known[names] = self._sites_of(graph, fetched)
        ran = self._ran()
        if ran is not None:
            for site in known[names]:
                ran(site)

    def _sites_of(self, graph: Any, fetched: Sequence[Any]) -> list[int]:
        """The updates that the ops need, of steps that they do not need."""
        needed = compat.needed_by(fetched)
        return [
            site
            for step in self._steps[graph]
            if step.op not in needed
            for ops, site in step.updates
            if not needed.isdisjoint(ops)
        ]
