"""Explain why a trace is not as expected, as text: the counts, the differences, the likely cause.

`judge` handles every expectation; `not_judged` handles traces that cannot be judged. The cause
comes from findings; hints cover causes without a finding, such as frozen layers.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from tracer.check.expectation import (
    MAX_NAMES,
    MISSED,
    Claim,
    Expectation,
    JudgedSteps,
    Limits,
    Quantity,
    WrongSteps,
    claim_of,
    columns_of,
    rows_of,
    why_none,
)
from tracer.findings.run_rules import causes
from tracer.layout import Column, Row, Table, paragraph, shown
from tracer.model import callers
from tracer.model.measures import (
    ROLES,
    counted,
    observing,
    require_effects,
    unknown_effects,
    updates,
)
from tracer.model.names import is_meant
from tracer.model.phrases import never_reached, reason, replica_ids, replica_names, steps_label
from tracer.model.records import OBSERVATIONS, Block
from tracer.model.timeline import Steps
from tracer.model.trace import Trace
from tracer.model.words import dialect_of, first_of, first_true, listed, plural, some

WIDTH = 76  # pytest indents a message by 4
_MAX_ROWS = 30
_MAX_APART = 8  # variables with a row each

# Frozen layers of living models, which were not passed.

Frozen = tuple[str, tuple[str, ...]]
"""The name of a frozen layer, and the names of its variables."""


def together(names: Sequence[str]) -> str:
    """The names, shortened for a sentence.

    >>> together(["net/encoder/kernel", "net/encoder/bias"])
    'net/encoder/kernel and bias'
    >>> together(["a/kernel", "a/bias", "b/kernel", "b/bias"])
    'a/kernel, a/bias, b/kernel and 1 more'
    """
    names = [shown(name) for name in names]
    heads = {name.rpartition("/")[0] for name in names}
    if len(heads) == 1 and heads != {""}:
        names = [names[0], *(name.rpartition("/")[2] for name in names[1:])]
    return listed(names, MAX_NAMES)


def are_frozen(layers: Sequence[Frozen]) -> str:
    """`layer encoder is frozen (trainable=False)`."""
    layer, are = plural(len(layers), "layer"), plural(len(layers), "is", "are")
    return f"{layer} {together([name for name, _ in layers])} {are} frozen (trainable=False)"


def not_passed(trace: Trace, names: Sequence[str]) -> str:
    """A sentence that these variables were not passed; if some are frozen, only on these."""
    layers = [each for each in trace.objects.frozen() if not set(names).isdisjoint(each[1])]
    names = [name for _, own in layers for name in own if name in names] or names
    roots = [each.name for i, each in enumerate(trace.optimizers) if each.root == i]
    optimizer = shown(roots[0]) if len(roots) == 1 else "the optimizer"
    why = f": {are_frozen(layers)}" if layers else ""
    return f"{together(names)} {plural(len(names), 'was', 'were')} not passed to {optimizer}{why}"


def names_in(layers: Sequence[Frozen]) -> list[str]:
    """The names of the variables of these layers."""
    return [name for _, names in layers for name in names]


def explaining(claim: Claim) -> list[str]:
    """The variables of frozen layers, if their number is the updates missing in each step.

    All of these variables, or those of the only layer with that number.
    """
    expected = claim.expected
    meant = "*" if expected.variable is None else expected.variable
    is_counted = claim.of_work and not claim.of_steps and len(claim.summaries) == 1
    if not is_counted or not isinstance(meant, str):
        return []
    (summary,), frozen = claim.summaries, claim.trace.objects.frozen()
    times = summary.steps if expected.per_step else 1
    times *= len(summary.replicas) if expected.per_replica else 1
    missing = {(each.low or 0) * times - claim.total(each) for each in claim.failed}
    layers = [[each for each in names if is_meant(meant, each)] for _, names in frozen]
    every, a_step = [*chain(*layers)], sum(summary.steps_on.values())
    fitting = [each for each in (every, *layers) if {len(each) * a_step} == missing]
    explains = claim.trace.complete and (len(fitting) == 1 or every in fitting)
    return fitting[0] if explains and missing != {0} else []


# The likely causes.

_MAX_STRETCHES = 100
"""The most stretches of steps in which callers are looked up."""


def found(claim: Claim, names: Set[str] = frozenset(), short: bool = False) -> dict[str, str]:
    """Texts of findings on these variables, or on all that are meant, with their codes.

    They explain why too little ran if it is `short`, else why too much did. They include advice,
    except for mere information.
    """
    trace, only = claim.trace, claim.selection.variables
    known = [each.name for each in trace.variables]
    names = names or set(known if only is None else map(known.__getitem__, only))
    others = set(known) - names
    failed: str = claim.expected.what
    if claim.of_work:
        failed = f"{'few' if short else 'many'} {'steps' if claim.of_steps else failed}"
    said: dict[str, str] = {}
    for finding in causes(trace, failed, [each.root for each in claim.summaries]):
        concerned = set(finding.variables)
        is_meant = not concerned.isdisjoint(names) or (only is None and not concerned <= others)
        if is_meant if concerned else short or finding.code != "replicas-disagree":
            advice = "" if finding.severity == "info" else f" {finding.advice}"
            said[f"{finding.text}{advice}"] = finding.code
    return said


def likely(
    claim: Claim,
    names: Set[str] = frozenset(),
    short: bool = False,
    parts: Sequence[JudgedSteps] = (),
) -> Iterator[str]:
    """The likely causes of a claim's failure; the arguments are as for `found`."""
    trace, summaries = claim.trace, claim.summaries
    unreached = [each.removesuffix(".") for summary in summaries for each in never_reached(summary)]
    if not any(summary.steps for summary in summaries) and not (trace.calls() and trace.blocks):
        yield from (*unreached, *_unused(claim))
        return
    if claim.selection.methods == frozenset():
        if trace.complete:
            called = ", ".join(shown(method.name) for method in trace.methods)
            yield f"this method was never called; those that were: {called}"
        return
    said = found(claim, names, short)
    yield from () if "override-unreached" in said.values() else unreached
    yield from said
    yield from _graphs(claim, said)
    if claim.selection.methods is None and "steps-skipped" not in said.values():
        yield from _unapplied(parts)
    for wanted in claim.failed:
        yield from _slips(claim, wanted)


