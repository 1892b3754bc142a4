"""The question, "How often did `_resource_apply_dense` run?", and its answer for one run."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tracer.errors import shown
from tracer.kinds import KINDS
from tracer.model import measures
from tracer.model.apply_methods import apply_methods, never_reached
from tracer.model.dialects import dialect_of
from tracer.model.labels import (
    program_lines,
    replica_names,
    replica_noun,
)
from tracer.model.measures import Measure
from tracer.model.skipped_steps import every, reason, reason_for_all
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import listed, plural, some, times

_OF_MANY = {apply.name for kind in KINDS for apply in kind.apply_methods if apply.many}


def question(trace: Trace) -> str:
    """The question that `answer` answers, with the methods that matter in this run."""
    if own := dialect_of(trace).question:
        return own
    names = dict.fromkeys(
        shown(trace.methods[index].name)
        for summary in summaries_of(trace)
        for index in apply_methods(summary)
    )
    return f"How often did {listed(list(names)) or 'the apply methods'} run?"


def answer(trace: Trace) -> str:
    """How often the apply methods ran, in two sentences; a line of two for each optimizer.

    The first sentence counts executions, the second the Python calls; neither is ever added to
    the other. Of a trace that is not complete all counts are "at least". Where the program defines
    a method that nothing calls, that is what was asked, and the answer begins with it.
    """
    return "\n".join(" ".join(pair) for pair in sentences(trace))


def sentences(trace: Trace) -> list[tuple[str, str]]:
    """The two sentences of `answer` for each optimizer, which they name if there are several."""
    summaries = summaries_of(trace)
    if not summaries:
        return [("No optimizer was traced.", "So there is nothing to count.")]
    if len(summaries) == 1:
        return [(_first(summaries[0]), _calls(summaries[0]))]
    lines = program_lines(trace)
    return [
        (
            f"{shown(summary.optimizers[0].name)}{_of(lines, summary)}: {_first(summary)}",
            _calls(summary),
        )
        for summary in summaries
    ]


def _of(lines: Mapping[int, str], summary: Summary) -> str:
    """` (train.py:30)`: the line that made the optimizer, if that must be said."""
    return f" ({shown(lines[summary.root])})" if summary.root in lines else ""


def _first(summary: Summary) -> str:
    """The first sentence, and before it what of the program's own never ran."""
    if not summary.dialect.apply_methods:
        return _updates_of_steps(summary)
    return " ".join([*never_reached(summary), _executions(summary)])


def _executions(summary: Summary) -> str:
    """The first sentence."""
    chosen = apply_methods(summary)
    names = [shown(summary.trace.methods[index].name) for index in chosen]
    by_method = [measures.of_methods([index]) for index in chosen]
    totals = [summary.total(measure) for measure in by_method]
    least = "" if summary.trace.complete else "at least "
    in_steps = f"in {least}{_steps(summary)}"
    if not any(totals):
        subject = listed(names) or "No apply method"
        if names:
            verb = "was not seen to run" if least else "never ran"
        else:
            verb = "was seen to run" if least else "ran"
        return f"{subject} {verb}: {least}0 executions {in_steps}{_because(summary)}."
    outside = [summary.outside(measure) for measure in by_method]
    inside = [total - out for total, out in zip(totals, outside, strict=True)]
    beyond = f", and {_numbers(outside)} more outside any step" if any(outside) else ""
    if not any(inside):
        return f"{_ran(names, [_at_least(summary, n) for n in outside])}, outside any step."
    if unplaced := sum(summary.unplaced(measure) for measure in by_method):
        lost = f"; of {unplaced:,} of these executions the step is not known"
        counts = [_at_least(summary, count) for count in inside]
        return f"{_ran(names, counts)} {in_steps}{_where(summary)}{lost}{beyond}."
    noun = plural(sum(inside), "execution")
    many = f"{least}{_numbers(inside)} {noun} {in_steps}{_empty(summary)}"
    return f"{_ran_a_step(summary, names, by_method)}: {many}{beyond}{_no_updates(summary)}."


def _no_updates(summary: Summary) -> str:
    """How much of the work assigned nothing or was thrown away, and so is no update."""
    idle, lost = summary.total(measures.ineffective), summary.total(measures.discarded)
    text = f"; {idle:,} of them assigned nothing, so they are no updates" if idle else ""
    if idle == summary.total(measures.tries) > 0:
        text = "; none of them assigned anything, so there was no update"
    if lost and not summary.dialect.apply_methods:
        return f"; {lost:,} more {plural(lost, 'was', 'were')} computed and thrown away"
    if lost:
        were = plural(lost, "was", "were"), plural(lost, "it is no update", "they are no updates")
        text += f"; {lost:,} of them {were[0]} computed and thrown away, so {were[1]}"
    return text


