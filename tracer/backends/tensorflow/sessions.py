"""What a `Session` fetches of updates that no counter counts: older ones, or a part of a step.

A step of a v1 graph counts itself, by a callback on the op that `apply_gradients` returned. Updates
from before the tracer came have none, and a program may run some of a step without that op. A
callback on each update would cost as much as the update, so what was fetched is looked at, and the
graph above it, once for each set of fetches.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakMethod

from tracer.backends.tensorflow import compat


class _Wanted(NamedTuple):
    """Ops of a graph, by name, and what each run of any of them is reported as."""

    ops: Collection[str]
    what: int
    unless: str
    """The op that reports them itself; empty if none does."""


class Fetches:
    """Reports each run of the ops that are watched."""

    def __init__(self, ran: Callable[[int], None]) -> None:
        """`ran`, a method that is held weakly, is called with what the ops are reported as."""
        self._report = WeakMethod(ran)
        self._wanted: WeakKeyDictionary[Any, list[_Wanted]] = WeakKeyDictionary()
        self._known: WeakKeyDictionary[Any, dict[Any, list[int]]] = WeakKeyDictionary()

    def watch(self, graph: Any, ops: Collection[str], what: int, unless: str = "") -> None:
        """Report runs of these ops of `graph` as `what`, where the op `unless` does not run."""
        self._wanted.setdefault(graph, []).append(_Wanted(ops, what, unless))
        self._known.pop(graph, None)
        compat.watch_sessions(self.ran)

    def drop(self, what: int) -> None:
        """Report nothing as `what` any more."""
        for graph, wanted in list(self._wanted.items()):
            self._wanted[graph] = [each for each in wanted if each.what != what]
        self._known.clear()

    def stop(self) -> None:
        """Look at no more Sessions."""
        compat.watch_sessions_no_more(self.ran)

    @property
    def watching(self) -> bool:
        """Whether any op is watched."""
        return any(self._wanted.values())

    def ran(self, graph: Any, fetched: Sequence[Any]) -> None:
        """A Session has run these ops of `graph`."""
        report, wanted = self._report(), self._wanted.get(graph)
        if report is None or not wanted:
            return
        known = self._known.setdefault(graph, {})
        names = tuple(op.name for op in fetched)
        if names not in known:
            needed = compat.needed_by(fetched)
            known[names] = [
                each.what
                for each in wanted
                if each.unless not in needed and not needed.isdisjoint(each.ops)
            ]
        for what in known[names]:
            report(what)
