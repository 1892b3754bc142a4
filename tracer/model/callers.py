"""Who calls: the paths of calls as a tree, with what was executed below each. No TensorFlow."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from tracer.model.records import Block, Line, TraceData, contribution
from tracer.model.selection import EXECUTIONS, ROLES, Selection, counted

UNKNOWN = Line("caller not known")
"""Stands in the tree for the path of what was executed or called and of which no path is known."""


@dataclass(frozen=True)
class Caller:
    """A line of the program, or what of the framework it called, with all that was below it.

    The counts of the children together are those of their parent, but for what it called itself.
    """

    line: Line | None
    """What it is; None for the whole run, the root of the tree."""
    method: str
    """The intercepted apply method that it is, at the end of a path; empty for all others."""
    executions: int
    """How often the work of the methods that were asked for really ran."""
    updates: int
    """How many of these were updates."""
    steps: int
    """How many steps: of each root optimizer on the replica that ran most of them."""
    calls: int
    """How often Python called the methods that were asked for, eagerly and while tracing."""
    variables: int
    """Of how many variables the executions and calls were."""
    replicas: int
    """On how many replicas."""
    paths: frozenset[int]
    """The indices of `TraceData.paths` that run through it."""
    children: tuple["Caller", ...]
    """What it called, the widest branch first: by executions, then by calls."""

    def walk(self) -> Iterator[tuple[tuple["Caller", ...], "Caller"]]:
        """All that is below it, each after its parent and with what leads to it from here."""
        for child in self.children:
            yield (), child
            for above, each in child.walk():
                yield (child, *above), each


@dataclass
class _Node:
    """A caller while its counts are added up."""

    line: Line | None = None
    method: str = ""
    executions: int = 0
    updates: int = 0
    calls: int = 0
    steps: Counter[tuple[int, int]] = field(default_factory=Counter)  # by root and replica
    variables: set[int] = field(default_factory=set)
    replicas: set[int] = field(default_factory=set)
    paths: set[int] = field(default_factory=set)
    children: dict[tuple[Line, str], "_Node"] = field(default_factory=dict)

    def child(self, line: Line, method: str = "") -> "_Node":
        return self.children.setdefault((line, method), _Node(line, method))

    def add_up(self) -> None:
        """Add what is below it to what it called itself."""
        for child in self.children.values():
            child.add_up()
            self.executions += child.executions
            self.updates += child.updates
            self.calls += child.calls
            self.steps += child.steps
            self.variables |= child.variables
            self.replicas |= child.replicas
            self.paths |= child.paths

    def frozen(self) -> Caller:
        children = [each.frozen() for each in self.children.values()]
        children = [each for each in children if each.executions or each.calls]
        steps: dict[int, int] = {}
        for (root, _), number in self.steps.items():
            steps[root] = max(steps.get(root, 0), number)
        return Caller(
            line=self.line,
            method=self.method,
            executions=self.executions,
            updates=self.updates,
            steps=sum(steps.values()),
            calls=self.calls,
            variables=len(self.variables),
            replicas=len(self.replicas),
            paths=frozenset(self.paths),
            children=tuple(sorted(children, key=lambda each: (-each.executions, -each.calls))),
        )


def tree(data: TraceData, selection: Selection, root: int | None = None) -> Caller:
    """The callers of the executions that are selected, of one root optimizer or of all.

    Each path ends in the methods that were executed or called there. What has no path is below a
    line of its own, `UNKNOWN`. Python calls have no step, so those of the whole run count.
    """
    whole = _Node()
    selection = replace(selection, roles=(selection.roles or EXECUTIONS) | ROLES["calls"])
    for block in counted(data):
        if root in (None, block.root) and selection.holds_replica(block.replica):
            _add(whole, data, block, selection)
    whole.add_up()
    return whole.frozen()


def _add(whole: _Node, data: TraceData, block: Block, selection: Selection) -> None:
    called = not ROLES["calls"].isdisjoint(entry.role for entry in block.entries)
    if called and not (block.total and selection.count(block)):
        return
    times = block.total if called else selection.executions(block)
    at = _end_of(whole, data, block.path)
    if block.step and _steps_count(block, selection):
        at.steps[block.root, block.replica] += times
    for entry in filter(selection.holds, block.entries):
        if each := contribution(entry, selection.variables):
            node = _method(at, data.methods[entry.method].name)
            node.calls += times * each if called else 0
            node.executions += 0 if called else times * each
            node.updates += times * each if entry.role == "update" else 0
            node.variables.update(selection.kept(entry.variables))
            node.replicas.add(block.replica)


def _end_of(whole: _Node, data: TraceData, path: int | None) -> _Node:
    """Where a path ends in the tree."""
    node = whole
    for line in (UNKNOWN,) if path is None else (data.lines[index] for index in data.paths[path]):
        node = node.child(line)
    if path is not None:
        node.paths.add(path)
    return node


def _method(node: _Node, method: str) -> _Node:
    """What a method at the end of a path counts for: the end itself, if that is the method."""
    line = node.line
    if line is not None and not line.file and line.function.rpartition(".")[2] == method:
        return node
    return node.child(Line(method), method)


def _steps_count(block: Block, selection: Selection) -> bool:
    """Whether the steps of a block are of an optimizer that is selected."""
    return selection.optimizers is None or any(
        entry.optimizer in selection.optimizers for entry in block.entries
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


def path_text(data: TraceData, path: int | None) -> str | None:
    """A path as one text, `train.py:41 main > Model.fit > Adam.apply_gradients`; None for none."""
    if path is None:
        return None
    return " > ".join(label(data.lines[index]) for index in data.paths[path])


def nearest(data: TraceData, path: int | None) -> Line | None:
    """The last line of the program on a path; None if none is known."""
    if path is None:
        return None
    lines = [data.lines[index] for index in data.paths[path]]
    return next((line for line in reversed(lines) if line.file), None)


def known(data: TraceData) -> bool:
    """Whether the trace knows any caller, or there was none to know."""
    return bool(data.paths) or not data.blocks


LACKING = "This trace knows no callers."
"""What is said where `known` is False."""
