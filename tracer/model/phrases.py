"""Phrases facts about a trace, the same in all reports. No TensorFlow.

Names of optimizers, steps, replicas and processes; how processes ended; why steps update nothing
(skipped, accumulated) and why methods never run.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone

from msgspec.structs import replace

from tracer.errors import shown
from tracer.model import counts as measures
from tracer.model.evidence import OverrideUnreached, OwnDense
from tracer.model.reasons import (
    Accumulated,
    Fact,
    NoGradient,
    NothingPassed,
    Reason,
    Skipped,
)
from tracer.model.records import Optimizer, Program, Replica
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


# Why steps update nothing.


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
