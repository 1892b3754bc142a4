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
        call = f"tracer.{self.function}"
        never = f" without `with`: write `with {call}(...):` above the code that trains"
        return f"{call}() asserts nothing{f': {self.why}' if self.why else never}"


def made() -> Unused:
    """The assertion that is being made, and the line of the program that makes it."""
    frame: FrameType | None = sys._getframe(1)
    function = ""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tracer."):
        function, frame = frame.f_code.co_name, frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
    return Unused(function, *place)


def watch(assertion: object, unused: Unused) -> "weakref.finalize[[Unused, Any], Any]":
    """Say `unused` when the assertion is gone, unless that is detached before."""
    return weakref.finalize(assertion, say, unused, of_this_test())


def of_this_test() -> Any:
    """Where the pytest plugin keeps those of the test that runs now; None if no test does."""
    return getattr(sys.modules.get(_PLUGIN), "unused_assertions", None)


def say(unused: Unused, of_test: list[Unused] | None) -> None:
    """That an assertion asserted nothing: to the pytest plugin, or as a warning."""
    if of_test is None:
        warnings.warn_explicit(str(unused), RuntimeWarning, unused.path, unused.line)
    elif of_test is of_this_test():  # else that test ended by an error of its own, which held it
        of_test.append(unused)
