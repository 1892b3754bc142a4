"""The likely causes of counts that are not as expected, each in one line of text.

A finding that says why is the cause; hints are what no finding says.
"""

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence, Set

from tracer.findings.catalogue import Finding, causes
from tracer.layout import shown
from tracer.model import callers
from tracer.model.apply_methods import never_reached
from tracer.model.measures import ineffective
from tracer.model.records import Block, Kind
from tracer.model.skipped_steps import reason
from tracer.model.summary import Summary
from tracer.model.wording import some
from tracer.testing import frozen_layers
from tracer.testing.expected import Claim, Wanted, of_kinds
from tracer.testing.failure_rows import MAX_NAMES, Differences, Span, label, length, listed

_MAX_SPANS = 20
"""The most stretches of steps in which callers are looked up."""


def found(claim: Claim, names: Set[str] | None = None, short: bool = False) -> dict[str, list[str]]:
    """What findings say of these variables, or of all that are meant, by the finding's code.

    Whether it is why too little ran, if that is so, or why too much did.
    """
    trace, only = claim.trace, claim.selection.variables
    known = [each.name for each in trace.variables]
    if names is None:
        names = set(known if only is None else map(known.__getitem__, only))
    others = set(known) - names
    said: dict[str, list[str]] = {}
    for finding in causes(trace, _failed(claim, short), [each.root for each in claim.summaries]):
        concerned = set(finding.variables)
        is_meant = not concerned.isdisjoint(names) or (only is None and not concerned <= others)
        if is_meant if concerned else short or finding.code != "replicas-disagree":
            said.setdefault(finding.code, []).append(_sentence(finding))
    return said


def _failed(claim: Claim, short: bool) -> str:
    """What is not so, as `findings.rule.Failed` has it."""
    what = claim.expected.what
    if what not in ("updates", "executions"):
        return what
    if any(claim.trace.methods[each].role == "step" for each in claim.selection.methods or ()):
        what = "steps"
    return f"{'few' if short else 'many'} {what}"


def _sentence(finding: Finding) -> str:
    """What it says, and what to do if it is no mere information."""
    return finding.text if finding.severity == "info" else f"{finding.text} {finding.advice}"


def _texts(said: Mapping[str, Sequence[str]]) -> Iterator[str]:
    return (text for texts in said.values() for text in texts)


def of_executions(claim: Claim, differences: Differences) -> Iterator[str]:
    """Why executions are not as expected."""
    trace, summaries, selection = claim.trace, claim.summaries, claim.selection
    called = _calls_by_kind(claim)
    if not any(summary.steps for summary in summaries) and not any(called.values()):
        yield from _unreached(summaries)
        yield from unused(claim)
        return
    if selection.methods == frozenset():
        yield from _not_called(claim)
        return
    rows = differences.rows
    names = None
    if rows and all(row.order >= 0 for row in rows):
        names = {trace.variables[row.order].name for row in rows}
    said = found(claim, names, differences.short if rows else _is_short(claim))
    if "override-unreached" not in said:
        yield from _unreached(summaries)
    yield from _texts(said)
    yield from _never_ran(claim, said)
    if differences.unapplied and selection.methods is None and "steps-skipped" not in said:
        yield _unapplied(summaries, sorted(differences.unapplied))
    for wanted in claim.failed:
        yield from _slips(claim, wanted, called)


def of_effects(claim: Claim) -> Iterator[str]:
    """Why effects are not as expected."""
    yield from _texts(found(claim))


def of_calls(claim: Claim) -> Iterator[str]:
    """Why Python calls are not as expected."""
    if not calls_by_name(claim):
        yield from _not_called(claim) if claim.trace.methods else unused(claim)
        return
    said = found(claim)
    yield from _texts(said)
    method, selection = claim.expected.method, claim.selection
    for summary in claim.summaries if not said else ():
        graphs, idle = summary.graphs(selection.count)
        if graphs > 1:
            never = f" ({idle:,} of them never ran)" if idle else ""
            name = "the optimizer" if method is None else method
            yield f"retraced: {name} was called for each of {graphs:,} graphs{never}"
    executed = sum(summary.total(selection.count) for summary in claim.summaries)
    if method is not None and any(wanted.holds(executed) for wanted in claim.failed):
        yield (
            f"{executed:,} is how often it was executed: use tracer.assert_executions to count that"
        )


