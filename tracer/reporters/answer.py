"""The sentences at the top of a report and of each optimizer, the same in all formats.

The first is the question, "How often did `_resource_apply_dense` run?", with its answer.
"""

from collections import Counter
from collections.abc import Collection

from tracer.errors import shown
from tracer.kinds import KINDS
from tracer.model import counts as measures
from tracer.model.evidence import NoStep
from tracer.model.facts import no_steps
from tracer.model.phrases import (
    bracket_of,
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
_OF_MANY = {apply.name for kind in KINDS for apply in kind.apply_methods if apply.many}


def question(trace: Trace) -> str:
    """The question that `answer` answers, with the apply methods of this run."""
    every = summaries_of(trace)
    names = dict.fromkeys(name for each in every for name in _names(each, each.apply_methods))
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


def in_all(trace: Trace, answered: bool) -> list[str]:
    """The totals of several optimizers, unless each of them is `answered` separately.

    Always included if a trainer has a count to compare with.
    """
    summaries, dialect = summaries_of(trace), dialect_of(trace.data)
    steps = some(sum(each.steps for each in summaries), "step")
    updates = some(sum(each.total(measures.updates) for each in summaries), "update")
    least = "" if trace.complete else "at least "
    trainers = "".join(dialect.advice(f"in-all:{each}") for each in trace.environment)
    said = f"{some(len(summaries), 'optimizer')}: {least}{steps} and {updates} in all{trainers}."
    return [said] if not answered or (trainers and len(summaries) > 1) else []


def warnings(trace: Trace) -> list[str]:
    """What readers must know before the counts: the run is unfinished, failed, or is incomplete."""
    incomplete = 'INCOMPLETE: the counts are "at least", unless a note says otherwise.'
    unfinished = all_true((not trace.finished, UNFINISHED))
    return [*unfinished, *endings(trace), *all_true((not trace.complete, incomplete))]


def headline(summary: Summary, named: bool) -> str:
    """`Adam (tf_keras legacy) under MirroredStrategy: 64 steps, 5 variables, 2 replicas`."""
    trace = summary.trace
    root, *nested = summary.optimizers
    cls, copy = shown(class_of(root)), replica_noun(trace)
    around = shown(", ".join(map(class_of, nested)))
    unlike = root.name.replace("_", "").lower() != cls.replace("_", "").lower()
    line = shown(program_lines(trace).get(summary.root, ""))
    strategy = shown(trace.environment.get("strategy", ""))
    least = "" if trace.complete else "at least "
    worker, workers = shown(summary.only_worker), summary.workers
    parts = (
        (unlike or (named and not summary.dialect.named_by_class), f' "{shown(root.name)}"'),
        (line, f" of {line}"),
        (nested, f" around {around}"),
        (True, f" ({shown(brand_of(root, trace))})"),
        (strategy, f" under {strategy}"),
        (True, f": {least}{some(summary.steps, 'step')}"),
        (True, f", {_variables(summary)}"),
        (len(summary.replicas) > 1, f", {some(len(summary.replicas), copy)}"),
        (len(workers) > 1 and copy != "rank", f", {some(len(workers), 'worker')}"),
        (worker, f", in {worker}"),
    )
    return cls + "".join(all_true(*parts))


def _variables(summary: Summary) -> str:
    """`4 variables`, or `4 of 12 variables` if it does not get all of its models."""
    every = some(len(summary.variables), summary.dialect.variable)
    of = "" if summary.passed == summary.variables else f"{len(summary.passed):,} of "
    return f"{of}{every}{_shards(summary)}"


def _shards(summary: Summary) -> str:
    """` sharded 2 ways` if all variables are, ` (3 sharded 2 ways)` if some are."""
    every = Counter(summary.trace.variables[index].shards for index in summary.passed)
    said = [(number, f"sharded {n:,} ways") for n, number in sorted(every.items()) if n > 1]
    if len(every) == 1:
        return "".join(f" {ways}" for _, ways in said)
    return f" ({listed([f'{number:,} {ways}' for number, ways in said])})" if said else ""


def _names(summary: Summary, methods: Collection[int]) -> list[str]:
    return [shown(summary.trace.methods[index].name) for index in methods]


# What ran.


def _executions(summary: Summary) -> list[str]:
    """A sentence on each method, or on the updates if no method makes them."""
    if not summary.dialect.apply_methods:
        return [_ran(summary, "", measures.updates) + _nothing_updated(summary)]
    chosen = summary.apply_methods
    said = [
        _ran(summary, name, measures.of_methods([index]))
        for index, name in zip(chosen, _names(summary, chosen), strict=True)
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
    ran_in = [each.total() - each[(0,)] for each in spreads] or [0]
    rate, within = (min(rates), max(rates)), some((min(ran_in), max(ran_in)), "step")
    of = some((min(steps), max(steps)), "step")
    always = ran_in == steps
    each = "each step" if always else f"{'each of ' if max(ran_in) > 1 else ''}{within}"
    often = "a step" if always else f"in {each}"
    where = _where(summary)
    made = "kept" if summary.total(measures.discarded) else summary.dialect.made
    never = "never ran" if summary.trace.complete else "was not seen to run"
    ran = first_true(
        (not total + outside, f"{name} {never}: " if name else f"No update was {made}: "),
        (lost or not total, f"{name}: " if name else ""),
        (name, f"{name} ran {times(rate)} {often}{where}: "),
        (True, f"{each.capitalize()} {made} {some(rate, 'update')}{where}: "),
    )
    noun = "execution" if name else "update"
    counted = f"{least}{total:,} {plural(total, noun)} in {least}{of}"
    unknown = f"; the step of {lost:,} of them is not known" if lost else ""
    return f"{ran}{counted}{unknown}{f' and {outside:,} outside any step' if outside else ''}"


def _where(summary: Summary) -> str:
    """` on each of 2 replicas`; empty for a single one."""
    noun, number, workers = replica_noun(summary.trace), len(summary.replicas), len(summary.workers)
    of_workers = f" of {workers:,} workers" if workers > 1 and noun != "rank" else ""
    return f" on each of {some(number, noun)}{of_workers}" if number > 1 else ""


def _nothing_updated(summary: Summary) -> str:
    """The end of a sentence: how many steps updated nothing, why, and what was thrown away."""
    empty = [summary.spread(measures.updates, replica=each)[(0,)] for each in summary.asked_on]
    by = f", by {replica_noun(summary.trace)}" if len({*empty}) > 1 else ""
    none, lost = reason_for_all(summary), summary.total(measures.discarded)
    said = bracket_of(none) if none else ""
    if (
        any(empty)
        and summary.total(measures.updates)
        and not summary.step_unknown(measures.updates)
    ):
        number = span((min(empty), max(empty)))
        said = f", {number} of which updated nothing{bracket_of(reason(summary))}{by}"
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
    calls = [summary.calls(index) for index in chosen]
    eager, tracing = (sum(each[context] for each in calls) for context in (0, 1))
    graphs, idle = summary.graphs(measures.of_methods(chosen))
    names = listed(_names(summary, chosen)) or summary.dialect.step_method
    body = "Its Python body was" if len(chosen) == 1 else "Their Python bodies were"
    subject = body if by_method else f"{names} {'were' if len(chosen) > 1 else 'was'}"
    number = times(eager + tracing)
    if len(calls) > 1:
        number = f"{listed([f'{sum(each):,}' for each in calls])} times"
    never = ", which never ran" if idle == graphs else f"; {idle:,} of them never ran"
    never = never if idle and not summary.idle_as_usual else ""
    traced = f"while tracing{f' {some(graphs, summary.dialect.program)}{never}' if graphs else ''}"
    of_many = {methods[index].name for index in chosen} <= _OF_MANY
    each = (
        "counted once for each variable of a call" if of_many else "and each call is one execution"
    )
    all_of_them = {1: "", 2: "both times "}.get(eager + tracing, "all ")
    how = first_true(
        (eager and tracing, f": {eager:,} eagerly, {tracing:,} {traced}"),
        (tracing, f", {all_of_them}{traced}"),
        (by_method, f", {all_of_them}eagerly, {each}"),
    )
    ran = summary.total(measures.of_methods(chosen))
    least = "" if summary.trace.complete else "at least "
    return first_true(
        (by_method and not chosen, "Python did not call one either."),
        (eager + tracing, f"{subject} called {least}{number}{how}."),
        (True, f"{subject} not called{' while the tracer watched' if ran else ' either'}."),
    )
