"""Keeps the path to each block: in eager mode to the step, in a graph to its tracing. No framework.

A graph does not know who runs it: its executions have the path by which Python traced it.
"""

from collections import Counter
from typing import Any

from tracer.core.call_paths import UNKNOWN, Paths
from tracer.model.records import Line

Lines = tuple[Line, ...]


class Callers:
    """The paths of one root optimizer."""

    def __init__(self, author_of: Any = lambda code, line: None) -> None:
        """`author_of` maps a line of generated code to its author's line."""
        self.paths = Paths(author_of)
        self.traced: Counter[tuple[int, int]] = Counter()
        """The number of calls while tracing, by site and path."""

    def lines(self, path: int) -> Lines:
        """The lines of a path; empty if the path is unknown."""
        return () if path == UNKNOWN else self.paths.rows[path]
