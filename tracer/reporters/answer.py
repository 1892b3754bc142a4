"""The question, "How often did `_resource_apply_dense` run?", and its answer for one run."""

from collections import Counter
from collections.abc import Collection, Sequence

from tracer.errors import shown
from tracer.kinds import KINDS
from tracer.model import measures
from tracer.model.phrases import (
    every,
    never_reached,
    program_lines,
    reason,
    reason_for_all,
    replica_names,
    replica_noun,
)
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.words import dialect_of, first_true, listed, plural, some, span, times

_OF_MANY = {apply.name for kind in KINDS for apply in kind.apply_methods if apply.many}


def question(trace: Trace) -> str:
    """The question that `answer` answers, with the apply methods of this run."""
    names = dict.fromkeys(each for summary in summaries_of(trace) for each in _names(summary))
    default = f"How often did {listed(list(names)) or 'the apply methods'} run?"
    return dialect_of(trace.data).question or default


def answer(trace: Trace) -> str:
    """How often the apply methods ran: two sentences for each optimizer, on a line of their own.

    The first sentence counts executions, the second Python calls; the two are never added up. In an
    incomplete trace, all counts are "at least". If the program overrides a method that nothing
    calls, the answer begins with it, because that is the user's question.
    """
    return "\n".join(" ".join(pair) for pair in sentences(trace))


def sentences(trace: Trace, roots: Collection[int] | None = None) -> list[tuple[str, str]]:
    """The two sentences of `answer` for each optimizer, or for `roots`, named if there are more."""
    summaries, lines = summaries_of(trace), program_lines(trace)
    pairs = []
    for summary in summaries:
        if roots is not None and summary.root not in roots:
            continue
        made = f" ({shown(lines[summary.root])})" if summary.root in lines else ""
        name = f"{shown(summary.optimizers[0].name)}{made}: " if len(summaries) > 1 else ""
        by_method = summary.dialect.apply_methods
        first = [*(never_reached(summary) if by_method else ()), _executions(summary)]
        pairs.append((name + " ".join(first), (_calls if by_method else _calls_of_step)(summary)))
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


def _names(summary: Summary) -> list[str]:
    return [shown(summary.trace.methods[index].name) for index in summary.apply_methods]


# The first sentence: what ran.


def _executions(summary: Summary) -> str:
    """How often each method ran, or how many updates a step made, and the totals."""
    counted: list[measures.Measure] = [
        measures.of_methods([index]) for index in summary.apply_methods
    ]
    names, noun = _names(summary), "execution"
    if not summary.dialect.apply_methods:
        names, noun, counted = [], "update", [measures.updates]
    least = "" if summary.trace.complete else "at least "
    outside = [summary.outside(measure) for measure in counted]
    inside = [summary.total(measure) - out for measure, out in zip(counted, outside, strict=True)]
    lost = sum(summary.step_unknown(measure) for measure in counted)
    steps = summary.steps_on.values() or [0]
    in_steps = f"in {least}{some((min(steps), max(steps)), 'step')}"
    more = f", and {_numbers(outside)} more outside any step" if any(outside) else ""
    totals = inside if any(inside) else outside
    ran = _ran(names, [(least if total else "") + times(total) for total in totals])
    where, why = _where(summary), reason_for_all(summary)
    rates = [_on_replicas(summary, measure) for measure in counted]
    if all(each.endswith(where) for each in rates):
        rates = [*(each.removesuffix(where) for each in rates[:-1]), *rates[-1:]]
    return first_true(
        (
            not any((*inside, *outside)),
            f"{_nothing(summary, names)}: {least}0 {noun}s {in_steps}"
            f"{why.in_brackets if why else ''}{_no_updates(summary)}.",
        ),
        (names and not any(inside), f"{ran}, outside any step."),
        (
            names and lost,
            f"{ran} {in_steps}{where}; of {lost:,} of these executions the step is not known"
            f"{more}.",
        ),
        (
            True,
            f"{_ran(names, rates)}: {least}{_numbers(inside)} {plural(sum(inside), noun)} "
            f"{in_steps}{_skipped(summary)}{more}{_no_updates(summary)}.",
        ),
    )


