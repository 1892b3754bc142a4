"""The question, "How often did `_resource_apply_dense` run?", and its answer for one run."""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

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
from tracer.model.wording import first_true, listed, plural, some, span, times

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
    lines = program_lines(trace)
    pairs = []
    for summary in summaries:
        made = f" ({shown(lines[summary.root])})" if summary.root in lines else ""
        name = f"{shown(summary.optimizers[0].name)}{made}: " if len(summaries) > 1 else ""
        by_method = summary.dialect.apply_methods
        first = [*(never_reached(summary) if by_method else ()), _executions(summary)]
        pairs.append((name + " ".join(first), (_calls if by_method else _calls_of_step)(summary)))
    return pairs or [("No optimizer was traced.", "So there is nothing to count.")]


# The first sentence: what ran.


def _executions(summary: Summary) -> str:
    """How often each method ran, or how many updates a step made, and how many that is in all."""
    names = [shown(summary.trace.methods[index].name) for index in apply_methods(summary)]
    counted: list[Measure] = [measures.of_methods([index]) for index in apply_methods(summary)]
    noun, rate = "execution", _times
    if not summary.dialect.apply_methods:
        names, counted, noun, rate = [], [measures.updates], "update", partial(_made, summary)
    least = "" if summary.trace.complete else "at least "
    outside = [summary.outside(measure) for measure in counted]
    inside = [summary.total(measure) - out for measure, out in zip(counted, outside, strict=True)]
    steps = summary.steps_on.values() or [0]
    in_steps = f"in {least}{some((min(steps), max(steps)), 'step')}"
    more = f", and {_numbers(outside)} more outside any step" if any(outside) else ""
    if not any((*inside, *outside)):
        why = reason_for_all(summary)
        reason = why.in_brackets if why else ""
        nothing = _nothing(summary, names)
        return f"{nothing}: {least}0 {noun}s {in_steps}{reason}{_no_updates(summary)}."
    at_least = [(least if n else "") + times(n) for n in (inside if any(inside) else outside)]
    if names and not any(inside):
        return f"{_ran(names, at_least)}, outside any step."
    if names and (unplaced := sum(summary.unplaced(measure) for measure in counted)):
        lost = f"; of {unplaced:,} of these executions the step is not known"
        return f"{_ran(names, at_least)} {in_steps}{_where(summary)}{lost}{more}."
    rates = [_on_replicas(summary, measure, rate) for measure in counted]
    where = _where(summary)
    if all(each.endswith(where) for each in rates):
        rates = [*(each.removesuffix(where) for each in rates[:-1]), rates[-1]]
    many = f"{least}{_numbers(inside)} {plural(sum(inside), noun)} {in_steps}"
    return f"{_ran(names, rates)}: {many}{_skipped(summary)}{more}{_no_updates(summary)}."


def _nothing(summary: Summary, names: Sequence[str]) -> str:
    """That no method ran, or that no step made an update."""
    of_method = summary.dialect.apply_methods
    subject = listed(names) or "No apply method"
    return first_true(
        (not of_method and summary.total(measures.discarded), "No update was kept"),
        (not of_method, summary.dialect.nothing_made),
        (summary.trace.complete, f"{subject} {'never ran' if names else 'ran'}"),
        (True, f"{subject} {'was not' if names else 'was'} seen to run"),
    )


def _on_replicas(summary: Summary, measure: Measure, rate: Callable[..., str]) -> str:
    """The rate on each replica; if many differ, the lowest and the highest of all."""
    counts = {each: summary.rates(measure, each) for each in summary.replicas}
    rates = {
        each: rate(steps, summary.steps_on[each], every(summary, measure, each))
        for each, steps in counts.items()
    }
    names = replica_names(summary.trace)
    if len(set(rates.values())) == 1:
        return rates[summary.replicas[0]] + _where(summary)
    if len(rates) > 3:
        none = Counter({0: sum(not any(steps) for steps in counts.values())})
        return rate(sum(counts.values(), none), 0, 0) + _where(summary)
    on = [f"{text} on {shown(names[each])}" for each, text in rates.items()]
    return listed(on) if summary.dialect.apply_methods else "; ".join(on)


def _times(steps: Counter[int], of: int, nth: int) -> str:
    """How often a method ran in each step that updated anything."""
    low, high, seen = min(steps, default=0), max(steps, default=0), steps.total()
    common = _mostly(steps)
    between = f"{low:,} {'or' if high == low + 1 else 'to'} {high:,} times"
    return first_true(
        (not high, "never"),
        (low < high, f"{between}{common and common + ','} a step"),
        (nth, f"{times(low)} every {nth:,}{_ordinal(nth)} step"),
        (seen * 2 > of, f"{times(low)} a step"),
        (True, f"{times(low)} in {'each of ' if seen > 1 else ''}{some(seen, 'step')}"),
    )


def _made(summary: Summary, steps: Counter[int], of: int, nth: int) -> str:
    """`Each step made 4 updates`, of those that updated anything."""
    low, high = min(steps, default=0), max(steps, default=0)
    made = "kept" if summary.total(measures.discarded) else summary.dialect.made
    which = f"Every {nth:,}{_ordinal(nth)}" if nth else "Each"
    return first_true(
        (not high, f"No step {made} an update"),
        (low < high, f"A step {made} {some((low, high), 'update')}{_mostly(steps)}"),
        (True, f"{which} step {made} {some(low, 'update')}"),
    )


