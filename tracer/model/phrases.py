"""Phrases facts about a trace, the same in all reports, and decides why steps updated nothing.

Names of optimizers, steps, replicas and processes; how processes ended; why steps with gradients
updated nothing (skipped, accumulated), and why methods never ran. No TensorFlow.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone

from msgspec.structs import replace

from tracer.errors import shown
from tracer.model import counts as measures
from tracer.model.evidence import OverrideUnreached, OwnDense
from tracer.model.records import Block, Optimizer, Program, Replica
from tracer.model.timeline import Steps
from tracer.model.trace import Summary, Trace
from tracer.model.words import KIND_WORDS, first_of, first_true, listed


def where_made(summary: Summary) -> str:
    """`Adam was made in train.py:12`, of the root optimizer; empty if unknown."""
    root = summary.optimizers[0]
    return f"{root.name} was made in {root.made}" if root.made else ""


def class_of(optimizer: Optimizer) -> str:
    """The name of an optimizer's class, without the module."""
    return optimizer.class_name.rpartition(".")[2]


def brand_of(optimizer: Optimizer, trace: Trace) -> str:
    """The common name of an optimizer's library."""
    installed = "tf_keras" if "tf_keras" in trace.environment else "Keras 2"
    by_package = {"tensorflow": "tensorflow.python.keras", "keras": "Keras 2"}
    keras2 = by_package.get(optimizer.class_name.partition(".")[0], installed)
    known = KIND_WORDS.get(optimizer.kind)
    return known.brand.format(keras2=keras2) if known else optimizer.kind


def steps_label(steps: Steps) -> str:
    """The text of steps: `33`, `1-32`, or `4, 8 … 64` for recurring steps.

    >>> steps_label(Steps(1, 63, 3, 4))
    '1-3, 5-7 … 61-63'
    """
    first, last, length, every = steps
    begins = [first] if every is None else [first, first + every, last - length + 1]
    spans = [f"{at:,}" if length == 1 else f"{at:,}-{at + length - 1:,}" for at in begins]
    return spans[0] if every is None else f"{spans[0]}, {spans[1]} … {spans[2]}"


def program_lines(trace: Trace) -> dict[int, str]:
    """The line that made each root optimizer, by index, if others have its class.

    Keras numbers their names (`adam`, `adam_3`), which say little.
    """
    roots = {i: each for i, each in enumerate(trace.optimizers) if each.root == i}
    several = Counter(each.class_name for each in roots.values())
    return {
        index: each.made
        for index, each in roots.items()
        if each.made and several[each.class_name] > 1
    }


_RANK = "rank:"
"""The prefix of a worker's name for a PyTorch process, which is one replica."""


def replica_noun(trace: Trace) -> str:
    """The program's word for a replica: `rank` or `replica`."""
    ranks = [replica.worker.startswith(_RANK) for replica in trace.replicas]
    return "rank" if ranks and all(ranks) else "replica"


def replica_name(replica: Replica, *, with_worker: bool = True) -> str:
    """The name of a replica: `replica 1`, or `worker:1 replica 0` if the worker has a name.

    >>> replica_name(Replica("worker:1", 0, "CPU:0"))
    'worker:1 replica 0'
    >>> replica_name(Replica("rank:1", 0, "cpu"))
    'rank 1'
    """
    short = not with_worker and not replica.worker.startswith(_RANK)
    return f"replica {replica.id}" if short else replica.label


def replica_names(trace: Trace, *others: Trace) -> list[str]:
    """The name of each replica of a trace; with its worker if there are several workers.

    The workers of `others` count if the names are read together with theirs.
    """
    workers = {replica.worker for each in (trace, *others) for replica in each.replicas}
    return [replica_name(each, with_worker=len(workers) > 1) for each in trace.replicas]