def _ran(names: Sequence[str], rates: Sequence[str]) -> str:
    """`_apply ran once`, `_apply ran once and _apply_sparse twice`; without names, the rates."""
    verbs = [f"{name} {'' if n else 'ran '}" for n, name in enumerate(names)] or [""] * len(rates)
    return listed([verb + rate for verb, rate in zip(verbs, rates, strict=True)])


def _nothing(summary: Summary, names: Sequence[str]) -> str:
    """A sentence that no method ran, or that no step made an update."""
    subject = listed(names) or "No apply method"
    return first_true(
        (not summary.dialect.apply_methods, f"No update was {_made(summary)}"),
        (summary.trace.complete, f"{subject} {'never ran' if names else 'ran'}"),
        (True, f"{subject} {'was not' if names else 'was'} seen to run"),
    )


def _on_replicas(summary: Summary, measure: measures.Measure) -> str:
    """The rate on each group of replicas; if there are many, the lowest and the highest."""
    counts = {each: summary.rates(measure, each) for each in summary.replicas}
    rates = {
        each: _rate(summary, steps, summary.steps_on[each], every(summary, measure, each))
        for each, steps in counts.items()
    }
    names, where = replica_names(summary.trace), _where(summary)
    alike: dict[str, list[int]] = {}
    for each, text in rates.items():
        alike.setdefault(text, []).append(each)
    of = f"of {some(len(rates), replica_noun(summary.trace))}"
    on = [
        f"{text} on {f'{len(group):,} {of}' if len(group) > 1 else shown(names[group[0]])}"
        for text, group in alike.items()
    ]
    none = Counter({0: sum(not any(steps) for steps in counts.values())})
    of_all = _rate(summary, sum(counts.values(), none), 0, 0)
    return first_true(
        (len(alike) == 1, f"{next(iter(alike), '')}{where}"),
        (len(alike) > 3, f"{of_all}{where}"),
        (summary.dialect.apply_methods, listed(on)),
        (True, "; ".join([*on[:1], *(each[0].lower() + each[1:] for each in on[1:])])),
    )


def _rate(summary: Summary, steps: Counter[int], of: int, nth: int) -> str:
    """How often a method ran in each step that updated anything, or what such a step made.

    `twice a step`, or `Each step made 2 updates` if no method makes an update. `steps` is how many
    steps had each count, of `of` steps; `nth` is 3 if it was every third step, else 0.
    """
    low, high, seen = min(steps, default=0), max(steps, default=0), steps.total()
    common = max(steps, key=lambda count: (steps[count], count), default=0)
    mostly = f", mostly {common:,}" if steps[common] * 2 > seen else ""
    ordinal = f"{nth:,}{_ordinal(nth)}"
    if not summary.dialect.apply_methods:
        made = _made(summary)
        several = "Each of " if seen > 1 else ""
        return first_true(
            (not high, f"No step {made} an update"),
            (low < high, f"A step {made} {some((low, high), 'update')}{mostly}"),
            (nth, f"Every {ordinal} step {made} {some(low, 'update')}"),
            (seen < of, f"{several}{some(seen, 'step')} {made} {some(low, 'update')}"),
            (True, f"Each step {made} {some(low, 'update')}"),
        )
    between = f"{low:,} {'or' if high == low + 1 else 'to'} {high:,} times"
    return first_true(
        (not high, "never"),
        (low < high, f"{between}{mostly and mostly + ','} a step"),
        (nth, f"{times(low)} every {ordinal} step"),
        (seen * 2 > of, f"{times(low)} a step"),
        (True, f"{times(low)} in {'each of ' if seen > 1 else ''}{some(seen, 'step')}"),
    )


def _made(summary: Summary) -> str:
    """What steps did with updates if no method makes them: `made`, `kept`."""
    return "kept" if summary.total(measures.discarded) else summary.dialect.made


def _ordinal(number: int) -> str:
    """The ending of an ordinal number: `st`, `nd`, `rd` or `th`."""
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10 if number % 100 // 10 != 1 else 0, "th")


def _skipped(summary: Summary) -> str:
    """How many steps updated nothing although other steps did, or although they got gradients."""
    empty = [
        summary.spread(measures.updates, replica=replica)[(0,)] for replica in summary.asked_on
    ]
    if not any(empty):
        return ""
    by = f", by {replica_noun(summary.trace)}" if len(set(empty)) > 1 else ""
    number = span((min(empty), max(empty)))
    return f", {number} of which updated nothing{reason(summary).in_brackets}{by}"