def _unused(claim: Claim) -> Iterator[str]:
    """A sentence that no optimizer of the trace was used; none if the trace is incomplete."""
    trace, scope = claim.trace, "the run" if claim.expected.text else "the block"
    names = [shown(each.name) for i, each in enumerate(trace.optimizers) if each.root == i]
    used = f"{plural(len(names), 'was', 'were')} not used in {scope}: did another optimizer train?"
    methods = first_of([shown(method.name) for method in trace.methods], MAX_NAMES)
    frozen = trace.objects.frozen()
    if trace.complete:
        yield first_true(
            (trace.calls(), f"each call of {methods} raised an error: nothing was updated"),
            (frozen, not_passed(trace, names_in(frozen))),
            (names, f"{first_of(names, MAX_NAMES)} {used}"),
            (True, f"no optimizer was used in {scope}"),
        )


def _graphs(claim: Claim, said: Mapping[str, str]) -> Iterator[str]:
    """A sentence that several graphs were traced, or that none ran, unless a finding says so."""
    for summary in claim.summaries:
        graphs, idle = summary.graphs(claim.selection)
        failed = sum(each.failed for each in claim.trace.graphs if each.root == summary.root)
        never_ran = graphs and not summary.total(claim.selection)
        if claim.expected.what == "calls":
            never = f" ({idle:,} of them never ran)" if idle else ""
            name = claim.expected.method or "the optimizer"
            if graphs > 1 and not said:
                yield f"retraced: {name} was called for each of {graphs:,} graphs{never}"
        elif never_ran and "graph-never-ran" not in said.values():
            tracing = f"called while tracing {some(graphs, 'graph')}, and no step reached it"
            raised = (
                "an error in the optimizer ended the graph tracing, so there is no graph to run"
            )
            yield raised if idle and failed >= idle else f"traced but never executed: {tracing}"