def replica_ids(trace: Trace) -> list[str]:
    """The names for a column headed by `replica_noun`: `0`, or `worker:1/0`."""
    several = len(trace.workers) > 1
    if replica_noun(trace) == "rank":
        return [each.worker.removeprefix(_RANK) for each in trace.replicas]
    return [f"{each.worker}/{each.id}" if several else str(each.id) for each in trace.replicas]


SET_TO_ZERO = "set to zero"
"""Why a leaf of optax was not updated: `set_to_zero` freezes it."""

FIRST_TRACING = "graphs that never ran are usual: a first tracing only makes the variables"
"""The sentence about graphs if `Summary.idle_as_usual`."""

_PARTS = (
    "a first tracing that never ran is usual: it only makes the variables; what else never ran is "
    "in a part of a graph that no step reached"
)


def why_idle(summary: Summary) -> str:
    """Why graphs never ran, if all of these are usual; else empty."""
    if not summary.idle_as_usual:
        return ""
    return _PARTS if summary.idle_parts else FIRST_TRACING


# Processes: which ran, and how they ended.

_MAX_PROGRAMS = 8  # processes
_MAX_SILENCE = 30  # seconds: longer than a running program goes without saving


def has_ended(trace: Trace) -> bool:
    """Whether all programs of the trace ended without an error, so that nothing follows."""
    every = trace.programs
    return trace.finished and bool(every) and all(e.status == 0 and not e.error for e in every)


def endings(trace: Trace) -> list[str]:
    """Return a sentence for each way in which processes of the run ended badly.

    If one worker of a training ended badly, the workers that ended well are named, too. If all are
    running, or all were killed at once, their last saves are named.
    """
    steps = {worker: f"after step {n:,}" for worker, n in _steps_by_worker(trace).items() if n}
    workers = _of_one_training(trace)
    trained = [each for each in trace.programs if each.worker in steps and each.worker]
    running = [e for e in dict.fromkeys([*workers, *trained]) if not (e.finished or _ending(e))]
    launchers = _launchers(trace)  # they outlive their ranks
    ended_first = any(each.finished or _ending(each) for each in [*workers, *launchers])
    silent = _silent(running, others_ended=ended_first)
    ended = [(each, how) for each in trace.programs if (how := _ending(each))]
    if silent or any(each in workers for each, _ in ended):
        well = [each for each in workers if each.finished and not _ending(each)]
        ended += [(each, "ended well" if each.status == 0 else "ended") for each in well]
    said = [(e, f"wrote nothing {steps.get(e.worker, 'after the start')}") for e in silent]
    for each, how in ended:
        if each in launchers and not each.worker and any(trace.workers):
            said.append((replace(each, worker="the launcher"), how))  # which made no steps itself
            continue
        where = steps.get(each.worker, "before the first step")
        if not each.finished:  # it may have run on after its last save
            where = f"and wrote nothing {steps.get(each.worker, 'after the start')}"
        said.append((each, f"{how}, {where}"))
    alike: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for program, how in said:
        alike[how, bool(program.worker)].append(program.worker)
    found = [_sentence(names, how) for (how, _), names in alike.items()]
    if more := found[_MAX_PROGRAMS:]:
        found[_MAX_PROGRAMS:] = [f"{len(more):,} more such sentences are left out."]
    if running and not silent:
        found.append(f"Saved last: {first_of(_saves(running, steps), _MAX_PROGRAMS)}.")
    return [shown(each) for each in found]


def runs(trace: Trace) -> Iterator[str]:
    """Yield a sentence for each of the first processes: its command and when it began."""
    for program in trace.programs[:_MAX_PROGRAMS]:
        whose = f"{program.worker}: " if program.worker else ""
        yield shown(
            f"{whose}{program.command}, on {_utc(program.started):%Y-%m-%d at %H:%M:%S} UTC"
        )
    if len(trace.programs) > _MAX_PROGRAMS:
        yield f"{len(trace.programs) - _MAX_PROGRAMS:,} more processes"