def _no_updates(summary: Summary) -> str:
    """How many executions were discarded, and so are not updates."""
    lost = summary.total(measures.discarded)
    were, none = plural(lost, "was", "were"), plural(lost, "it is no update", "they are no updates")
    if lost and not summary.dialect.apply_methods:
        return f"; {lost:,} more {were} computed and thrown away"
    return f"; {lost:,} of them {were} computed and thrown away, so {none}" if lost else ""


def _where(summary: Summary) -> str:
    """` on each of 2 replicas`; empty for a single one."""
    noun, number = replica_noun(summary.trace), len(summary.replicas)
    workers = len(summary.workers)
    of_workers = f" of {workers:,} workers" if workers > 1 and noun != "rank" else ""
    return f" on each of {some(number, noun)}{of_workers}" if number > 1 else ""


# The second sentence: what Python called.


def _calls(summary: Summary) -> str:
    """How often Python called the methods, eagerly and while it traced graphs."""
    chosen = summary.apply_methods
    counts = [summary.calls(index) for index in chosen]
    eager, tracing = (sum(each[context] for each in counts) for context in (0, 1))
    numbers = [sum(each) for each in counts]
    graphs, idle = summary.graphs(measures.of_methods(chosen))
    uncalled, usual = not eager + tracing, summary.idle_as_usual
    body = "Its Python body was" if len(chosen) == 1 else "Their Python bodies were"
    least = "" if summary.trace.complete else "at least "
    number = times(numbers[0]) if len(numbers) == 1 else f"{_numbers(numbers)} times"
    called = f"{body} called {least}{number}"
    all_of_them = {1: ", ", 2: ", both times "}.get(eager + tracing, ", all ")
    never = first_true(
        (not idle, ""),
        (usual and idle == graphs and summary.idle_parts, ", in a part that no step reached"),
        (usual, ""),  # the table of methods has it
        (idle == graphs == 1, ", which never ran"),
        (idle == graphs, ", none of which ever ran"),
        (True, f"; {idle:,} of them never ran"),
    )
    traced = f" {some(graphs, summary.dialect.program)}{never}" if graphs else ""
    while_tracing = f"while tracing{traced}"  # without a graph if each tracing raised
    of_many = {summary.trace.methods[index].name for index in chosen} <= _OF_MANY
    return first_true(
        (not chosen, "Python did not call one either."),
        (
            uncalled and not summary.total(measures.of_methods(chosen)),
            f"{body} not called either.",
        ),
        (
            uncalled and not graphs and any(each.context == "graph" for each in summary.blocks),
            f"{body} not called: what ran is compiled.",
        ),
        (uncalled, f"{body} not called while the tracer watched."),
        (eager and tracing, f"{called}: {eager:,} eagerly, {tracing:,} {while_tracing}."),
        (tracing, f"{called}{all_of_them}{while_tracing}."),
        (of_many, f"{called}{all_of_them}eagerly, counted once for each variable of a call."),
        (True, f"{called}{all_of_them}eagerly, and each call is one execution."),
    )


def _calls_of_step(summary: Summary) -> str:
    """How often Python called the step methods of an optimizer whose steps make all updates."""
    methods = [(index, summary.trace.methods[index]) for index in reversed(summary.methods)]
    called = [
        f"{shown(method.name)} {_called(summary, index)}"
        for index, method in methods
        if method.role == "step"
    ]
    return f"{listed(called) or summary.dialect.step_method + ' was not called'}."


def _called(summary: Summary, method: int) -> str:
    eager, tracing = summary.calls(method)
    graphs, _ = summary.graphs(measures.of_methods([method]))
    compiled = summary.dialect.compiled.format(
        eager=times(eager),
        calls=times(eager + tracing),
        of_them=f"{'one' if tracing == 1 else tracing} of them " if eager else "",
        programs=some(graphs, summary.dialect.program),
    )
    return compiled if tracing else f"was called {times(eager)}"


def _numbers(counts: Sequence[int]) -> str:
    return listed([f"{count:,}" for count in counts])