def _because(summary: Summary) -> str:
    """` (accumulated, 4 steps)`: why no step updated anything, if that is known."""
    why = reason_for_all(summary)
    return why.in_brackets if why else ""


def _calls(summary: Summary) -> str:
    """The second sentence."""
    if not summary.dialect.apply_methods:
        return _calls_of_step(summary)
    chosen = apply_methods(summary)
    counts = [summary.calls(index) for index in chosen]
    totals = [sum(each) for each in counts]
    eager, tracing = sum(each for each, _ in counts), sum(each for _, each in counts)
    graphs, idle = summary.graphs(measures.of_methods(chosen))
    within = ""
    if summary.idle_as_usual:  # the details have it: the table of the methods
        if idle == graphs and summary.idle_parts:
            within = ", in a part that no step reached"
        idle = 0
    body = "Its Python body was" if len(chosen) == 1 else "Their Python bodies were"
    if not any(totals):
        if not chosen:
            return "Python did not call one either."
        if not any(summary.total(measures.of_methods([index])) for index in chosen):
            return f"{body} not called either."
        if summary.compiled and not graphs:
            return f"{body} not called: what ran is compiled."
        return f"{body} not called while the tracer watched."
    least = "" if summary.trace.complete else "at least "
    number = times(totals[0]) if len(totals) == 1 else f"{_numbers(totals)} times"
    called = f"{body} called {least}{number}"
    noun = summary.dialect.program
    while_tracing = f"while tracing {some(graphs, noun)}{within or _never(graphs, idle)}"
    if not tracing:
        if {summary.trace.methods[index].name for index in chosen} <= _OF_MANY:
            return f"{called}, {_all(eager)}eagerly, counted once for each variable of a call."
        return f"{called}, {_all(eager)}eagerly, and each call is one execution."
    if not eager:
        return f"{called}, {_all(tracing)}{while_tracing}."
    return f"{called}: {eager:,} eagerly, {tracing:,} {while_tracing}."


def _updates_of_steps(summary: Summary) -> str:
    """The first sentence of an optimizer of which each step makes all updates at once."""
    least = "" if summary.trace.complete else "at least "
    in_steps = f"in {least}{_steps(summary)}"
    total = summary.total(measures.updates)
    if not total:
        kept_none = summary.total(measures.discarded)
        none = "No update was kept" if kept_none else summary.dialect.nothing_made
        return f"{none}: {least}0 updates {in_steps}{_because(summary)}{_no_updates(summary)}."
    made = {replica: _made(summary, replica) for replica in summary.replicas}
    on = replica_names(summary.trace)
    first, *others = made.values()
    rates = [f"{rate} on {shown(on[replica])}" for replica, rate in made.items()]
    if not any(each != first for each in others):
        rates = [first + _where(summary)]
    updates = f"{least}{some(total, 'update')}"
    return f"{'; '.join(rates)}: {updates} {in_steps}{_empty(summary)}{_no_updates(summary)}."


def _beside(summary: Summary) -> str:
    """How many updates were for nothing."""
    lost = summary.total(measures.discarded)
    if not lost:
        return ""
    return f"; {lost:,} more {plural(lost, 'was', 'were')} computed and thrown away"


def _made(summary: Summary, replica: int) -> str:
    """`Each step made 4 updates`, of those that updated anything."""
    steps = summary.rates(measures.updates, replica)
    made = "kept" if summary.total(measures.discarded) else summary.dialect.made
    if not any(steps):
        return f"No step {made} an update"
    low, high = min(steps), max(steps)
    if low < high:
        return f"A step {made} {low:,} to {high:,} updates{_mostly(steps)}"
    nth = every(summary, measures.updates, replica)
    which = f"Every {nth:,}{_ordinal(nth)} step" if nth else "Each step"
    return f"{which} {made} {some(low, 'update')}"


def _calls_of_step(summary: Summary) -> str:
    """The second sentence of such an optimizer."""
    parts = []
    for index in summary.methods:
        method = summary.trace.methods[index]
        if method.role == "step":
            eager, tracing = summary.calls(index)
            graphs, _ = summary.graphs(measures.of_methods([index]))
            was_called = f"was called {times(eager)}"
            if tracing:
                was_called = summary.dialect.compiled.format(
                    eager=times(eager),
                    calls=times(eager + tracing),
                    of_them=f", {times(tracing)} of them" if eager else "",
                    programs=some(graphs, summary.dialect.program),
                )
            parts.append(f"{shown(method.name)} {was_called}")
    if not parts:
        return f"{summary.dialect.step_method} was not called."
    return f"{listed(parts[::-1])}."


