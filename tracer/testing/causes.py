"""The likely causes of counts that are not as expected, each in one line of text.

A finding that says why is the cause; hints are what no finding says.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from itertools import chain, islice

from tracer.findings.rule_list import causes
from tracer.layout import shown
from tracer.model import callers
from tracer.model.apply_methods import never_reached
from tracer.model.measures import ineffective
from tracer.model.records import Block
from tracer.model.selection import ROLES, counted
from tracer.model.skipped_steps import reason
from tracer.model.wording import first_of, first_true, plural, some
from tracer.testing.expected import Claim, Wanted
from tracer.testing.failure_rows import MAX_NAMES, Part, in_steps
from tracer.testing.frozen_layers import names_in, not_handed

_MAX_STRETCHES = 20
"""The most stretches of steps in which callers are looked up."""


def found(claim: Claim, names: Set[str] = frozenset(), short: bool = False) -> dict[str, str]:
    """What findings say of these variables, or of all that are meant, each with its code.

    Whether it is why too little ran, if that is so, or why too much did. They say what to do, too,
    unless they are mere information.
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
    claim: Claim, names: Set[str] = frozenset(), short: bool = False, parts: Sequence[Part] = ()
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
        yield from _unapplied(parts)
    for wanted in claim.failed:
        yield from _slips(claim, wanted)


def _unused(claim: Claim) -> Iterator[str]:
    """That no optimizer of the trace was used; of a trace that is not complete nobody knows."""
    trace, scope = claim.trace, "the run" if claim.expected.text else "the block"
    names = [shown(each.name) for i, each in enumerate(trace.optimizers) if each.root == i]
    used = f"{plural(len(names), 'was', 'were')} not used in {scope}: did another optimizer train?"
    methods = first_of([shown(method.name) for method in trace.methods], MAX_NAMES)
    frozen = trace.objects.frozen()
    if trace.complete:
        yield first_true(
            (trace.calls(), f"an error ended each call of {methods}: nothing was updated"),
            (frozen, not_handed(trace, names_in(frozen))),
            (names, f"{first_of(names, MAX_NAMES)} {used}"),
            (True, f"no optimizer was used in {scope}"),
        )


def _graphs(claim: Claim, said: Mapping[str, str]) -> Iterator[str]:
    """That several graphs were traced, or none of them ran, unless a finding says so."""
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
            raised = "an error ended the tracing in the optimizer, so there is no graph to run"
            yield raised if idle and failed >= idle else f"traced but never executed: {tracing}"


def _unapplied(parts: Iterable[Part]) -> Iterator[str]:
    """In which steps gradients came and none was applied, so that too little ran."""
    short = [each for each in parts if each.short]
    steps = {each for part in short for each in part.unapplied_steps}
    if steps:
        reasons = [reason(part.summary) for part in short]
        clauses = dict.fromkeys(each.clause for each in reasons if each.text)
        why = ", or ".join(clauses) or reasons[0].clause
        yield f"gradients of {in_steps(sorted(steps))} were not applied: {why}"


def _slips(claim: Claim, wanted: Wanted) -> Iterator[str]:
    """Hints for an expectation that is right, but for something else."""
    expected, number, total = claim.expected, wanted.low, claim.total(wanted)
    steps = max((each.steps for each in claim.summaries), default=0)
    replicas = max((len(each.replicas) for each in claim.summaries), default=1)
    if expected.what == "calls" and expected.method is not None and wanted.holds(total):
        use = "use tracer.assert_executions to count that"
        yield f"{total:,} is how often it was executed: {use}"
    if expected.per_replica or not claim.of_work or not number or number != wanted.high:
        return
    on = replicas if expected.per_step or expected.text else 1
    on_each = f" on each of {on:,} replicas" if on > 1 else ""
    in_each = f" in each of {steps:,} steps" if steps > 1 else " in the step"
    per_step = f"{number}/step" if expected.text else "per_step=True"
    who = "; tracer check counts what ran" if expected.text else ", and so does tracer.assert_calls"
    is_each = steps and total == number * steps * on
    # What calls that assigned nothing did instead is said already.
    vain = any(summary.total(ineffective) for summary in claim.summaries)
    mocked = not expected.per_step and not vain and number == _calls(claim, wanted) != total
    hints = {
        f"that is {number:,}{on_each}: did you mean per_replica=True?": (
            is_each and expected.per_step and on > 1
        ),
        f"that is {number:,}{in_each}{on_each}: did you mean {per_step}?": (
            is_each and not expected.per_step
        ),
        f"{number:,} is how often Python called it: a mock counts that{who}": mocked,
    }
    yield from (hint for hint, holds in hints.items() if holds)


def _calls(claim: Claim, wanted: Wanted) -> int:
    """How often Python called the methods that are meant, with gradients of the kinds wanted."""
    selection, blocks = claim.selection, claim.trace.blocks
    entries = (each for block in blocks for each in block.entries)
    methods = selection.methods or frozenset(e.method for e in entries if selection.holds(e))
    of_calls = replace(selection, roles=ROLES["calls"], kinds=wanted.kinds, methods=methods)
    return sum(each.total * of_calls(each) for each in counted(claim.trace.data))


def callers_at_fault(claim: Claim, parts: Iterable[Part]) -> list[str]:
    """The lines that called what is not as wanted; what ran most often comes first.

    They are those that are nearest to the optimizer, of what counts, and of steps that ran too
    little; none if the trace knows no callers.
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
        stretches = (each.ranges() for each in part.timeline.steps_with(part.wrong))
        wrong = [*islice(chain.from_iterable(stretches), _MAX_STRETCHES)]
        for block in blocks[part.summary.root, part.replica]:
            ran = not block.runs or any(run.only(each) for run in block.runs for each in wrong)
            is_meant = any(each(block) for each in failed) or (block.step and part.short)
            line = callers.nearest(data, block.path)
            if ran and is_meant and line:
                counts[callers.label(line)] += block.total
    return [shown(line) for line, _ in (+counts).most_common()]