def _unapplied(parts: Iterable[JudgedSteps]) -> Iterator[str]:
    """A sentence on steps that got gradients but applied none, so that too little ran."""
    short = [each for each in parts if each.short]
    steps = {each for part in short for each in part.unapplied_steps}
    if steps:
        reasons = [reason(part.summary) for part in short]
        clauses = dict.fromkeys(each.clause for each in reasons if each.text)
        why = ", or ".join(clauses) or reasons[0].clause
        yield f"gradients of {in_steps(sorted(steps))} were not applied: {why}"


def _slips(claim: Claim, wanted: Limits) -> Iterator[str]:
    """Hints for a number that is right for another expectation."""
    expected, number, total = claim.expected, wanted.low, claim.total(wanted)
    if expected.what == "calls" and expected.method is not None and wanted.holds(total):
        use = "use tracer.assert_executions to count that"
        yield f"{total:,} is how often it was executed: {use}"
    if expected.per_replica or not claim.of_work or not number or number != wanted.high:
        return
    steps = max((each.steps for each in claim.summaries), default=0)
    replicas = max((len(each.replicas) for each in claim.summaries), default=1)
    on = replicas if expected.per_step or expected.text else 1
    on_each = f" on each of {on:,} replicas" if on > 1 else ""
    if steps and total == number * steps * on and not expected.per_step:
        in_each = f" in each of {steps:,} steps" if steps > 1 else " in the step"
        per_step = f"{number}/step" if expected.text else "per_step=True"
        yield f"that is {number:,}{in_each}{on_each}: did you mean {per_step}?"
    elif steps and total == number * steps * on and on > 1:
        yield f"that is {number:,}{on_each}: did you mean per_replica=True?"
    if not expected.per_step and number == _calls(claim, wanted) != total:
        who = (
            "; tracer check counts what ran"
            if expected.text
            else ", and so does tracer.assert_calls"
        )
        yield f"{number:,} is how often Python called it: a mock counts that{who}"


def _calls(claim: Claim, wanted: Limits) -> int:
    """How often Python called the methods in question, with the wanted kinds of gradients."""
    selection, blocks = claim.selection, claim.trace.blocks
    entries = (each for block in blocks for each in block.entries)
    methods = selection.methods or frozenset(e.method for e in entries if selection.holds(e))
    of_calls = replace(selection, roles=ROLES["calls"], kinds=wanted.kinds, methods=methods)
    return sum(each.total * of_calls(each) for each in counted(claim.trace.data))


def callers_at_fault(claim: Claim, parts: Iterable[JudgedSteps]) -> list[str]:
    """The lines that called what failed, the most frequent first.

    They are the lines nearest to the optimizer: of counts that failed, and of steps that ran too
    little. Empty if the trace has no callers.
    """
    counts: Counter[str] = Counter()
    data = claim.trace.data
    blocks: defaultdict[tuple[int, int | None], list[Block]] = defaultdict(list)
    for summary in claim.summaries:
        for block in summary.by_path():
            for replica in (None, block.replica):
                blocks[summary.root, replica].append(block)
    failed = [replace(claim.selection, kinds=each.kinds) for each in claim.failed]
    for part in parts:
        spans = islice(part.timeline.spans(part.wrong.__contains__), _MAX_STRETCHES)
        wrong = [range(first, last + 1) for first, last, _ in spans]
        for block in blocks[part.summary.root, part.replica]:
            ran = not block.runs or any(run.intersect(each) for run in block.runs for each in wrong)
            is_meant = any(each(block) for each in failed) or (block.step and part.short)
            line = callers.nearest(data, block.path)
            if ran and is_meant and line:
                counts[callers.label(line)] += block.total
    return [shown(line) for line, _ in (+counts).most_common()]


# The table of differences.


