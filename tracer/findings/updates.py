"""Rules on what was updated, and with what gradient."""

from collections.abc import Iterable, Iterator

from tracer.findings.cases import (
    Case,
    Fact,
    Severity,
    class_of,
    fact,
    folded,
    listed,
    names_of,
    of_optimizer,
    replica_of,
    some,
    span,
    subject,
    was,
)
from tracer.findings.histories import Evidence, History, Span
from tracer.model.tally import Tally
from tracer.model.wording import times

_ONE_COPY = ("CentralStorageStrategy", "ParameterServerStrategy")
"""Strategies under which a variable has one copy, however many replicas compute gradients."""


def no_gradient(found: Evidence) -> Iterator[Case]:
    """Every gradient that was handed over for a variable was `None`."""
    if not found.trace.complete:
        return
    facts = [
        fact(
            history.variables,
            max(history.count("request", "none", replica=r) for r in history.replicas),
        )
        for history in found.histories
        if history.count("request", "none")
        and not history.count("request")
        and not history.count("update")
    ]
    for each in folded(facts):
        steps = span(each.numbers[0]) + (" step" if each.numbers[0] == (1, 1) else " steps")
        text = (
            f"{subject(found, each.variables)} {was(each.variables)} never updated: "
            f"the gradient was None each time, in {steps}"
        )
        yield Case("warning", f"{text}.", variables=names_of(found, each.variables), step=1)


def gradient_missing(found: Evidence) -> Iterator[Case]:
    """A variable had a gradient in some steps and `None` in others."""
    if not found.trace.complete:
        return
    facts = []
    for history in found.histories:
        if not history.count("request", "none") or not history.count("request"):
            continue
        replica = history.replicas[0]
        spans = [each for each in history.spans(replica) if each.step.missing]
        if spans and history.placed and _silent(history, replica, found) is None:
            steps, first = sum(each.steps for each in spans), min(each.first for each in spans)
            facts.append(fact(history.variables, steps, step=first))
    for each in folded(facts):
        text = (
            f"{subject(found, each.variables)} had no gradient (None) in "
            f"{span(each.numbers[0])} of {some(found.steps, 'step')}, "
            f"first in step {each.step:,}"
        )
        yield Case("info", f"{text}.", variables=names_of(found, each.variables), step=each.step)


def never_updated(found: Evidence) -> Iterator[Case]:
    """A variable had a gradient, and was not updated, though others were."""
    if not found.trace.complete:
        return
    every = found.histories
    if not any(history.count("update") for history in every):
        return
    facts = [
        fact(
            history.variables,
            max(history.count("request", replica=r) for r in history.replicas),
        )
        for history in every
        if history.count("request") and not history.count("update")
    ]
    for each in folded(facts):
        text = (
            f"{subject(found, each.variables)} {was(each.variables)} never updated, "
            f"though apply_gradients got a gradient {_times(each.numbers[0])}{_by_itself(found)}"
        )
        yield Case("warning", f"{text}.", variables=names_of(found, each.variables), step=1)


def _by_itself(found: Evidence) -> str:
    """What else may have updated a variable that no apply method was called for."""
    for optimizer in found.optimizers:
        for remark in optimizer.remarks:
            if remark.code == "own-step":
                return (
                    f" (what {class_of(optimizer)}.{remark.method} assigns by itself is not seen)"
                )
    return ""


def stopped(found: Evidence) -> Iterator[Case]:
    """A variable was updated up to some step and never again, while others were."""
    if not found.trace.complete:
        return
    if not found.replicas:
        return
    replica = found.replicas[0]  # of those that do not do the same, see replicas_disagree
    every = [
        history
        for history in found.histories
        if history.count("update", replica=replica) and history.placed
    ]
    latest = max((_last(history.spans(replica)) for history in every), default=0)
    for because, severity, reason, advice in _STOPPED:
        facts = []
        for history in every:
            silent = _silent(history, replica, found)
            if silent is not None and silent[1] == because and latest > silent[0] + 1:
                facts.append(fact(history.variables, step=silent[0] + 1))
        for each in folded(facts):
            since = f"from step {each.step:,} on" + " or later" * (len(facts) > 3)
            text = (
                f"{subject(found, each.variables)} {was(each.variables)} no longer updated "
                f"{since} (of {some(found.steps, 'step')}): {reason}"
            )
            yield Case(
                severity,
                f"{text}.",
                advice,
                names_of(found, each.variables),
                each.step,
            )


_STOPPED: tuple[tuple[str, Severity, str, str], ...] = (
    (
        "missing",
        "warning",
        "the gradient was None since then",
        "Look for what changed in the loss at that step: a branch that is no longer taken, a "
        "tf.stop_gradient, a layer whose output is no longer used.",
    ),
    (
        "gradients",
        "warning",
        "a gradient was handed over, and not applied",
        "Look for what filters gradients in the optimizer's own apply_gradients.",
    ),
    (
        "nothing",
        "info",
        "no longer handed to apply_gradients",
        "If you froze it, this is as it should be. If not, look at the list of variables that the "
        "train step passes.",
    ),
)


def _silent(history: History, replica: int, found: Tally) -> tuple[int, str] | None:
    """The last step with an update and what came after, if no update is due any more.

    None if the steps since then are not many more than there ever were between two updates.
    """
    spans = history.spans(replica)
    last = _last(spans)
    silent = found.steps_on[replica] - last
    if not last or silent < max(3, 3 * _gap(spans, last) + 1):
        return None
    after = [each.step for each in spans if each.last > last and not each.step.updates]
    if any(step.gradients for step in after):
        return last, "gradients"
    return last, "missing" if any(step.missing for step in after) else "nothing"


