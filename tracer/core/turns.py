"""Which optimizer of the process steps after which: each has a new turn when another one had one.

So it is known whether two optimizers step in turns, or one after the other has ended. A turn takes
two numbers, however many steps it has. Steps in a graph of a `Session` have none.
"""

_latest: "Turns | None" = None
_number = 0


class Turns:
    """The turns of one root optimizer."""

    def __init__(self) -> None:
        self.first = 0
        self.last = 0

    def step(self) -> None:
        """A step begins in eager mode, or a function with one is called."""
        global _latest, _number
        # Threads that step at once may share a number: they take turns then, too.
        if _latest is not self:
            _latest = self
            _number += 1
            self.last = _number
            self.first = self.first or _number
