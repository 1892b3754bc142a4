"""Assertions whose block never began or never ended: they assert nothing, and that is said.

As Python does it for a coroutine that was never awaited, it is said when the object is gone or the
program ends: by a `RuntimeWarning` at the line that made it, or to the pytest plugin, which fails
the test. A generator that is closed leaves the block in its middle: that is said at once.
"""

import sys
import warnings
import weakref
from types import FrameType
from typing import Any, NamedTuple

_PLUGIN = "tracer.pytest_plugin"
"""It imports nothing of `tracer` before a test asks for it, so it is not told: it is looked up."""


class Unused(NamedTuple):
    """An assertion that asserted nothing."""

    function: str
    """What made it: `assert_updates`."""
    path: str
    line: int
    why: str = ""
    """What became of its block; empty if it never began."""

    def __str__(self) -> str:
        if self.why:
            return f"tracer.{self.function}() asserts nothing: {self.why}"
        return (
            f"tracer.{self.function}() asserts nothing without `with`: write "
            f"`with tracer.{self.function}(...):` above the code that trains"
        )


class Watch:
    """Waits for `assertion`, which is being made, to be used or to be gone."""

    def __init__(self, assertion: object) -> None:
        frame: FrameType | None = sys._getframe(1)
        function, path, line = "", "", 0
        while frame is not None and frame.f_globals.get("__name__", "").startswith("tracer."):
            function = frame.f_code.co_name
            frame = frame.f_back
        if frame is not None:
            path, line = frame.f_code.co_filename, frame.f_lineno
        self._unused = Unused(function, path, line)
        self._wait(assertion)

    def entered(self, assertion: object) -> None:
        """Its block begins."""
        self.cancel()
        self._unused = self._unused._replace(why="its block was entered and never left")
        self._wait(assertion)

    def abandoned(self) -> None:
        """Its block was left by a generator that was closed."""
        self.cancel()
        why = "its block is in a generator that was closed before it ended"
        _say(self._unused._replace(why=why), _of_this_test())

    def cancel(self) -> None:
        """It was used."""
        self._finalizer.detach()

    def _wait(self, assertion: object) -> None:
        self._finalizer = weakref.finalize(assertion, _say, self._unused, _of_this_test())


def _of_this_test() -> Any:
    """Where the pytest plugin wants to be told of those of the test that runs now."""
    return getattr(sys.modules.get(_PLUGIN), "unused_assertions", None)


def _say(unused: Unused, told: list[Unused] | None) -> None:
    if told is not None:
        if told is _of_this_test():  # else that test ended by an error of its own, which held it
            told.append(unused)
    else:
        warnings.warn_explicit(str(unused), RuntimeWarning, unused.path, unused.line)
