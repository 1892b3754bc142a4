"""Builds the tree of callers, with the executions below each path of calls. No TensorFlow."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tracer.model.measures import EXECUTIONS, ROLES, Selection, counted
from tracer.model.records import Block, Line, TraceData, contribution

UNKNOWN = Line("caller not known")
"""The line in the tree for executions and calls with an unknown path."""


@dataclass(frozen=True)
class Caller:
    """A program line or a call of the framework, with everything that it called.

    The counts of a caller are the sums of its children's, plus its own.
    """

    line: Line | None
    """The line or call; None for the root of the tree, which is the whole run."""
    method: str
    """The traced apply method at the end of a path; empty for all other callers."""
    executions: int
    """The executions of the selected methods."""
    updates: int
    """The number of executions that were updates."""
    steps: int
    """The number of steps: for each root optimizer, on the replica with the most steps."""
    calls: int
    """The number of Python calls of the selected methods, eagerly and while tracing."""
    variables: int
    """The number of variables of the executions and calls."""
    replicas: int
    """The number of replicas of the executions and calls."""
    paths: frozenset[int]
    """The indices of `TraceData.paths` through this caller."""
    children: tuple["Caller", ...]
    """The calls it made: the branch with the most executions first, then with the most calls."""


@dataclass
class _Leaf:
    """The counts at the end of a path, or of a method called there."""

    names: list[tuple[Line, str]]
    """The lines that lead to it, each with its method as in a `Caller`."""
    paths: frozenset[int]
    executions: int = 0
    updates: int = 0
    calls: int = 0
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)  # by root and replica
    variables: set[int] = field(default_factory=set)
    replicas: set[int] = field(default_factory=set)


_Leaves = dict[tuple[int | None, str], _Leaf]
"""By path and method; the method is empty for the end of the path."""


def tree(data: TraceData, selection: Selection, root: int | None = None) -> Caller:
    """Return the callers of the selected executions, of one root optimizer or of all.

    Each path ends in the methods executed or called there. Executions without a path are below a
    line of their own, `UNKNOWN`. Python calls have no step: a selection of steps has all of them.
    """
    leaves: _Leaves = {}
    selection = replace(selection, roles=(selection.roles or EXECUTIONS) | ROLES["calls"])
    for block in counted(data):
        if root in (None, block.root) and selection.holds_replica(block.replica):
            _add(leaves, data, block, selection)
    return _caller(None, "", [*leaves.values()], 0)


def _add(leaves: _Leaves, data: TraceData, block: Block, selection: Selection) -> None:
    called = not ROLES["calls"].isdisjoint(entry.role for entry in block.entries)
    if called and not (block.total and selection.count(block)):
        return
    times = block.total if called else selection.executions(block)
    end = _leaf(leaves, data, block.path)
    optimizers = selection.optimizers
    if block.step and (
        optimizers is None or any(each.optimizer in optimizers for each in block.entries)
    ):
        end.steps[block.root, block.replica] += times
    for entry in filter(selection.holds, block.entries):
        if each := contribution(entry, selection.variables):
            leaf = _leaf(leaves, data, block.path, data.methods[entry.method].name)
            leaf.calls += times * each if called else 0
            leaf.executions += 0 if called else times * each
            leaf.updates += times * each if entry.role == "update" else 0
            leaf.variables.update(selection.kept(entry.variables))
            leaf.replicas.add(block.replica)


def _leaf(leaves: _Leaves, data: TraceData, path: int | None, method: str = "") -> _Leaf:
    """Return the leaf of a path, or of a method called there that is not its end."""
    if (path, method) not in leaves:
        lines = lines_of(data, path) or [UNKNOWN]
        names = [(line, "") for line in lines]
        if method and (lines[-1].file or lines[-1].function.rpartition(".")[2] != method):
            names.append((Line(method), method))
        paths = frozenset[int]() if method or path is None else frozenset({path})
        leaves[path, method] = _Leaf(names, paths)
    return leaves[path, method]


def _caller(line: Line | None, method: str, leaves: Sequence[_Leaf], depth: int) -> Caller:
    """The caller at `depth` that these leaves share."""
    below: dict[tuple[Line, str], list[_Leaf]] = {}
    steps: Counter[tuple[int, int]] = Counter()
    for leaf in leaves:
        steps.update(leaf.steps)
        if len(leaf.names) > depth:
            below.setdefault(leaf.names[depth], []).append(leaf)
    most: dict[int, int] = {}
    for (root, _), number in steps.items():
        most[root] = max(most.get(root, 0), number)
    children = [_caller(*name, part, depth + 1) for name, part in below.items()]
    children.sort(key=lambda each: (-each.executions, -each.calls))
    return Caller(
        line=line,
        method=method,
        executions=sum(leaf.executions for leaf in leaves),
        updates=sum(leaf.updates for leaf in leaves),
        steps=sum(most.values()),
        calls=sum(leaf.calls for leaf in leaves),
        variables=len({index for leaf in leaves for index in leaf.variables}),
        replicas=len({index for leaf in leaves for index in leaf.replicas}),
        paths=frozenset(path for leaf in leaves for path in leaf.paths),
        children=tuple(each for each in children if each.executions or each.calls),
    )


# Texts of paths.


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
    """A path as text: `train.py:41 main > Model.fit > Adam.apply_gradients`; None if unknown."""
    return " > ".join(map(label, lines_of(data, path))) or None


def nearest(data: TraceData, path: int | None) -> Line | None:
    """The innermost program line on a path; None if unknown."""
    return next((line for line in reversed(lines_of(data, path)) if line.file), None)


def known(data: TraceData) -> bool:
    """Whether the trace knows any caller, or has no blocks."""
    return bool(data.paths) or not data.blocks


LACKING = "This trace knows no callers."
"""The message if `known` is False."""