def _last(spans: Iterable[Span]) -> int:
    """The last step with an update, 0 if there is none."""
    return max((each.last for each in spans if each.step.updates), default=0)


def _gap(spans: Iterable[Span], last: int) -> int:
    """At least the longest stretch of steps without an update before the last one."""
    longest = current = 0
    for each in spans:
        if each.turns > 1:
            current = 0
            longest = max(longest, each.period)
        elif each.step.updates:
            current = 0
        elif each.last < last:
            current += each.length
        longest = max(longest, current)
    return longest


def updated_twice(found: Evidence) -> Iterator[Case]:
    """A variable was updated more than once in a step."""
    facts = []
    for history in found.histories:
        if _uneven(found, history):
            continue
        for replica in history.replicas[:1]:
            spans = [each for each in history.spans(replica) if each.step.updates > 1]
            if spans:
                most = max(each.step.updates for each in spans)
                steps = sum(each.steps for each in spans)
                first = min(each.first for each in spans)
                facts.append(fact(history.variables, most, steps, step=first))
    for each in folded(facts):
        in_step, in_steps = each.numbers
        where = f"in step {each.step:,}"
        if in_steps[1] > 1:
            of = some(found.steps, "step")
            where = f"a step in {span(in_steps)} of {of}, first in step {each.step:,}"
        text = (
            f"{subject(found, each.variables)} {was(each.variables)} updated "
            f"{_times(in_step)} {where}"
        )
        yield Case("warning", f"{text}.", variables=names_of(found, each.variables), step=each.step)


def replicas_disagree(found: Evidence) -> Iterator[Case]:
    """Replicas that should do the same in each step did not."""
    if not found.trace.complete:
        return
    if len(found.replicas) < 2 or _one_copy(found):
        return
    yield from _steps_disagree(found)
    apart: dict[tuple[int, int], list[Fact]] = {}
    for history in found.histories:
        counts = {r: history.count("update", replica=r) for r in found.replicas}
        most, least = max(counts, key=lambda r: counts[r]), min(counts, key=lambda r: counts[r])
        first = history.difference(most, least) if counts[most] > counts[least] else None
        if first is not None and history.placed:
            step, here, there = first
            numbers = (here.updates, there.updates, counts[most], counts[least])
            known = fact(history.variables, *numbers, step=step, replica=least)
            apart.setdefault((most, least), []).append(known)
    for (most, least), facts in apart.items():
        for each in folded(facts):
            in_step, in_step_less, in_all, in_all_less = each.numbers
            text = (
                f"{subject(found, each.variables)} {was(each.variables)} updated "
                f"{_times(in_step)} on {replica_of(found, most)} and {_times(in_step_less)} on "
                f"{replica_of(found, least)} in step {each.step:,}, where they first differ; "
                f"{_times(in_all)} and {_times(in_all_less)} in all"
            )
            yield Case(
                "error",
                f"{text}.",
                "",
                names_of(found, each.variables),
                each.step,
                found.trace.replicas[least].id,
            )


def _steps_disagree(found: Tally) -> Iterator[Case]:
    if not found.trace.finished:
        return
    steps = found.steps_on
    most = max(found.replicas, key=lambda r: steps[r])
    behind = [each for each in found.replicas if steps[each] < steps[most]]
    if behind:
        low = min(steps[each] for each in behind)
        names = [replica_of(found, each) for each in behind]
        which = listed(names) if len(names) <= 3 else f"{len(names):,} replicas"
        counts = span((low, max(steps[each] for each in behind)))
        yield Case(
            "warning",
            f"{which}{of_optimizer(found)} ran {counts} steps, {replica_of(found, most)} "
            f"{steps[most]:,}: they differ from step {low + 1:,} on.",
            "Give each worker as much data (`dataset.repeat()` with `steps_per_epoch`), and look "
            "for a worker that left the loop early.",
            step=low + 1,
            replica=found.trace.replicas[behind[0]].id,
        )


def densified(found: Evidence) -> Iterator[Case]:
    """A gradient was sparse when it was handed over, and dense when it was applied."""
    facts = []
    for history in found.histories:
        sparse = history.count("request", "sparse")
        dense = history.count("update", "dense")
        mixed = history.count("request", "dense") or history.count("update", "sparse")
        if sparse and dense and not mixed:
            facts += [fact([index], _rows(found, index)) for index in history.variables]
    for each in folded(facts):
        text = (
            f"{subject(found, each.variables)}: the gradient was sparse when it reached "
            f"apply_gradients and dense when it was applied{_densifier(found)}, so each update "
            f"writes all {span(each.numbers[0])} rows"
        )
        yield Case("warning", f"{text}.", variables=names_of(found, each.variables))


def _rows(found: Tally, variable: int) -> int:
    shape = found.trace.variables[variable].shape
    return (shape[0] or 0) if shape else 1


def _densifier(found: Tally) -> str:
    """` (global_clipnorm is set)`: what may have done it."""
    names = ("gradient_accumulation_steps", "global_clipnorm")
    causes = [name for name in names if any(each.settings.get(name) for each in found.optimizers)]
    return f" ({listed(causes)} {'is' if len(causes) == 1 else 'are'} set)" if causes else ""


def _one_copy(found: Tally) -> bool:
    return any(name in found.trace.environment.get("strategy", "") for name in _ONE_COPY)


def _uneven(found: Tally, history: History) -> bool:
    counts = {history.count("update", replica=each) for each in found.replicas}
    return len(counts) > 1 and not _one_copy(found)


def _times(numbers: tuple[int, int]) -> str:
    low, high = numbers
    return times(low) if low == high else f"{span(numbers)} times"