def _ran_a_step(summary: Summary, names: Sequence[str], by_method: Sequence[Measure]) -> str:
    """How often a step each method ran, and on which replicas."""
    rates = []
    alike = True
    for measure in by_method:
        on = {replica: _rate(summary, measure, replica) for replica in summary.replicas}
        if len(set(on.values())) == 1:
            rates.append(next(iter(on.values())))
        elif len(on) <= 3:
            alike = False
            names_on = replica_names(summary.trace)
            rates.append(listed([f"{rate} on {shown(names_on[r])}" for r, rate in on.items()]))
        else:
            counts = {count for each in on for count in summary.rates(measure, each)}
            low, high = min(counts) if "never" not in on.values() else 0, max(counts)
            many = f"{low:,} to {high:,} times" if low < high else times(low)
            where = " that updated anything" if _empty(summary) else ""
            rates.append(f"{many} a step{where}")
    where = _where(summary)
    if alike:
        return _ran(names, rates) + where
    return _ran(names, [rate if " on " in rate else rate + where for rate in rates])


def _rate(summary: Summary, measure: Measure, replica: int) -> str:
    """How often a step a method ran on a replica, in those of its steps that updated anything."""
    steps = summary.rates(measure, replica)
    if not any(steps):
        return "never"
    seen, common = sum(steps.values()), _most_common(steps)
    if len(steps) > 1:
        mostly = _mostly(steps) and f"{_mostly(steps)},"
        low, high = min(steps), max(steps)
        return f"{low:,} {'or' if high == low + 1 else 'to'} {high:,} times{mostly} a step"
    if seen == summary.steps_on[replica]:
        return f"{times(common)} a step"
    if nth := every(summary, measure, replica):
        return f"{times(common)} every {nth:,}{_ordinal(nth)} step"
    if seen * 2 > summary.steps_on[replica]:
        return f"{times(common)} a step"
    return f"{times(common)} in {'each of ' if seen > 1 else ''}{some(seen, 'step')}"


def _most_common(steps: Counter[int]) -> int:
    return max(steps, key=lambda count: (steps[count], count))


def _mostly(steps: Counter[int]) -> str:
    """`, mostly 4`, if that is so of more than half of the steps."""
    common = _most_common(steps)
    return f", mostly {common:,}" if steps[common] * 2 > sum(steps.values()) else ""


def _empty(summary: Summary) -> str:
    """How many of the steps updated nothing, though others did, or called for it."""
    if summary.total(measures.ineffective) == summary.total(measures.tries) > 0:
        return ""  # then that is what is said
    empty = [summary.spread(measures.tries, replica=replica)[(0,)] for replica in summary.replicas]
    if not any(empty):
        return ""
    known = reason(summary).in_brackets
    if len(set(empty)) == 1:
        return f", {empty[0]:,} of which updated nothing{known}"
    by = f"by {replica_noun(summary.trace)}"
    return f", {min(empty):,} to {max(empty):,} of which updated nothing{known}, {by}"


def _steps(summary: Summary) -> str:
    """`64 steps`, or `60 to 64 steps` where the replicas differ."""
    steps = set(summary.steps_on.values())
    if len(steps) > 1:
        return f"{min(steps):,} to {max(steps):,} steps"
    return some(summary.steps, "step")


def _where(summary: Summary) -> str:
    """` on each of 2 replicas`; nothing for a single one, or where a rate already names them."""
    replicas = [summary.trace.replicas[index] for index in summary.replicas]
    if len(replicas) == 1:
        return ""
    workers = len({replica.worker for replica in replicas})
    if replica_noun(summary.trace) == "rank":
        return f" on each of {workers:,} ranks"
    of_workers = f" of {workers:,} workers" if workers > 1 else ""
    return f" on each of {len(replicas):,} replicas{of_workers}"


def _ran(names: Sequence[str], rates: Sequence[str]) -> str:
    """`_apply ran once`, `_apply ran once and _apply_sparse twice`."""
    first = f"{names[0]} ran {rates[0]}"
    rest = [f"{name} {rate}" for name, rate in zip(names[1:], rates[1:], strict=True)]
    return listed([first, *rest])


def _at_least(summary: Summary, count: int) -> str:
    return times(count) if summary.trace.complete or not count else f"at least {times(count)}"


def _never(graphs: int, idle: int) -> str:
    if not idle:
        return ""
    if idle == graphs:
        return ", which never ran" if graphs == 1 else ", none of which ever ran"
    return f"; {idle:,} of them never ran"


def _all(count: int) -> str:
    return {1: "", 2: "both times "}.get(count, "all ")


def _numbers(counts: Sequence[int]) -> str:
    return listed([f"{count:,}" for count in counts])


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