def _launchers(trace: Trace) -> list[Program]:
    """The first program of a `tracer run --children`."""
    return sorted(trace.programs, key=lambda each: each.started)[:1] if _follows(trace) else []


def _follows(trace: Trace) -> bool:
    """True for the trace of a `tracer run --children`."""
    return trace.data.launch is not None and trace.data.launch.run != ""


def _ending(program: Program) -> str:
    return first_true(
        (program.error == "KeyboardInterrupt", "ended at Ctrl-C"),
        (program.error, f"ended with {program.error}"),
        (program.status, f"ended with status {program.status}"),
    )


def _of_one_training(trace: Trace) -> list[Program]:
    """The programs of workers; if one command started them, only the workers of its cluster."""
    cluster = {*trace.environment.get("cluster", "").split(", ")}
    return [e for e in trace.programs if e.worker and (not _follows(trace) or e.worker in cluster)]


def _silent(running: Sequence[Program], *, others_ended: bool) -> list[Program]:
    """The programs that stopped writing while others ended or kept writing."""
    saved = [each.started + each.seconds for each in running]
    latest = math.inf if others_ended else max(saved, default=0)
    return [each for each, at in zip(running, saved, strict=True) if latest - at > _MAX_SILENCE]


def _saves(running: Sequence[Program], steps: Mapping[str, str]) -> list[str]:
    """The last save of each program, oldest first."""
    saves = sorted((each.started + each.seconds, each.worker) for each in running)
    return [
        f"{name} {steps.get(name, 'at its start')} ({_utc(at):%H:%M:%S} UTC)" for at, name in saves
    ]


def _sentence(workers: list[str], how: str) -> str:
    """The sentence on how these workers' programs ended, or the only program, if it has no name."""
    if not all(workers):
        return f"The program {how}."
    if len(workers) == 1:
        return f"The program of {workers[0]} {how}."
    return f"The programs of {listed(workers, _MAX_PROGRAMS)} {how}."


def _steps_by_worker(trace: Trace) -> Counter[str]:
    """The most steps of an optimizer on a replica, by worker; '' for all workers."""
    most: Counter[str] = Counter()
    for (_, replica), steps in trace.steps_by_replica().items():
        for worker in ("", trace.replicas[replica].worker):
            most[worker] = max(most[worker], steps)
    return most


def _utc(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, timezone.utc)


# Why steps updated nothing.


@dataclass(frozen=True)
class Accumulated:
    """The gradients were kept for a later step."""

    every: int = 1
    """The number of steps whose gradients one update takes; 1 if a schedule sets it."""
    seems: bool = False
    """True if only the regular steps show it."""


@dataclass(frozen=True)
class Skipped:
    """The gradients were dropped, for example because they were not finite."""

    by: str
    """`the loss scale`, `GradScaler`, or the name of a transformation of optax."""


@dataclass(frozen=True)
class SetToZero:
    """`set_to_zero` of optax replaced the updates."""


@dataclass(frozen=True)
class NothingPassed:
    """The step got no variables."""


@dataclass(frozen=True)
class NoGradient:
    """All gradients of the step were None."""


Fact = Accumulated | Skipped | SetToZero | NothingPassed | NoGradient


@dataclass(frozen=True)
class Reason:
    """Why steps updated nothing."""

    facts: tuple[Fact, ...]
    """One of these; empty if the trace does not show it."""
    everywhere: bool
    """Whether the reason holds for all steps that updated nothing: all got gradients, or none."""
    usual: bool
    """Whether the reason is known, and no fault."""


def reason(summary: Summary) -> Reason:
    """Return why steps updated nothing, as far as the trace shows it.

    If any of them got gradients, why these were not applied.
    """
    in_steps = summary.spread(measures.updates, measures.requests, measures.missing)
    idle = [(came, none) for made, came, none in in_steps if not made]
    if idle and not any(came for came, _ in idle):
        with_none = {none > 0 for _, none in idle}
        fact = NoGradient() if True in with_none else NothingPassed()
        return Reason((fact,), len(with_none) == 1, False)
    facts, skips = _facts(summary), skipped(summary)
    usual = bool(facts) and not (skips and skips.hopeless)
    return Reason(facts, all(came for came, _ in idle), usual)


