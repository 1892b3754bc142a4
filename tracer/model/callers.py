"""The lines and calls that led to a step, and their texts. No TensorFlow."""

from tracer.model.records import Line, TraceData

UNKNOWN = Line("caller not known")
"""The line for updates with an unknown path."""


def label(line: Line) -> str:
    """The text of a line, `train.py:41 main`, or the framework's public name.

    >>> label(Line("main", "train.py", 41)), label(Line("Model.fit"))
    ('train.py:41 main', 'Model.fit')
    >>> label(Line("<module>", "train.py", 50))
    'train.py:50'
    """
    if not line.file:
        return line.function
    function = "" if line.function in ("", "<module>") else f" {line.function}"
    return f"{line.file}:{line.number}{function}"


def lines_of(data: TraceData, path: int | None) -> list[Line]:
    """The lines of a path; empty if it is unknown."""
    return [] if path is None else [data.lines[index] for index in data.paths[path]]


def path_text(data: TraceData, path: int | None) -> str | None:
    """A path as text: `train.py:6 main > step > train.py:4 step`; None if unknown."""
    return " > ".join(map(label, lines_of(data, path))) or None


def nearest(data: TraceData, path: int | None) -> Line | None:
    """The innermost program line on a path; None if unknown."""
    return next((line for line in reversed(lines_of(data, path)) if line.file), None)


def origin(data: TraceData, path: int | None) -> tuple[Line | None, bool]:
    """The program line that called, None if unknown, and True if it traced a graph.

    It is the innermost line of the path or, for steps in a graph, of the part before the graph.
    """
    lines = lines_of(data, path)
    graph = next((n for n, line in enumerate(lines) if line.graph), None)
    called = (line for line in reversed(lines[:graph]) if line.file)
    return next(called, None), graph is not None
