"""Who calls: the paths of calls as a tree, with what was executed below each. No TensorFlow."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tracer.model.measures import EXECUTIONS, ROLES, Selection, counted
from tracer.model.records import Block, Line, TraceData, contribution

UNKNOWN = Line("caller not known")
"""Stands in the tree for what was executed or called from an unknown path."""


@dataclass(frozen=True)
class Caller:
    """A line of the program or a call of the framework, with everything that it called.

    The counts of a caller are those of its children together, plus its own.
    """

    line: Line | None
    """The line or call; None for the root of the tree, which is the whole run."""
    method: str
    """The traced apply method at the end of a path; empty for all other callers."""
    executions: int
    """How often the work of the selected methods really ran."""
    updates: int
    """How many of the executions were updates."""
    steps: int
    """How many steps: for each root optimizer, on the replica with the most steps."""
    calls: int
    """How often Python called the selected methods, eagerly and while tracing."""
    variables: int
    """How many variables the executions and calls had."""
    replicas: int
    """How many replicas they ran on."""
    paths: frozenset[int]
    """The indices of `TraceData.paths` that run through it."""
    children: tuple["Caller", ...]
    """What it called: the branch with the most executions first, then with the most calls."""


@dataclass
class _Leaf:
    """What is counted at the end of a path, or of a method that is called there."""

    names: list[tuple[Line, str]]
    """The lines that lead to it, each with the method that it is, as in a `Caller`."""
    paths: frozenset[int]
    executions: int = 0
    updates: int = 0
    calls: int = 0
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)  # by root and replica
    variables: set[int] = field(default_factory=set)
    replicas: set[int] = field(default_factory=set)


_Leaves = dict[tuple[int | None, str], _Leaf]
"""By path and by method, which is empty for the end of the path."""


def tree(data: TraceData, selection: Selection, root: int | None = None) -> Caller:
    """The callers of the executions that are selected, of one root optimizer or of all.

    Each path ends in the methods that were executed or called there. What has no path is below a
    line of its own, `UNKNOWN`. Python calls have no step, so those of the whole run count.
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
    """Where a path ends; and below it the method that is called there, if that is not its end."""
    if (path, method) not in leaves:
        lines = lines_of(data, path) or [UNKNOWN]
        names = [(line, "") for line in lines]
        if method and (lines[-1].file or lines[-1].function.rpartition(".")[2] != method):
            names.append((Line(method), method))
        paths = frozenset[int]() if method or path is None else frozenset({path})
        leaves[path, method] = _Leaf(names, paths)
    return leaves[path, method]


def _caller(line: Line | None, method: str, leaves: Sequence[_Leaf], depth: int) -> Caller:
    """The caller to which the first names of these leaves lead."""
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


# Paths in words.


def label(line: Line) -> str:
    """`train.py:41 main`, or what people know the framework's part by.

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
    """The lines on a path; none if it is not known."""
    return [] if path is None else [data.lines[index] for index in data.paths[path]]


def path_text(data: TraceData, path: int | None) -> str | None:
    """A path as one text, `train.py:41 main > Model.fit > Adam.apply_gradients`; None for none."""
    return " > ".join(map(label, lines_of(data, path))) or None


def nearest(data: TraceData, path: int | None) -> Line | None:
    """The last line of the program on a path; None if none is known."""
    return next((line for line in reversed(lines_of(data, path)) if line.file), None)


def known(data: TraceData) -> bool:
    """Whether the trace knows any caller, or there was none to know."""
    return bool(data.paths) or not data.blocks


LACKING = "This trace knows no callers."
"""What is said where `known` is False."""