def reason_for_all(summary: Summary) -> Reason | None:
    """Why no step of the run updated anything; None if one did, or if unknown."""
    if not summary.steps or summary.total(measures.updates):
        return None
    why = reason(summary)
    return why if why.facts and why.everywhere else None


def _facts(summary: Summary) -> tuple[Fact, ...]:
    by, kept = skipper(summary.optimizers), Accumulated(accumulated_steps(summary))
    if kept.every > 1 or summary.total(measures.discarded):
        reached = accumulations(summary)
        number = None if reached is None else summary.total(reached)
        if not by or (number is not None and number >= summary.total(measures.steps)):
            return (kept,)
        if number != 0:
            return kept, Skipped(by)
    if by:
        return (Skipped(by),)
    if summary.total(measures.zeroed):
        return (SetToZero(),)
    seems = summary.replicas and every(summary, measures.updates, summary.replicas[0])
    return (Accumulated(seems=True),) if seems else ()


# Loss scales.


@dataclass(frozen=True)
class Skips:
    """The steps skipped by a loss scale."""

    number: int
    first: int
    longest: tuple[int, int]
    """The first and last step of the longest streak."""
    by: Optimizer
    hopeless: bool
    """Whether no loss scale can help: gradients are infinite or NaN at any scale."""


_FIRST_SCALE = 2**15
"""The initial loss scale of TensorFlow and Keras, unless set."""


def skipped(summary: Summary) -> Skips | None:
    """The steps that a loss scale skipped; None if none, or if unknown."""
    scale = next((each for each in summary.optimizers if skipper([each])), None)
    reached = accumulations(summary) if accumulated_steps(summary) > 1 else measures.updates
    if scale is None or not summary.trace.complete or not summary.steps:
        return None
    if reached is None or summary.step_unknown(reached) or not summary.asked_on:
        return None
    replica = summary.asked_on[0]  # a loss scale decides for all replicas
    timeline = summary.timeline(reached, replica=replica)
    streaks = [(first, last) for first, last, _ in timeline.spans(lambda made: not any(made))]
    if not streaks:
        return None
    longest = max(streaks, key=lambda each: each[1] - each[0])
    in_a_row = longest[1] - longest[0] + 1
    scales = (scale.settings.get("initial_scale"), _FIRST_SCALE)
    initial = next(n for n in scales if isinstance(n, int | float) and n >= 1)
    hopeless = (
        scale.settings.get("dynamic_scale") == 0
        or in_a_row > math.ceil(math.log2(initial))  # the number of halvings down to 1
        or in_a_row == summary.steps_on[replica]
    )
    return Skips(timeline.spread[(0,)], streaks[0][0], longest, scale, hopeless)


def skipper(optimizers: Iterable[Optimizer]) -> str:
    """The name of what skips steps, for example if gradients are not finite; empty if nothing does.

    For optax, `skipped_by` has the name of a transformation.
    """
    for each in optimizers:
        by = "GradScaler" if each.settings.get("grad_scaler") else each.settings.get("skipped_by")
        if by or "LossScale" in each.class_name.rpartition(".")[2]:
            return str(by or "the loss scale")
    return ""


def accumulated_steps(summary: Summary) -> int:
    """How many steps of gradients the optimizer accumulates."""
    return max(map(_accumulated, summary.optimizers), default=1)


def _accumulated(optimizer: Optimizer) -> int:
    setting = optimizer.settings.get("gradient_accumulation_steps")
    return setting if isinstance(setting, int) else 1


