"""What stands in a trace file: a `TraceData` as numbered JSON.

A trace file is one JSON object in UTF-8:

    {"format": "optimizer-tracer", "version": 3,
     "complete": true, "notes": [], "environment": {"tensorflow": "2.21.0"},
     "optimizers": [...], "variables": [...], "methods": [...], "replicas": [...],
     "lists": [[], [[0, 4]], [[0, 1], [2, 4]]],
     "blocks": [{..., "entries": [{..., "variables": 1, "times": 1}], "runs": [[1, 1, 64, 1]]}],
     "calls": [{..., "variables": 2, "eager": 0, "tracing": 2}],
     "graphs": [...], "lines": [...], "paths": [[0, 3]], "graph_tracings": [...],
     "effects": [{..., "variables": 1, "total": 3, "runs": [[7, 1, 3, 1]]}]}

The fields are those of `tracer.model.records`, where they are explained, but for one: `variables`
of an entry, of calls and of an effect is an index into `lists`. A list holds indices of variables,
as `[start, stop]` for `start, start + 1, ..., stop - 1`. So each distinct list is written once, and
one of 1,000 variables takes as much space as one of 4. A run is `[first, stride, count, times]`, so
a million regular steps take as much space as ten.

What a reader may rely on: every index is inside its table; every number is at most 2**63 - 1; the
steps of the runs of a block or an effect rise, and the runs hold no more than its total.

History of the number:

- 1: the first format.
- 2: `lines`, `paths`, `graph_tracings` and `effects`; blocks and calls have a `path`. A file of
  version 1 knows no callers and no effects.
- 3: the role `discarded` of an entry. Files of version 2 have none, and say the same otherwise.

A field that a reader may ignore can be added without a new number; readers skip what they do not
know. Any other change takes a new number, and `decode` refuses numbers above its own.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Literal

import msgspec

from tracer.model.records import (
    Block,
    Calls,
    Effect,
    Entry,
    Graph,
    GraphTracing,
    Kind,
    Line,
    Method,
    Observation,
    Optimizer,
    Program,
    Replica,
    Role,
    TraceData,
    Variable,
)
from tracer.model.runs import Run
from tracer.model.wording import some

FORMAT = "optimizer-tracer"
VERSION = 3

MAX_INDICES = 10_000_000
"""The most indices that `lists` may stand for: a small file must not fill the memory."""

_LIMIT = 2**63 - 1
_LATEST = 2.0**37  # seconds since 1970: the year 6325
_Indices = tuple[tuple[int, int], ...]

# `_check` bounds the numbers, not `msgspec.Meta`: with that in a union, msgspec 0.22.0 crashed
# Python at the first garbage collection after an error (https://github.com/msgspec/msgspec/issues/717).


class _Header(msgspec.Struct):
    format: Any = None
    version: Any = None


class _Entry(msgspec.Struct, frozen=True):
    optimizer: int
    method: int
    role: Role
    kind: Kind | None
    variables: int
    times: int


class _Block(msgspec.Struct, frozen=True):
    root: int
    replica: int
    context: Literal["eager", "graph"]
    function: str
    step: bool
    outside: bool
    entries: tuple[_Entry, ...]
    total: int
    runs: tuple[Run, ...]
    graphs: int
    idle: int
    path: int | None = None


class _Calls(msgspec.Struct, frozen=True):
    optimizer: int
    method: int
    kind: Kind | None
    replica: int
    variables: int
    eager: int
    tracing: int
    path: int | None = None


class _Effect(msgspec.Struct, frozen=True):
    root: int
    replica: int
    what: Observation
    variables: int
    total: int
    runs: tuple[Run, ...]


class _File(msgspec.Struct, frozen=True):
    format: str
    version: int
    complete: bool
    notes: tuple[str, ...]
    environment: dict[str, str]
    optimizers: tuple[Optimizer, ...]
    variables: tuple[Variable, ...]
    methods: tuple[Method, ...]
    replicas: tuple[Replica, ...]
    lists: tuple[_Indices, ...]
    blocks: tuple[_Block, ...]
    calls: tuple[_Calls, ...]
    graphs: tuple[Graph, ...] = ()
    finished: bool = True
    only: str = ""
    first_step: int = 1
    programs: tuple[Program, ...] = ()
    lines: tuple[Line, ...] = ()
    paths: tuple[tuple[int, ...], ...] = ()
    graph_tracings: tuple[GraphTracing, ...] = ()
    effects: tuple[_Effect, ...] = ()


def encode(data: TraceData) -> bytes:
    """`data` as the content of a trace file, which `decode` can read.

    Raises `ValueError` or another error with the reason if it cannot be written.

    >>> decode(encode(TraceData((), (), (), (), (), (), notes=("nothing happened",)))).notes
    ('nothing happened',)
    """
    content = msgspec.json.encode(_to_file(data)) + b"\n"
    _from_file(msgspec.json.decode(content, type=_File))  # what is written can be read
    return content


def decode(content: bytes) -> TraceData:
    """The records in the content of a trace file, of this version or an older one.

    Raises `ValueError` with the reason: it is none, is damaged, or was written by a newer tracer.
    """
    file = _typed(content)
    try:
        return _from_file(file)
    except ValueError as error:
        raise ValueError(f"is damaged: {error}") from error


def _typed(content: bytes) -> _File:
    """The content of a trace file, with its types checked.

    Raises `ValueError` with the reason.
    """
    try:
        _check_header(content)
        return msgspec.json.decode(content, type=_File)
    except msgspec.ValidationError as error:
        raise ValueError(f"is damaged: {error}") from error
    except UnicodeDecodeError as error:
        raise ValueError("is not a trace file: not UTF-8 text") from error
    except msgspec.DecodeError as error:
        if "truncated" in str(error):
            raise ValueError("is truncated: the end is missing") from error
        raise ValueError(f"is not a trace file: not JSON ({error})") from error
    except RecursionError as error:
        raise ValueError("is not a trace file: nested too deeply") from error


def _check_header(content: bytes) -> None:
    try:
        header = msgspec.json.decode(content, type=_Header)
    except msgspec.ValidationError as error:
        raise ValueError("is JSON of another program, not a trace file") from error
    if header.format != FORMAT:
        raise ValueError("is JSON of another program, not a trace file")
    if type(header.version) is not int or header.version < 1:
        raise ValueError(f"is damaged: {header.version!r} is no version of the format")
    if header.version > VERSION:
        raise ValueError(
            f"was written by a newer tracer; update tracer to read it (the file has version "
            f"{header.version} of the format, this tracer reads up to {VERSION})"
        )


# Records and what is written of them.


def _to_file(data: TraceData) -> _File:
    lists: dict[tuple[int, ...], int] = {}

    def number(variables: Sequence[int]) -> int:
        return lists.setdefault(tuple(variables), len(lists))

    blocks = tuple(
        _Block(
            root=block.root,
            replica=block.replica,
            context=block.context,
            function=block.function,
            step=block.step,
            outside=block.outside,
            entries=tuple(
                _Entry(e.optimizer, e.method, e.role, e.kind, number(e.variables), e.times)
                for e in block.entries
            ),
            total=block.total,
            runs=block.runs,
            graphs=block.graphs,
            idle=block.idle,
            path=block.path,
        )
        for block in data.blocks
    )
    calls = tuple(
        _Calls(
            c.optimizer,
            c.method,
            c.kind,
            c.replica,
            number(c.variables),
            c.eager,
            c.tracing,
            c.path,
        )
        for c in data.calls
    )
    effects = tuple(
        _Effect(e.root, e.replica, e.what, number(e.variables), e.total, e.runs)
        for e in data.effects
    )
    return _File(
        FORMAT,
        VERSION,
        data.complete,
        data.notes,
        data.environment,
        data.optimizers,
        data.variables,
        data.methods,
        data.replicas,
        tuple(_to_ranges(variables) for variables in lists),
        blocks,
        calls,
        data.graphs,
        data.finished,
        data.only,
        data.first_step,
        data.programs,
        data.lines,
        data.paths,
        data.graph_tracings,
        effects,
    )


def _from_file(file: _File) -> TraceData:
    """The records in `file`. Raises `ValueError` with the reason if they contradict each other."""
    lists = _expand(file.lists, len(file.variables))
    _check_tables(file)
    blocks = tuple(
        _block(file, lists, block, f"blocks[{number}]") for number, block in enumerate(file.blocks)
    )
    calls = tuple(
        _calls(file, lists, calls, f"calls[{number}]") for number, calls in enumerate(file.calls)
    )
    effects = tuple(
        _effect(file, lists, effect, f"effects[{number}]")
        for number, effect in enumerate(file.effects)
    )
    return TraceData(
        file.optimizers,
        file.variables,
        file.methods,
        file.replicas,
        blocks,
        calls,
        file.graphs,
        file.complete,
        file.notes,
        file.environment,
        file.finished,
        file.only,
        file.first_step,
        file.programs,
        file.lines,
        file.paths,
        file.graph_tracings,
        effects,
    )


def _check_tables(file: _File) -> None:
    """Raise `ValueError` if what stands in the file as it is in the records cannot be."""
    _check(1, "first_step", file.first_step)
    for number, program in enumerate(file.programs):
        times = program.started, program.seconds, program.timed_seconds
        if not all(0 <= each < _LATEST for each in times):
            raise ValueError(f"programs[{number}] has no time that can be")
        _check(0, f"programs[{number}].timed_steps", program.timed_steps)
    for number, optimizer in enumerate(file.optimizers):
        _inside(file.optimizers, optimizer.root, f"optimizers[{number}].root")
    for number, variable in enumerate(file.variables):
        sizes = [size for size in variable.shape if size is not None]
        _check(0, f"variables[{number}].shape", *sizes)
    for number, replica in enumerate(file.replicas):
        _check(0, f"replicas[{number}].id", replica.id)
    for number, graph in enumerate(file.graphs):
        where = f"graphs[{number}]"
        _inside(file.optimizers, graph.root, f"{where}.root")
        _inside(file.replicas, graph.replica, f"{where}.replica")
        _check(0, where, graph.idle, graph.steps, graph.after, graph.step_calls)
        _check(max(1, graph.idle), f"{where}.tracings", graph.tracings)
    for number, line in enumerate(file.lines):
        _check(0, f"lines[{number}].number", line.number)
    for number, path in enumerate(file.paths):
        for index in path:
            _inside(file.lines, index, f"paths[{number}]")
    for number, tracing in enumerate(file.graph_tracings):
        where = f"graph_tracings[{number}]"
        _inside(file.graphs, tracing.graph, f"{where}.graph")
        _inside_or_none(file.paths, tracing.path, f"{where}.path")
        _check(0, where, tracing.after)
        if not 0 <= tracing.at < _LATEST or not 0 <= tracing.seconds < _LATEST:
            raise ValueError(f"{where} has no time that can be")


def _block(file: _File, lists: Sequence[tuple[int, ...]], block: _Block, where: str) -> Block:
    _inside(file.optimizers, block.root, f"{where}.root")
    _inside(file.replicas, block.replica, f"{where}.replica")
    _inside_or_none(file.paths, block.path, f"{where}.path")
    _check(0, where, block.total, block.graphs, block.idle)
    entries = []
    for number, e in enumerate(block.entries):
        _inside(file.optimizers, e.optimizer, f"{where}.entries[{number}].optimizer")
        _inside(file.methods, e.method, f"{where}.entries[{number}].method")
        _inside(lists, e.variables, f"{where}.entries[{number}].variables")
        _check(1, f"{where}.entries[{number}].times", e.times)
        variables = lists[e.variables]
        entries.append(Entry(e.optimizer, e.method, e.role, e.kind, variables, e.times))
    _check_runs(block.runs, block.total, where, "execution")
    return Block(
        root=block.root,
        replica=block.replica,
        context=block.context,
        function=block.function,
        step=block.step,
        entries=tuple(entries),
        total=block.total,
        runs=block.runs,
        graphs=block.graphs,
        idle=block.idle,
        outside=block.outside,
        path=block.path,
    )


def _calls(file: _File, lists: Sequence[tuple[int, ...]], calls: _Calls, where: str) -> Calls:
    _inside(file.optimizers, calls.optimizer, f"{where}.optimizer")
    _inside(file.methods, calls.method, f"{where}.method")
    _inside(file.replicas, calls.replica, f"{where}.replica")
    _inside(lists, calls.variables, f"{where}.variables")
    _check(0, where, calls.eager, calls.tracing)
    _inside_or_none(file.paths, calls.path, f"{where}.path")
    return Calls(
        calls.optimizer,
        calls.method,
        calls.kind,
        calls.replica,
        lists[calls.variables],
        calls.eager,
        calls.tracing,
        calls.path,
    )


def _effect(file: _File, lists: Sequence[tuple[int, ...]], effect: _Effect, where: str) -> Effect:
    _inside(file.optimizers, effect.root, f"{where}.root")
    _inside(file.replicas, effect.replica, f"{where}.replica")
    _inside(lists, effect.variables, f"{where}.variables")
    _check(0, where, effect.total)
    _check_runs(effect.runs, effect.total, where, "step")
    return Effect(
        effect.root,
        effect.replica,
        effect.what,
        lists[effect.variables],
        effect.total,
        effect.runs,
    )


def _check_runs(runs: Sequence[Run], total: int, where: str, noun: str) -> None:
    for number, run in enumerate(runs):
        at = f"{where}.runs[{number}]"
        _check(1, at, run.first, run.stride, run.count, run.times, run.last)
    if any(before.last >= after.first for before, after in pairwise(runs)):
        raise ValueError(f"the steps of {where}.runs do not rise")
    if (placed := sum(run.total for run in runs)) > total:
        raise ValueError(f"{where}.runs hold {some(placed, noun)}, more than the total, {total}")


def _inside(table: Sequence[object], index: int, where: str) -> None:
    if not 0 <= index < len(table):
        raise ValueError(f"{where} is {index}, outside a table of {len(table)}")


def _inside_or_none(table: Sequence[object], index: int | None, where: str) -> None:
    if index is not None:
        _inside(table, index, where)


def _check(least: int, where: str, *numbers: int) -> None:
    for number in numbers:
        if not least <= number <= _LIMIT:
            bound = f"less than {least}" if number < least else "more than 2**63 - 1"
            raise ValueError(f"{where} holds {number}, {bound}")


def _to_ranges(indices: Iterable[int]) -> _Indices:
    """The same indices in the same order, each rise by 1 as `(start, stop)`.

    >>> _to_ranges([0, 1, 2, 5, 9, 8])
    ((0, 3), (5, 6), (9, 10), (8, 9))
    """
    ranges: list[tuple[int, int]] = []
    for index in indices:
        if ranges and ranges[-1][1] == index:
            ranges[-1] = (ranges[-1][0], index + 1)
        else:
            ranges.append((index, index + 1))
    return tuple(ranges)


def _expand(lists: Sequence[_Indices], variables: int) -> list[tuple[int, ...]]:
    """What `_to_ranges` was given, for each of `lists`; checked before it takes memory."""
    expanded = []
    held = 0
    for number, ranges in enumerate(lists):
        indices: list[int] = []
        for start, stop in ranges:
            if not 0 <= start < stop <= variables:
                raise ValueError(
                    f"lists[{number}] holds [{start}, {stop}], "
                    f"outside a table of {some(variables, 'variable')}"
                )
            held += stop - start
            if held > MAX_INDICES:
                raise ValueError(f"lists hold more than {MAX_INDICES:,} variables")
            indices.extend(range(start, stop))
        expanded.append(tuple(indices))
    return expanded
