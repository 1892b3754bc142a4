"""The sentences at the top of a report and of each optimizer, the same in all formats.

The first is the question, "How often did `_resource_apply_dense` run?", with its answer.
"""

from collections.abc import Collection

from tracer.errors import shown
from tracer.model import counts as measures
from tracer.model.evidence import NoStep
from tracer.model.facts import no_steps
from tracer.model.phrases import (
    brand_of,
    class_of,
    endings,
    never_reached,
    program_lines,
    reason,
    reason_for_all,
    replica_noun,
)
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.model.words import all_true, dialect_of, first_true, listed, plural, some, span, times

UNFINISHED = "UNFINISHED: the run went on, or was killed, after this was written."


def question(trace: Trace) -> str:
    """The question that `answer` answers, with the apply methods of this run."""
    names = dict.fromkeys(name for summary in summaries_of(trace) for name in _names(summary))
    default = f"How often did {listed([*names]) or 'the apply methods'} run?"
    return dialect_of(trace.data).question or default


def answer(trace: Trace) -> str:
    """How often the apply methods ran: on a line for each optimizer, and how often Python called.

    The two are never added up. In an incomplete trace, all counts are "at least". If the program
    overrides a method that nothing calls, the answer begins with it, because that is the user's
    question.
    """
    return "\n".join(" ".join(filter(None, pair)) for pair in sentences(trace))


def sentences(trace: Trace, roots: Collection[int] | None = None) -> list[tuple[str, str]]:
    """What ran and what Python called, for each optimizer or for `roots`; named if not alone.

    The second is empty for an optimizer that nothing called.
    """
    summaries, lines, pairs = summaries_of(trace), program_lines(trace), []
    for summary in summaries:
        if roots is not None and summary.root not in roots:
            continue
        known = any(summary.evidence(NoStep))
        if not summary.steps and (known or not summary.methods):
            pairs.append((shown(no_steps(summary)), ""))
            continue
        made = f" ({shown(lines[summary.root])})" if summary.root in lines else ""
        name = f"{shown(summary.optimizers[0].name)}{made}: " if len(summaries) > 1 else ""
        unreached = never_reached(summary) if summary.dialect.apply_methods else []
        pairs.append((name + " ".join([*unreached, *_executions(summary)]), _calls(summary)))
    return pairs or [("No optimizer was traced.", "So there is nothing to count.")]


def in_all(trace: Trace) -> list[str]:
    """The totals of several optimizers."""
    summaries, least = summaries_of(trace), "" if trace.complete else "at least "
    steps = some(sum(summary.steps for summary in summaries), "step")
    updates = some(sum(summary.total(measures.updates) for summary in summaries), "update")
    said = f"{len(summaries):,} optimizers: {least}{steps} and {updates} in all."
    return [said] if len(summaries) > 1 else []


def warnings(trace: Trace) -> list[str]:
    """What readers must know before the counts: the run is unfinished, failed, or is incomplete."""
    incomplete = 'INCOMPLETE: the counts are "at least", unless a note says otherwise.'
    unfinished = all_true((not trace.finished, UNFINISHED))
    return [*unfinished, *endings(trace), *all_true((not trace.complete, incomplete))]


def headline(summary: Summary, named: bool) -> str:
    """`Adam (tf_keras legacy) under MirroredStrategy: 64 steps, 5 variables, 2 replicas`."""
    trace, passed, replicas = summary.trace, summary.passed, len(summary.replicas)
    root, *nested = summary.optimizers
    copy, strategy = replica_noun(trace), trace.environment.get("strategy")
    line = program_lines(trace).get(summary.root)
    shards = {trace.variables[index].shards for index in passed} or {1}
    ways = f" sharded {'up to ' if len(shards) > 1 else ''}{max(shards):,} ways"
    made = all_true(
        (named and root.name != class_of(root), f' "{root.name}"'),
        (line, f" of {line}"),
        (nested, f" around {', '.join(map(class_of, nested))}"),
        (True, f" ({brand_of(root, trace)})"),
        (strategy, f" under {strategy}"),
    )
    did = all_true(
        (True, f"{'' if trace.complete else 'at least '}{some(summary.steps, 'step')}"),
        (
            True,
            ("" if passed == summary.variables else f"{len(passed):,} of ")
            + some(len(summary.variables), summary.dialect.variable)
            + (ways if max(shards) > 1 else ""),
        ),
        (replicas > 1, some(replicas, copy)),
        (copy == "replica" and len(summary.workers) > 1, some(len(summary.workers), "worker")),
        (summary.only_worker, f"in {summary.only_worker}"),
    )
    return shown(f"{class_of(root)}{''.join(made)}: {', '.join(did)}")


def _names(summary: Summary) -> list[str]:
    """The names of the methods in question."""
    return [shown(summary.trace.methods[index].name) for index in summary.apply_methods]


# What ran.