def table_of_work(claim: Claim, rows: Mapping[WrongSteps, Sequence[int]]) -> list[str]:
    """The rows that differ, each with its replicas, and executions outside any step."""
    columns, several = columns_of(claim), len(claim.trace.replicas) > 1
    in_all = [] if claim.expected.per_step else ["in all"]
    noun = dialect_of(claim.trace.data).variable
    every = {index for each in claim.summaries for index in each.variables}
    few = len({row.name for row in rows}) <= _MAX_APART
    alike: dict[tuple[Any, ...], list[str]] = {}
    for row in sorted(rows):
        is_named = (few and any(row.counts)) or len(claim.summaries) > 1
        apart = row.name if is_named else ""
        same = row.steps, row.counts, row.note, tuple(rows[row]), apart
        alike.setdefault(same, []).append(row.name)
    lines = []
    for (steps, counts, note, replicas, _), names in _fewest_first(alike):
        total = sum(counts) * sum(each.number for each in steps) * len(replicas) * len(names)
        on = [_ids(claim, replicas)] * several
        cells = [steps_text(steps), *on, *counts, *[total for _ in in_all]]
        of_all = len(names) == len(every) > 1 and claim.selection.variables is None
        lines.append(row_of(f"each {noun}" if of_all else _named(names), cells, note))
    for summary in claim.summaries if not claim.of_steps else ():
        outside = [summary.outside(each) for each in columns.values()]
        if any(outside):
            cells = [*"-" * (1 + several), *outside, *[sum(outside) for _ in in_all]]
            lines.append(row_of("outside any step", cells, "a direct call"))
    header = "method" if claim.of_steps else noun
    return as_lines(header, ["per step", *["replica"] * several, *columns, *in_all], lines)


def _fewest_first(alike: Mapping[Any, list[str]]) -> list[tuple[Any, list[str]]]:
    """The rows with the names they apply to: rows of few variables first."""
    return sorted(alike.items(), key=lambda each: len(each[1]))


def _named(names: Sequence[str]) -> str:
    """The names; the first one and the number of others if they are longer than half a line."""
    return text if len(text := listed(names)) <= WIDTH // 2 else first_of(names, 1)


def table_of_calls(claim: Claim) -> list[str]:
    """How often each method or variable was called, by context."""
    calls, contexts = claim.calls(), ["eager", "tracing"]
    names = dict.fromkeys(name for name, _ in calls)
    rows = [row_of(name, [calls.get((name, each), 0) for each in contexts]) for name in names]
    return as_lines("calls of", contexts, rows)


def rows_of_missed(claim: Claim) -> list[tuple[str, Row]]:
    """The targets that were not updated, with what happened to each instead."""
    missed = []
    for target in claim.expected.targets or ():
        patterns = [] if target.index is None else claim.patterns_of.get(target.index, [])
        if not patterns and _is_sharded(claim, target.index):
            continue  # other ranks hold the whole variable
        made, *counts = (sum(each.total(of) for each in patterns) for of in (updates, *MISSED))
        traced = any(each.entries for each in patterns)
        nothing = first_true(
            (not claim.trace.complete, "not seen"),
            (
                not (claim.patterns_of or any(each.steps for each in claim.summaries)),
                "no step ran",
            ),
            (True, "never passed to the optimizer"),
        )
        note = why_none(made, counts, "its graph never ran" if traced else nothing)
        if note:
            missed.append((target.name, row_of(target.name, counts[1::-1], note)))
    return missed


def _is_sharded(claim: Claim, index: int | None) -> bool:
    return index is not None and claim.trace.variables[index].shards > 1


def row_of(name: str, cells: Iterable[object], note: str = "") -> Row:
    texts = (f"{each:,}" if isinstance(each, int) else str(each) for each in cells)
    return Row(shown(name) or "''", tuple(texts), note)


def _ids(claim: Claim, replicas: Sequence[int]) -> str:
    """`0, 1`, or `all 8`."""
    ids = replica_ids(claim.trace)
    names = shown(first_of([ids[index] for index in replicas], MAX_NAMES))
    return f"all {len(ids):,}" if len(replicas) == len(ids) > MAX_NAMES else names


