"""The question, "How often did `_resource_apply_dense` run?", and its answer for one run."""

from collections.abc import Sequence

from tracer.model import tally
from tracer.model.records import Method
from tracer.model.tally import Tally, tallies
from tracer.model.trace import Trace
from tracer.model.wording import some, times
from tracer.reporters.layout import shown


def question(trace: Trace) -> str:
    """The question that `answer` answers, with the methods that matter in this run."""
    names = dict.fromkeys(
        shown(trace.methods[index].name) for each in tallies(trace) for index in apply_methods(each)
    )
    return f"How often did {_listed(list(names)) or 'the apply methods'} run?"


def answer(trace: Trace) -> str:
    """How often the apply methods ran, in two sentences; a line of two for each optimizer.

    The first sentence counts executions, the second the Python calls; neither is ever added to
    the other. Of a trace that is not complete all counts are "at least".
    """
    return "\n".join(" ".join(pair) for pair in sentences(trace))


def sentences(trace: Trace) -> list[tuple[str, str]]:
    """The two sentences of `answer` for each optimizer, which they name if there are several."""
    found = tallies(trace)
    if not found:
        return [("No optimizer was traced.", "So there is nothing to count.")]
    several = len(found) > 1
    return [
        (f"{shown(each.optimizers[0].name)}: " * several + _executions(each), _calls(each))
        for each in found
    ]


def apply_methods(found: Tally) -> list[int]:
    """The indices of the methods that the question is about: those that make the updates.

    Where a method does no more than prepare the gradient for another (the default
    `_resource_apply_sparse_duplicate_indices`, `_update_step_xla`), it is the other.
    """
    methods = found.trace.methods
    makers = {
        entry.method for block in found.blocks for entry in block.entries if entry.role == "update"
    }
    if not makers:
        makers = {index for index in found.methods if methods[index].role == "apply"}
    chosen: set[int] = set()
    for maker in makers:
        inner = next((i for i in found.methods if methods[i].name == _inner(methods[maker])), maker)
        runs, runs_inside = (found.total(tally.of_methods([i])) for i in (maker, inner))
        chosen.add(inner if runs_inside >= runs else maker)
    return sorted(chosen, key=lambda index: ("sparse" in methods[index].name, index))


def _inner(method: Method) -> str:
    if method.name == "_update_step_xla":
        return "update_step"
    return method.name.removesuffix("_duplicate_indices")


def _executions(found: Tally) -> str:
    """The first sentence."""
    chosen = apply_methods(found)
    names = [shown(found.trace.methods[index].name) for index in chosen]
    measures = [tally.of_methods([index]) for index in chosen]
    totals = [found.total(measure) for measure in measures]
    least = "" if found.trace.complete else "at least "
    in_steps = f"in {least}{_steps(found)}"
    if not any(totals):
        subject = _listed(names) or "No apply method"
        if names:
            verb = "was not seen to run" if least else "never ran"
        else:
            verb = "was seen to run" if least else "ran"
        return f"{subject} {verb}: {least}0 executions {in_steps}."
    outside = [found.outside(measure) for measure in measures]
    inside = [total - out for total, out in zip(totals, outside, strict=True)]
    beyond = f", and {_numbers(outside)} more outside any step" if any(outside) else ""
    if not any(inside):
        return f"{_ran(names, [_at_least(found, n) for n in outside])}, outside any step."
    if unplaced := sum(found.unplaced(measure) for measure in measures):
        lost = f"; of {unplaced:,} of these executions the step is not known"
        counts = [_at_least(found, count) for count in inside]
        return f"{_ran(names, counts)} {in_steps}{_where(found)}{lost}{beyond}."
    noun = "execution" if sum(inside) == 1 else "executions"
    many = f"{least}{_numbers(inside)} {noun} {in_steps}{_empty(found)}"
    return f"{_ran_a_step(found, names, measures)}: {many}{beyond}."


def _calls(found: Tally) -> str:
    """The second sentence."""
    chosen = apply_methods(found)
    eager = tracing = 0
    each = []
    for index in chosen:
        counts = found.calls(index)
        eager, tracing = eager + counts[0], tracing + counts[1]
        each.append(sum(counts))
    graphs, idle = found.graphs(tally.of_methods(chosen))
    body = "Its Python body was" if len(chosen) == 1 else "Their Python bodies were"
    if not any(each):
        if not chosen:
            return "Python did not call one either."
        ran = any(found.total(tally.of_methods([index])) for index in chosen)
        return f"{body} not called {'while the tracer watched' if ran else 'either'}."
    least = "" if found.trace.complete else "at least "
    number = times(each[0]) if len(each) == 1 else f"{_numbers(each)} times"
    called = f"{body} called {least}{number}"
    while_tracing = f"while tracing {some(graphs, 'graph')}{_never(graphs, idle)}"
    if not tracing:
        return f"{called}, {_all(eager)}eagerly, and each call is one execution."
    if not eager:
        return f"{called}, {_all(tracing)}{while_tracing}."
    return f"{called}: {eager:,} eagerly, {tracing:,} {while_tracing}."