def accumulations(summary: Summary) -> measures.Measure | None:
    """Return a measure of the steps that reached an accumulating optimizer; None if unknown.

    Each of these steps added gradients up, or applied a whole group. A step that a loss scale
    skipped is not counted: it did not reach the optimizer inside. An optax transformation was
    reached if it computed anything, even for a later step.
    """
    if any(each.settings.get("skipped_by") for each in summary.optimizers):
        return lambda block: int(block.step and _computed(block) > 0)
    optimizers = summary.trace.optimizers

    def reached(block: Block) -> int:
        steps = (entry for entry in block.entries if entry.role == "step")  # by each step method
        kept = (each.times for each in steps if _accumulated(optimizers[each.optimizer]) > 1)
        return max(kept, default=0)

    known = summary.total(reached) or not summary.total(measures.updates)
    return reached if known and accumulated_steps(summary) > 1 else None


_computed = measures.counting(["update", "discarded"], None)


def every(summary: Summary, measure: measures.Measure, replica: int) -> int:
    """Return `n` if the executions came every nth step from the nth to the end, else 0."""
    match [*summary.timeline(measure, replica=replica).parts()]:
        case [(_, (0,)), (Steps(length=1, every=int(number)), _)]:
            return number
        case [
            (_, (0,)),
            (Steps(length=1, every=int(number)), _),
            (Steps(every=None) as rest, (0,)),
        ]:
            return number if rest.length < number else 0
    return 0


# Its words.


def words_of(fact: Fact, *, in_brackets: bool = False) -> str:
    """The words for one fact: `accumulated (4 steps)`, or `accumulated, 4 steps` in brackets."""
    match fact:
        case NothingPassed():
            return "nothing was passed"
        case NoGradient():
            return "no gradient came"
        case Skipped(by):
            return f"skipped by {by}"
        case Accumulated(seems=True):
            return "accumulating, it seems"
        case Accumulated(every=1):
            return "accumulated"
        case Accumulated(number):
            return (
                f"accumulated, {number:,} steps"
                if in_brackets
                else f"accumulated ({number:,} steps)"
            )
    return SET_TO_ZERO


def text_of(facts: Iterable[Fact], *, in_brackets: bool = False) -> str:
    """Why a step updated nothing, one of these: `accumulated (4 steps)`; empty without any."""
    return ", or ".join(words_of(fact, in_brackets=in_brackets) for fact in facts)


def bracket_of(reason: Reason) -> str:
    """` (accumulated, 4 steps)` if the reason holds for all steps without updates; else empty."""
    return (
        f" ({text_of(reason.facts, in_brackets=True)})"
        if reason.facts and reason.everywhere
        else ""
    )


# Methods that never ran.


def never_reached(summary: Summary) -> list[str]:
    """Return a sentence for each update method of the program that never ran.

    Nothing calls it, or it is for dense gradients and there were none.
    """
    found = [
        (optimizer, own.method, own.line, f"{KIND_WORDS[optimizer.kind].calls} {own.called}")
        for optimizer, own in summary.evidence(OverrideUnreached)
    ]
    found += [
        (optimizer, own.method, own.line, "every gradient that was applied was sparse")
        for optimizer, own in summary.evidence(OwnDense)
        if _only_sparse(summary, optimizer, own.method)
    ]
    sentences = (
        shown(f"{method} of {class_of(optimizer)}{f' ({line})' if line else ''} never ran: {why}.")
        for optimizer, method, line, why in found
    )
    return list(dict.fromkeys(sentences))


def _only_sparse(summary: Summary, optimizer: Optimizer, method: str) -> bool:
    """Whether an optimizer got only sparse gradients, so that `method` never ran."""
    trace = summary.trace
    index = trace.optimizers.index(optimizer)
    applying = measures.counting(measures.EXECUTIONS - {"step"}, None, optimizer=index)
    counts = summary.by(["kind", "method"], applying)
    done = {(kind, trace.methods[at].name) for (kind, at), number in counts.items() if number}
    is_sparse = {kind for kind, _ in done} == {"sparse"}
    return trace.complete and is_sparse and ("sparse", method) not in done