def steps_text(steps: Sequence[Steps]) -> str:
    """The steps as text; of many stretches, only the first.

    >>> steps_text([Steps(1, 15, 3, 4), Steps(20, 20, 1), Steps(24, 25, 2), Steps(31, 33, 3)])
    '1-3, 5-7 … 13-15, 20, 24-25 and 3 more'
    """
    names = ", ".join(map(steps_label, steps[:MAX_NAMES]))
    rest = sum(each.number for each in steps[MAX_NAMES:])
    return f"{names} and {rest:,} more" if rest else names


def in_steps(steps: Sequence[Steps]) -> str:
    """`step 33`, or `steps 1-3, 5-7 … 13-15`."""
    return f"{plural(sum(each.number for each in steps), 'step')} {steps_text(steps)}"


def as_lines(header: str, columns: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """The lines of the table with these rows, at most `_MAX_ROWS` of them; empty without rows."""
    ranked = sorted(range(len(rows)), key=lambda index: (not rows[index].note, index))
    kept = [rows[index] for index in sorted(ranked[:_MAX_ROWS])]  # rows with notes first
    below = [f"… and {some(len(rows) - _MAX_ROWS, 'more row')}"] * (len(rows) > _MAX_ROWS)
    named = [Column(each, left=each in ("per step", "replica")) for each in columns]
    table = Table(header, named, kept, below=below)
    return [line.plain for line in table.lines(WIDTH)] if rows else []


# The judge.

_TABLES: Mapping[Quantity, Callable[[Claim], list[str]]] = {
    "steps": lambda claim: [],
    "calls": table_of_calls,
}
"""The tables of failures that do not concern single variables."""


def of_expected(trace: Trace, expected: Expectation, *, partial: bool = False) -> str:
    """Why the trace is not as `expected`; empty if it is.

    An incomplete trace is never as expected; with `partial`, its counts are judged all the same.

    Raises `tracer.UnknownName` for a variable that the trace does not have, and for effects if it
    has none.
    """
    text = judge(trace, expected, notes=not partial)
    unseen = unknown_effects(trace.data) if is_of_effects(expected) else []
    if text or partial or (trace.complete and not unseen):
        return text
    why = first_of(unseen, 1) if trace.complete else "the trace is incomplete"
    return text_of(trace, [_head(expected, each, f"but {why}") for each in expected.wanted])


def is_of_effects(expected: Expectation) -> bool:
    """True if it concerns effects, which must have been recorded."""
    return expected.what in OBSERVATIONS


def judge(trace: Trace, expected: Expectation, notes: bool = True) -> str:
    """How the trace differs from `expected`; empty if it does not. Raises as `of_expected`."""
    claim = claim_of(trace, expected)
    if expected.targets is not None:
        return _of_targets(claim, notes)
    if is_of_effects(expected):
        require_effects(trace.data, expected.what, trace.steps)
        noted = unknown_effects(trace.data)  # `of_expected` and `check` fail for these
        if not noted and (apart := _not_compared(claim)):
            return not_judged(
                trace, expected.wanted, f"nothing was compared in some steps of {apart}"
            )
    parts = [
        JudgedSteps(claim, each, on) for each in claim.summaries for on in claim.replicas(each)
    ]
    got = {each: _got(claim, parts, at) for at, each in enumerate(expected.wanted)}
    claim = replace(claim, failed=tuple(each for each in got if got[each]))
    heads = [_head(expected, each, got[each]) for each in claim.failed]
    if not heads:
        return ""
    if expected.what in _TABLES:
        table = _TABLES[expected.what](claim)
        return text_of(trace, heads, table, likely(claim), notes=notes)
    rows = rows_of(parts)
    if all(any(row.counts) for row in rows) and (frozen := explaining(claim)):
        cause = not_passed(trace, frozen)
        return text_of(trace, heads, causes=[cause], notes=notes)
    table = table_of_work(claim, rows)
    names = {trace.variables[row.variable].name for row in rows if row.variable >= 0}
    why = likely(claim, names, any(each.short for each in parts), parts)
    return text_of(trace, heads, table, why, callers_at_fault(claim, parts), notes)


def _not_compared(claim: Claim) -> str:
    """The optimizers that made updates in steps whose effects are not known."""
    names = claim.trace.derived(replica_names)
    compared = observing("compared")
    apart = (
        f"{shown(summary.optimizers[0].name)}{f' on {names[on]}' * (len(names) > 1)}"
        for summary in claim.summaries
        for on in summary.replicas
        if any(made and not seen for made, seen in summary.spread(updates, compared, replica=on))
    )
    return first_of(list(apart), MAX_NAMES)


def _head(expected: Expectation, wanted: Limits, got: str) -> str:
    """`updates: expected 4 in each step, got 3 in each of 8 steps`."""
    return f"{wanted.what}: expected {wanted}{expected.where}, {got}"


def _got(claim: Claim, parts: Iterable[JudgedSteps], number: int) -> str:
    """The actual counts, with their replicas or steps; empty if as wanted.

    `number` is the index of the asserted count.
    """
    trace, expected, wanted = claim.trace, claim.expected, claim.expected.wanted[number]
    if expected.per_step and not any(summary.steps for summary in claim.summaries):
        return "but no step ran"
    got: dict[str, list[str]] = {}
    if expected.per_step:
        for part in parts:
            got.setdefault(part.got(number), []).append(part.name)
    else:
        for replica in dict.fromkeys(part.replica for part in parts) or [None]:
            total = claim.counted(wanted, replica)
            text = "" if wanted.holds(total) else f"got {total:,}"
            name = "" if replica is None else shown(trace.derived(replica_names)[replica])
            got.setdefault(text, []).append(name)
    texts = (
        f"{each} ({first_of(got[each], 3)})" if any(got[each]) else each for each in got if each
    )
    return first_of([*texts], 5, "; ")


def _of_targets(claim: Claim, notes: bool) -> str:
    """Why some targets were not updated; empty if all were."""
    missed = rows_of_missed(claim)
    if not missed:
        return ""
    got = f"got none for {len(missed):,} of them"
    columns = ["gradients", "None"]
    alike: dict[tuple[Any, ...], list[str]] = {}
    for name, row in missed:
        apart = name if len(missed) <= _MAX_APART else ""
        alike.setdefault((row.cells, row.note, apart), []).append(name)
    rows = [row_of(_named(names), *same) for (*same, _), names in _fewest_first(alike)]
    table = as_lines("variable", columns, rows)
    why = likely(claim, {name for name, _ in missed}, short=True)
    heads = [_head(claim.expected, each, got) for each in claim.expected.wanted]
    return text_of(claim.trace, heads, table, why, notes=notes)


def not_judged(
    trace: Trace,
    wanted: Iterable[Limits],
    why: str,
    instead: str = "",
    causes: Iterable[str] = (),
) -> str:
    """A text that the counts cannot be judged, why, and what the trace has instead."""
    heads = [f"{each.what}: expected {each}, but {why}" for each in wanted]
    lines = [line.plain for line in paragraph(shown(instead), WIDTH)] if instead else []
    return text_of(trace, heads, lines, causes)


def incomplete(trace: Trace) -> str:
    """Why an incomplete trace cannot be judged; empty for a complete one."""
    head = "what was not seen cannot be asserted"
    return "" if trace.complete else text_of(trace, [head])


def text_of(
    trace: Trace,
    heads: Iterable[str],
    table: Iterable[str] = (),
    causes: Iterable[str] = (),
    callers: Sequence[str] = (),
    notes: bool = True,
) -> str:
    """The text of a failure: the wrong counts, the table, the callers and the likely causes.

    With `notes`, it includes the notes of an incomplete trace.
    """
    why = list(dict.fromkeys(causes))
    called = paragraph(f"Called from {first_of(callers, MAX_NAMES)}", WIDTH) if callers else []
    lines = list(heads)
    if notes and not trace.complete:
        lines += _items('The trace is incomplete, so its counts are "at least":', trace.notes)
    lines += ["", *table] if table else []
    lines += ["", *(line.plain for line in called)] if called else []
    lines += _items("Likely cause:" if len(why) == 1 else "Likely causes:", why) if why else []
    return "\n".join(lines)


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]