def _executions(summary: Summary) -> list[str]:
    """A sentence on each method, or on the updates if no method makes them."""
    if not summary.dialect.apply_methods:
        return [_ran(summary, "", measures.updates) + _nothing_updated(summary)]
    said = [
        _ran(summary, name, measures.of_methods([index]))
        for index, name in zip(summary.apply_methods, _names(summary), strict=True)
    ] or [f"No apply method ran in {some(summary.steps, 'step')}"]
    return [*(f"{each}." for each in said[:-1]), said[-1] + _nothing_updated(summary)]


def _ran(summary: Summary, name: str, measure: measures.Measure) -> str:
    """`update_step ran 4 times in each of 16 steps: 64 executions in 64 steps`.

    The rate, its steps and its replicas multiply to the total: ranges, if replicas differ.
    """
    least = "" if summary.trace.complete else "at least "
    outside, steps = summary.outside(measure), [*summary.steps_on.values()] or [0]
    total, lost = summary.total(measure) - outside, summary.step_unknown(measure)
    spreads = [summary.spread(measure, replica=replica) for replica in summary.replicas]
    rates = [count for spread in spreads for (count,) in spread if count] or [0]
    ran_in = [spread.total() - spread[(0,)] for spread in spreads] or [0]
    rate, within = (min(rates), max(rates)), some((min(ran_in), max(ran_in)), "step")
    each = f"each of {within}" if max(ran_in) > 1 else within
    each, often = ("each step", "a step") if ran_in == steps else (each, f"in {each}")
    noun, number = replica_noun(summary.trace), len(summary.replicas)
    where = f" on each of {some(number, noun)}" if number > 1 else ""
    made = "kept" if summary.total(measures.discarded) else summary.dialect.made
    never = "never ran" if summary.trace.complete else "was not seen to run"
    ran = first_true(
        (not total + outside, f"{name} {never}: " if name else f"No update was {made}: "),
        (lost or not total, f"{name}: " if name else ""),
        (name, f"{name} ran {times(rate)} {often}{where}: "),
        (True, f"{each.capitalize()} {made} {some(rate, 'update')}{where}: "),
    )
    counted = f"{least}{total:,} {plural(total, 'execution' if name else 'update')}"
    unknown = f"; the step of {lost:,} of them is not known" if lost else ""
    direct = f" and {outside:,} outside any step" if outside else ""
    return f"{ran}{counted} in {least}{some((min(steps), max(steps)), 'step')}{unknown}{direct}"


def _nothing_updated(summary: Summary) -> str:
    """The end of a sentence: how many steps updated nothing, why, and what was thrown away."""
    empty = [summary.spread(measures.updates, replica=each)[(0,)] for each in summary.asked_on]
    none, lost = reason_for_all(summary), summary.total(measures.discarded)
    known = summary.total(measures.updates) and not summary.step_unknown(measures.updates)
    said = none.in_brackets if none else ""
    if any(empty) and known:
        number = span((min(empty), max(empty)))
        said = f", {number} of which updated nothing{reason(summary).in_brackets}"
    were = f"{plural(lost, 'was', 'were')} computed and thrown away"
    no_update = f"of them {were}, so {plural(lost, 'it is no update', 'they are no updates')}"
    thrown = no_update if summary.dialect.apply_methods else f"more {were}"
    return f"{said}; {lost:,} {thrown}." if lost else f"{said}."


# What Python called.


def _calls(summary: Summary) -> str:
    """How often Python called the methods in question, eagerly and while it traced graphs."""
    methods, by_method = summary.trace.methods, summary.dialect.apply_methods
    of_steps = [index for index in reversed(summary.methods) if methods[index].role == "step"]
    chosen = summary.apply_methods if by_method else of_steps
    if by_method and not chosen:
        return "Python did not call one either."
    names = listed([shown(methods[index].name) for index in chosen])
    body, verb = ("Their Python bodies", "were") if len(chosen) > 1 else ("Its Python body", "was")
    subject = f"{body} {verb}" if by_method else f"{names or summary.dialect.step_method} {verb}"
    calls = [summary.calls(index) for index in chosen]
    eager, tracing = (sum(each[context] for each in calls) for context in (0, 1))
    ran = measures.of_methods(chosen)
    if not eager + tracing:
        when = "while the tracer watched" if summary.total(ran) else "either"
        return f"{subject} not called {when}."
    (graphs, idle), noun = summary.graphs(ran), summary.dialect.program
    never = ", which never ran" if idle == graphs else f"; {idle:,} of them never ran"
    of = f" {some(graphs, noun)}{never if idle and not summary.idle_as_usual else ''}"
    traced = f"while tracing{of if graphs else ''}"
    every_time = {1: "", 2: "both times "}.get(eager + tracing, "all ")
    how = first_true(
        (eager and tracing, f": {eager:,} eagerly, {tracing:,} {traced}"),
        (tracing, f", {every_time}{traced}"),
        (by_method, f", {every_time}eagerly"),
    )
    number = times(eager + tracing)
    if len(calls) > 1:
        number = f"{listed([f'{sum(each):,}' for each in calls])} times"
    least = "" if summary.trace.complete else "at least "
    return f"{subject} called {least}{number}{how}."