def _ran_a_step(found: Tally, names: Sequence[str], measures: Sequence[tally.Measure]) -> str:
    """How often a step each method ran, and on which replicas."""
    rates = []
    alike = True
    for measure in measures:
        on = {replica: _rate(found, measure, replica) for replica in found.replicas}
        if len(set(on.values())) == 1:
            rates.append(next(iter(on.values())))
        elif len(on) <= 3:
            alike = False
            rates.append(_listed([f"{rate} on {_replica(found, r)}" for r, rate in on.items()]))
        else:
            counts = {count for each in on for count in found.rates(measure, each)}
            low, high = min(counts) if "never" not in on.values() else 0, max(counts)
            many = f"{low:,} to {high:,} times" if low < high else times(low)
            rates.append(f"{many} a step{' that updated anything' * bool(_empty(found))}")
    where = _where(found)
    if alike:
        return _ran(names, rates) + where
    return _ran(names, [rate if " on " in rate else rate + where for rate in rates])


def _replica(found: Tally, index: int) -> str:
    replica = found.trace.replicas[index]
    several = len({found.trace.replicas[each].worker for each in found.replicas}) > 1
    return f"{shown(replica.worker)} replica {replica.id}" if several else f"replica {replica.id}"


def _rate(found: Tally, measure: tally.Measure, replica: int) -> str:
    """How often a step a method ran on a replica, in those of its steps that updated anything."""
    steps = found.rates(measure, replica)
    if not any(steps):
        return "never"
    seen, common = sum(steps.values()), max(steps, key=lambda count: (steps[count], count))
    if len(steps) > 1:
        mostly = f", mostly {common:,}," if steps[common] * 2 > seen else ""
        low, high = min(steps), max(steps)
        return f"{low:,} {'or' if high == low + 1 else 'to'} {high:,} times{mostly} a step"
    if seen == found.steps_on[replica]:
        return f"{times(common)} a step"
    if every := _every(found, measure, replica):
        return f"{times(common)} every {every:,}{_ordinal(every)} step"
    if seen * 2 > found.steps_on[replica]:
        return f"{times(common)} a step"
    return f"{times(common)} in {'each of ' if seen > 1 else ''}{some(seen, 'step')}"


def _every(found: Tally, measure: tally.Measure, replica: int) -> int:
    """`n` if the executions came every nth step from the nth to the end, otherwise 0."""
    stretches = found.stretches(measure, replica=replica)
    first = stretches[0]
    if len(first.cycle) != 2 or first.cycle[0][1] != (0,) or first.cycle[1][0] != 1:
        return 0
    rest = sum(length for each in stretches[1:] for length, _ in each.cycle)
    quiet = all(values == (0,) for each in stretches[1:] for _, values in each.cycle)
    return first.period if quiet and rest < first.period else 0


def _empty(found: Tally) -> str:
    """How many of the steps updated nothing."""
    empty = [found.spread(tally.updates, replica=replica)[(0,)] for replica in found.replicas]
    if not any(empty):
        return ""
    if len(set(empty)) == 1:
        return f", {empty[0]:,} of which updated nothing"
    return f", {min(empty):,} to {max(empty):,} of which updated nothing, by replica"


def _steps(found: Tally) -> str:
    """`64 steps`, or `60 to 64 steps` where the replicas differ."""
    steps = set(found.steps_on.values())
    if len(steps) > 1:
        return f"{min(steps):,} to {max(steps):,} steps"
    return some(found.steps, "step")


def _where(found: Tally) -> str:
    """` on each of 2 replicas`; nothing for a single one, or where a rate already names them."""
    replicas = [found.trace.replicas[index] for index in found.replicas]
    if len(replicas) == 1:
        return ""
    workers = len({replica.worker for replica in replicas})
    return f" on each of {len(replicas):,} replicas" + (f" of {workers:,} workers" * (workers > 1))


def _ran(names: Sequence[str], rates: Sequence[str]) -> str:
    """`_apply ran once`, `_apply ran once and _apply_sparse twice`."""
    first = f"{names[0]} ran {rates[0]}"
    rest = [f"{name} {rate}" for name, rate in zip(names[1:], rates[1:], strict=True)]
    return _listed([first, *rest])


def _at_least(found: Tally, count: int) -> str:
    return times(count) if found.trace.complete or not count else f"at least {times(count)}"


def _never(graphs: int, idle: int) -> str:
    if not idle:
        return ""
    if idle == graphs:
        return ", which never ran" if graphs == 1 else ", none of which ever ran"
    return f"; {idle:,} of them never ran"


def _all(count: int) -> str:
    return {1: "", 2: "both times "}.get(count, "all ")


def _numbers(counts: Sequence[int]) -> str:
    return _listed([f"{count:,}" for count in counts])


def _listed(items: Sequence[str]) -> str:
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def _ordinal(number: int) -> str:
    if number % 100 in (11, 12, 13):
        return "th"
    return {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
