"""Notes the functions and graphs that were traced before their optimizer was wrapped."""

import gc
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple
from weakref import WeakSet

from tracer.kinds import OptimizerKind
from tracer.words import listed

SESSION_GRAPH = "v1 graph"
"""The name for the graph of a `Session`."""


class Late(NamedTuple):
    """An optimizer that is wrapped, perhaps after it was used."""

    number: int
    """Its index among the optimizers of its recorder."""
    optimizer: Any
    kind: OptimizerKind
    name: str
    own_steps: bool
    """Whether its step method may update variables by itself."""


class StaleFunctions:
    """The functions of a recorder's optimizers that were traced before the optimizers were wrapped.

    Each one that can be is traced again, and the others are noted.
    """

    reads_again = ""
    """Appended to the note on functions traced again: the state that they restart."""

    def __init__(self, note: Callable[..., None]) -> None:
        """`note` is `Root.note`."""
        self._note = note
        self._missed: WeakSet[Any] = WeakSet()

    def find(self, late: Late, retrace: bool) -> None:
        """Find the stale functions of an optimizer whose class is replaced now.

        If `retrace`, they are traced again at their next call.
        """

    def begin(self, index: int, optimizer: object) -> None:
        """Handle the start of tracing an optimizer: functions traced from now on are counted."""

    def let_go(self, index: int) -> None:
        """Handle the end, perhaps temporary, of tracing an optimizer."""

    def may_run(self) -> bool:
        """Whether functions that were missed may run now."""
        if self._missed:
            gc.collect()  # those of a test that has ended
        return bool(self._missed)

    def missed(self, optimizer: str, function: str, graph: object) -> None:
        """Note that a `graph` may run uncounted, as part of a function, while it lives."""
        self._missed.add(graph)
        self._note(
            f"{optimizer}: {function} was traced before the optimizer was wrapped, and is not "
            "traced again: what it does is not counted; wrap the optimizer before it trains"
        )

    def retraced(self, optimizer: str, functions: Iterable[str]) -> None:
        """Note which functions are traced again for the tracer."""
        every = set(functions)
        inside = {name for name in every if any(name.startswith(f"{other}/") for other in every)}
        names = sorted(every - inside)
        if names:
            are = "is" if len(names) == 1 else "are"
            self._note(
                f"{optimizer}: {listed(names)}, traced before the optimizer was wrapped, {are} "
                f"traced again at the next call{self.reads_again}",
                "fact",
            )
