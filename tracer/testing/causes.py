"""The likely causes of counts that are not as expected, each in one line of text.

A finding that says why is the cause; hints are what no finding says.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace

from tracer.findings.catalogue import causes
from tracer.layout import shown
from tracer.model import callers
from tracer.model.apply_methods import never_reached
from tracer.model.measures import ineffective
from tracer.model.records import Block
from tracer.model.skipped_steps import reason
from tracer.model.wording import first_of, plural, some
from tracer.testing.expected import Claim, Wanted, of_kinds
from tracer.testing.failure_rows import MAX_NAMES, Judged, label
from tracer.testing.frozen_layers import names_in, not_handed

_MAX_STRETCHES = 20
"""The most stretches of steps in which callers are looked up."""


def found(claim: Claim, names: Set[str] | None = None, short: bool = False) -> dict[str, str]:
    """What findings say of these variables, or of all that are meant, each with its code.

    Whether it is why too little ran, if that is so, or why too much did. They say what to do, too,
    unless they are mere information.
    """
    trace, only = claim.trace, claim.selection.variables
    known = [each.name for each in trace.variables]
    if names is None:
        names = set(known if only is None else map(known.__getitem__, only))
    others = set(known) - names
    failed: str = claim.expected.what
    if failed in ("updates", "executions"):
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
    names: Set[str] | None = None,
    short: bool = False,
    judged: Sequence[Judged] = (),
) -> Iterator[str]:
    """Why a claim does not hold; the arguments are as for `found`."""
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
        yield from _unapplied(judged)
    for wanted in claim.failed:
        yield from _slips(claim, wanted)


def _unused(claim: Claim) -> Iterator[str]:
    """That no optimizer of the trace was used; of a trace that is not complete nobody knows."""
    trace, scope = claim.trace, "the run" if claim.expected.text else "the block"
    names = [shown(each.name) for i, each in enumerate(trace.optimizers) if each.root == i]
    methods = first_of([shown(method.name) for method in trace.methods], MAX_NAMES)
    if not trace.complete or (trace.blocks and trace.calls()):
        return
    if trace.calls():
        yield f"an error ended each call of {methods}: nothing was updated"
    elif frozen := trace.objects.frozen():
        yield not_handed(trace, names_in(frozen))
    elif names:
        used = f"{plural(len(names), 'was', 'were')} not used in {scope}"
        yield f"{first_of(names, MAX_NAMES)} {used}: did another optimizer train?"
    else:
        yield f"no optimizer was used in {scope}"


def _graphs(claim: Claim, said: Mapping[str, str]) -> Iterator[str]:
    """That several graphs were traced, or none of them ran, unless a finding says so."""
    for summary in claim.summaries:
        graphs, idle = summary.graphs(claim.selection)
        if claim.expected.what == "calls":
            never = f" ({idle:,} of them never ran)" if idle else ""
            name = claim.expected.method or "the optimizer"
            if graphs > 1 and not said:
                yield f"retraced: {name} was called for each of {graphs:,} graphs{never}"
        elif graphs and not summary.total(claim.selection):
            tracing = f"called while tracing {some(graphs, 'graph')}"
            failed = sum(each.failed for each in claim.trace.graphs if each.root == summary.root)
            if "graph-never-ran" in said.values():
                continue
            if idle and failed >= idle:
                yield "an error ended the tracing in the optimizer, so there is no graph to run"
            else:
                yield f"traced but never executed: {tracing}, and no step reached it"


def _unapplied(judged: Iterable[Judged]) -> Iterator[str]:
    """In which steps gradients came and none was applied, so that too little ran."""
    short = [each for each in judged if each.short]
    steps = sorted({each for part in short for each in part.steps(part.unapplied)})
    if steps:
        reasons = [reason(part.summary) for part in short]
        clauses = dict.fromkeys(each.clause for each in reasons if each.text)
        clauses = clauses or {reasons[0].clause: None}
        noun = "step" if sum(each.number for each in steps) == 1 else "steps"
        yield f"gradients of {noun} {label(steps)} were not applied: {', or '.join(clauses)}"


def _slips(claim: Claim, wanted: Wanted) -> Iterator[str]:
    """Hints for an expectation that is right, but for something else."""
    summaries, expected, number = claim.summaries, claim.expected, wanted.low
    total, steps = claim.total(wanted), max((each.steps for each in summaries), default=0)
    if expected.what == "calls" and expected.method is not None and wanted.holds(total):
        use = "use tracer.assert_executions to count that"
        yield f"{total:,} is how often it was executed: {use}"
    countable = expected.what in ("updates", "executions") and not expected.per_replica
    if not countable or not number or number != wanted.high:
        return
    replicas = max((len(each.replicas) for each in summaries), default=1)
    on_each = f" on each of {replicas:,} replicas" if replicas > 1 else ""
    if expected.per_step:
        if on_each and total == number * replicas * steps:
            yield f"that is {number:,}{on_each}: did you mean per_replica=True?"
        return
    if not expected.text:
        replicas, on_each = 1, ""
    if steps and total == number * steps * replicas:
        each_step = f"each of {steps:,} steps" if steps > 1 else "the step"
        asked = f"{number}/step" if expected.text else "per_step=True"
        yield f"that is {number:,} in {each_step}{on_each}: did you mean {asked}?"
    # What calls that assigned nothing did instead is said already.
    vain = any(summary.total(ineffective) for summary in summaries)
    if not vain and number == _calls(claim, wanted) != total:
        counted = "; tracer check counts what ran"
        if not expected.text:
            counted = ", and so does tracer.assert_calls"
        yield f"{number:,} is how often Python called it: a mock counts that{counted}"


def _calls(claim: Claim, wanted: Wanted) -> int:
    """How often Python called the methods that are meant, with gradients of the kinds wanted."""
    selection, blocks = claim.selection, claim.trace.blocks
    entries = (each for block in blocks for each in block.entries)
    methods = selection.methods or frozenset(e.method for e in entries if selection.holds(e))
    meant = replace(of_kinds(selection, wanted.kinds), methods=methods)
    return sum(replace(claim, selection=meant).calls().values())


def callers_at_fault(judged: Iterable[Judged]) -> list[str]:
    """The lines that called what is not as wanted; what ran most often comes first.

    They are those that are nearest to the optimizer; none if the trace knows no callers.
    """
    counts: Counter[str] = Counter()
    for part in judged:
        data = part.claim.trace.data
        for block in _at_fault(part) if data.paths else ():
            if (line := callers.nearest(data, block.path)) is not None:
                counts[shown(callers.label(line))] += block.total
    return [line for line, _ in counts.most_common()]


def _at_fault(part: Judged) -> Iterator[Block]:
    """The blocks that ran where a count is not as wanted; if it is too small, the steps, too."""
    claim, per_step = part.claim, part.claim.expected.per_step
    wrong = [
        range(each.first + at, each.last + 1, each.every or 1)
        for each in part.steps(part.wrong)[:_MAX_STRETCHES]
        for at in range(each.length if each.every else 1)
    ]
    for block in part.summary.by_path():
        counts = any(of_kinds(claim.selection, each.kinds)(block) for each in claim.failed)
        is_meant = counts or (block.step and (per_step or part.short))
        if is_meant and block.total and part.replica in (None, block.replica):
            runs = block.runs if per_step and not block.outside else ()
            if not runs or any(run.only(each) is not None for each in wrong for run in runs):
                yield block