def _mostly(steps: Counter[int]) -> str:
    """`, mostly 4`, if that is so of more than half of the steps."""
    common = max(steps, key=lambda count: (steps[count], count), default=0)
    return f", mostly {common:,}" if steps[common] * 2 > steps.total() else ""


def _skipped(summary: Summary) -> str:
    """How many of the steps updated nothing, though others did, or called for it."""
    empty = [summary.spread(measures.tries, replica=replica)[(0,)] for replica in summary.replicas]
    if not any(empty) or summary.total(measures.ineffective) == summary.total(measures.tries) > 0:
        return ""  # or that is what is said
    by = f", by {replica_noun(summary.trace)}" if len(set(empty)) > 1 else ""
    number = span((min(empty), max(empty)))
    return f", {number} of which updated nothing{reason(summary).in_brackets}{by}"


def _no_updates(summary: Summary) -> str:
    """How much of the work assigned nothing or was thrown away, and so is no update."""
    idle, lost = summary.total(measures.ineffective), summary.total(measures.discarded)
    were = plural(lost, "was", "were")
    if lost and not summary.dialect.apply_methods:
        return f"; {lost:,} more {were} computed and thrown away"
    text = f"; {idle:,} of them assigned nothing, so they are no updates" if idle else ""
    if idle == summary.total(measures.tries) > 0:
        text = "; none of them assigned anything, so there was no update"
    none = plural(lost, "it is no update", "they are no updates")
    return text + (f"; {lost:,} of them {were} computed and thrown away, so {none}" if lost else "")


def _where(summary: Summary) -> str:
    """` on each of 2 replicas`; nothing for a single one."""
    noun = replica_noun(summary.trace)
    workers = len({summary.trace.replicas[index].worker for index in summary.replicas})
    of_workers = f" of {workers:,} workers" if workers > 1 and noun != "rank" else ""
    replicas = len(summary.replicas)
    return f" on each of {some(replicas, noun)}{of_workers}" if replicas > 1 else ""


def _ran(names: Sequence[str], rates: Sequence[str]) -> str:
    """`_apply ran once`, `_apply ran once and _apply_sparse twice`; without names, the rates."""
    rest = [f"{name} {rate}" for name, rate in zip(names[1:], rates[1:], strict=False)]
    return (f"{names[0]} ran " if names else "") + listed([rates[0], *rest])


# The second sentence: what Python called.


def _calls(summary: Summary) -> str:
    """How often Python called the methods, eagerly and while it traced graphs."""
    chosen = apply_methods(summary)
    counts = [summary.calls(index) for index in chosen]
    totals = [sum(each) for each in counts]
    eager, tracing = sum(each for each, _ in counts), sum(each for _, each in counts)
    graphs, idle = summary.graphs(measures.of_methods(chosen))
    body = "Its Python body was" if len(chosen) == 1 else "Their Python bodies were"
    if not any(totals):
        ran = summary.total(measures.of_methods(chosen))
        compiled = any(each.context == "graph" for each in summary.blocks)
        return first_true(
            (not chosen, "Python did not call one either."),
            (not ran, f"{body} not called either."),
            (compiled and not graphs, f"{body} not called: what ran is compiled."),
            (True, f"{body} not called while the tracer watched."),
        )
    least = "" if summary.trace.complete else "at least "
    number = times(totals[0]) if len(totals) == 1 else f"{_numbers(totals)} times"
    called = f"{body} called {least}{number}"
    usual = summary.idle_as_usual  # the details have it: the table of the methods
    never = first_true(
        (not idle, ""),
        (usual and idle == graphs and summary.idle_parts, ", in a part that no step reached"),
        (usual, ""),
        (idle == graphs == 1, ", which never ran"),
        (idle == graphs, ", none of which ever ran"),
        (True, f"; {idle:,} of them never ran"),
    )
    while_tracing = f"while tracing {some(graphs, summary.dialect.program)}{never}"
    if eager and tracing:
        return f"{called}: {eager:,} eagerly, {tracing:,} {while_tracing}."
    called += {1: ", ", 2: ", both times "}.get(eager + tracing, ", all ")
    if tracing:
        return f"{called}{while_tracing}."
    of_many = {summary.trace.methods[index].name for index in chosen} <= _OF_MANY
    counted = (
        "counted once for each variable of a call" if of_many else "and each call is one execution"
    )
    return f"{called}eagerly, {counted}."


def _calls_of_step(summary: Summary) -> str:
    """How often Python called the step methods of an optimizer whose steps make all updates."""
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
    return f"{listed(parts[::-1]) or summary.dialect.step_method + ' was not called'}."


def _numbers(counts: Sequence[int]) -> str:
    return listed([f"{count:,}" for count in counts])


def _ordinal(number: int) -> str:
    """`th`, or what else is written behind it."""
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 // 10 != 1 else 0, "th")