def of_targets(claim: Claim, missed: Set[str]) -> Iterator[str]:
    """Why variables with these names were not updated, or not changed."""
    said = found(claim, missed, short=True)
    yield from _texts(said)
    yield from _never_ran(claim, said)
    if not any(block.total for block in claim.trace.blocks):
        yield from unused(claim)


def _is_short(claim: Claim) -> bool:
    return any(
        sum(claim.total(summary, wanted) for summary in claim.summaries) < (wanted.low or 0)
        for wanted in claim.failed
    )


def _unreached(summaries: Iterable[Summary]) -> Iterator[str]:
    return (each.removesuffix(".") for summary in summaries for each in never_reached(summary))


def unused(claim: Claim) -> Iterator[str]:
    """That no optimizer of the trace was used; of a trace that is not complete nobody knows."""
    trace, scope = claim.trace, claim.expected.words.scope
    if not trace.complete:
        return
    if trace.calls():
        if not trace.blocks:
            methods = listed([shown(method.name) for method in trace.methods], MAX_NAMES)
            yield f"an error ended each call of {methods}: nothing was updated"
        return
    names = [shown(each.name) for i, each in enumerate(trace.optimizers) if each.root == i]
    if frozen := trace.objects.frozen():
        yield frozen_layers.of_layers(trace, frozen)
    elif not names:
        yield f"no optimizer was used in {scope}"
    else:
        was = "was" if len(names) == 1 else "were"
        which = listed(names, MAX_NAMES)
        yield f"{which} {was} not used in {scope}: did another optimizer train?"


def _never_ran(claim: Claim, said: Container[str]) -> Iterator[str]:
    """That what is meant was traced, and no graph of it ran, unless a finding says so."""
    for summary in claim.summaries if "graph-never-ran" not in said else ():
        graphs, idle = summary.graphs(claim.selection)
        ended = sum(each.failed for each in claim.trace.graphs if each.root == summary.root)
        if not graphs or summary.total(claim.selection):
            continue
        if idle and ended >= idle:
            yield "an error ended the tracing in the optimizer, so there is no graph to run"
            continue
        never = "which never ran" if graphs == 1 else "none of which ever ran"
        known = [each.idle for each in claim.trace.graphs if each.root == summary.root]
        if known and idle > sum(known):  # the graph ran, and not the branch in it
            never = "in a part that no step reached"
        yield f"traced but never executed: called while tracing {some(graphs, 'graph')}, {never}"


def _unapplied(summaries: Sequence[Summary], spans: Sequence[Span]) -> str:
    reasons = [reason(summary) for summary in summaries]
    clauses = dict.fromkeys(each.clause for each in reasons if each.text) or [reasons[0].clause]
    steps = "step" if length(spans) == 1 else "steps"
    return f"gradients of {steps} {label(spans, 3)} were not applied: {', or '.join(clauses)}"


def _not_called(claim: Claim) -> Iterator[str]:
    if claim.trace.complete:
        names = listed([shown(method.name) for method in claim.trace.methods])
        yield f"this method was never called; those that were: {names}"


def _slips(claim: Claim, wanted: Wanted, called: Mapping[Kind | None, int]) -> Iterator[str]:
    """Hints for an expectation that is right, but for something else."""
    summaries, expected = claim.summaries, claim.expected
    number, words = wanted.low, expected.words
    if not number or number != wanted.high or expected.per_replica:
        return
    total = sum(claim.total(summary, wanted) for summary in summaries)
    steps = max((summary.steps for summary in summaries), default=0)
    replicas = max((len(summary.replicas) for summary in summaries), default=1)
    each_replica = f"on each of {replicas:,} replicas"
    each_step = f"each of {steps:,} steps" if steps > 1 else "the step"
    if expected.per_step:
        if replicas > 1 and total == number * replicas * steps:
            yield f"that is {number:,} {each_replica}: did you mean per_replica=True?"
        return
    in_each = words.per_step.format(number=number)
    if words.on_each_replica and replicas > 1:
        if total == number * steps * replicas:
            yield (f"that is {number:,} in {each_step} {each_replica}: did you mean {in_each}?")
    elif total == number * steps and steps > 1:
        yield f"that is {number:,} in {each_step}: did you mean {in_each}?"
    if any(summary.total(ineffective) for summary in summaries):
        return  # what these calls did instead is said already
    calls = sum(n for kind, n in called.items() if wanted.kinds is None or kind in wanted.kinds)
    if number == calls != total:
        yield f"{number:,} is how often Python called it: a mock counts that{words.calls}"


def _calls(claim: Claim) -> Iterator[tuple[tuple[str, Kind | None, str | None, str], int]]:
    """How often Python called what, as far as the variables are meant.

    By method, kind of gradient, variable and context.
    """
    only = claim.selection.variables
    names = {claim.trace.variables[index].name for index in only or ()}
    split = claim.trace.count("calls", by=("method", "kind", "variable", "context"))
    for key, count in split.items():
        if count and (only is None or key[2] in names):
            yield key, count


def calls_by_name(claim: Claim) -> dict[str, dict[str, int]]:
    """How often Python called a method, eagerly and while tracing, by variable.

    If no method is expected: all methods, by their names.
    """
    calls: dict[str, dict[str, int]] = {}
    method = claim.expected.method
    for (name, _, variable, context), count in _calls(claim):
        if method in (None, name):
            row_name = name if method is None else variable or name
            calls.setdefault(row_name, {"eager": 0, "tracing": 0})[context] += count
    return calls


def _calls_by_kind(claim: Claim) -> Counter[Kind | None]:
    """How often Python called the methods that are meant, by the kind of gradient."""
    methods, roles = claim.selection.methods, claim.selection.roles
    if methods is None:
        methods = frozenset(
            entry.method
            for block in claim.trace.blocks
            for entry in block.entries
            if roles is None or entry.role in roles
        )
    names = {claim.trace.methods[index].name for index in methods}
    calls: Counter[Kind | None] = Counter()
    for (method, kind, _, _), count in _calls(claim):
        if method in names:
            calls[kind] += count
    return calls


def callers_at_fault(claim: Claim) -> list[str]:
    """The lines that called what is not as wanted; what ran most often comes first.

    They are those that are nearest to the optimizer; none if the trace knows no callers.
    """
    counts: Counter[str] = Counter()
    data = claim.trace.data
    for summary in claim.summaries if data.paths else ():
        for block in _at_fault(claim, summary):
            if (line := callers.nearest(data, block.path)) is not None:
                counts[shown(callers.label(line))] += block.total
    return [line for line, _ in counts.most_common()]


def _at_fault(claim: Claim, summary: Summary) -> Iterator[Block]:
    """The blocks that ran where a count is not as wanted; if it is too small, the steps, too."""
    per_step = claim.expected.per_step
    for wanted in claim.failed:
        measure = of_kinds(claim.selection, wanted.kinds)
        for replica in claim.replicas(summary):
            spans = (
                [each[:2] for each in claim.wrong(summary, wanted, replica)] if per_step else None
            )
            short = per_step or claim.total(summary, wanted, replica) < (wanted.low or 0)
            for block in summary.by_path():
                is_meant = replica is None or block.replica == replica
                counts = measure(block) or (short and block.step)
                if is_meant and counts and block.total and _ran_in(block, spans):
                    yield block


def _ran_in(block: Block, spans: Sequence[Span] | None) -> bool:
    """Whether a block ran in any of these steps, or outside any; None are all of them."""
    if spans is None or block.outside:
        return True
    steps = [range(first, last + 1) for first, last in spans[:_MAX_SPANS]]
    return any(run.only(each) is not None for each in steps for run in block.runs)
