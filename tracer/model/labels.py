"""What optimizers, steps, replicas and processes are called, and how processes ended."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from datetime import datetime, timezone

from tracer.errors import shown
from tracer.model.records import Optimizer, Program, Replica
from tracer.model.summary import Summary
from tracer.model.timeline import Steps
from tracer.model.trace import Trace
from tracer.model.words import KIND_WORDS, first_true, listed


def class_of(optimizer: Optimizer) -> str:
    """The name of an optimizer's class, without the module."""
    return optimizer.class_name.rpartition(".")[2]


def brand_of(optimizer: Optimizer, trace: Trace) -> str:
    """The library that an optimizer is of, as people call it."""
    installed = "tf_keras" if "tf_keras" in trace.environment else "Keras 2"
    by_package = {"tensorflow": "tensorflow.python.keras", "keras": "Keras 2"}
    keras2 = by_package.get(optimizer.class_name.partition(".")[0], installed)
    known = KIND_WORDS.get(optimizer.kind)
    return known.brand.format(keras2=keras2) if known else optimizer.kind


def steps_label(steps: Steps) -> str:
    """`33`, `1-32`, or `4, 8 … 64` for steps that come again and again.

    >>> steps_label(Steps(1, 63, 3, 4))
    '1-3, 5-7 … 61-63'
    """
    first, last, length, every = steps
    begins = [first] if every is None else [first, first + every, last - length + 1]
    spans = [f"{at:,}" if length == 1 else f"{at:,}-{at + length - 1:,}" for at in begins]
    return spans[0] if every is None else f"{spans[0]}, {spans[1]} … {spans[2]}"


def program_lines(trace: Trace) -> dict[int, str]:
    """The line that made each root optimizer of which the class has several, by its index.

    Their names (`adam`, `adam_3`) are counted by Keras, and say little.
    """
    roots = {i: each for i, each in enumerate(trace.optimizers) if each.root == i}
    several = Counter(each.class_name for each in roots.values())
    return {
        index: each.made
        for index, each in roots.items()
        if each.made and several[each.class_name] > 1
    }


_RANK = "rank:"
"""What the name of a worker begins with that is a process of PyTorch: it is one replica."""


def replica_noun(trace: Trace) -> str:
    """What the program calls one of several that train the same."""
    ranks = [replica.worker.startswith(_RANK) for replica in trace.replicas]
    return "rank" if ranks and all(ranks) else "replica"


def replica_name(replica: Replica, *, with_worker: bool = True) -> str:
    """`replica 1`, or `worker:1 replica 0`; without the worker if it has no name.

    >>> replica_name(Replica("worker:1", 0, "CPU:0"))
    'worker:1 replica 0'
    >>> replica_name(Replica("rank:1", 0, "cpu"))
    'rank 1'
    """
    rank = replica.worker.removeprefix(_RANK)
    if rank != replica.worker:
        return f"rank {rank}"
    worker = f"{replica.worker} " if replica.worker and with_worker else ""
    return f"{worker}replica {replica.id}"


def replica_names(trace: Trace, *others: Trace) -> list[str]:
    """The name of each replica of a trace; with its worker if there are several.

    If the names stand beside those of `others`, their workers count too.
    """
    workers = {replica.worker for each in (trace, *others) for replica in each.replicas}
    return [replica_name(each, with_worker=len(workers) > 1) for each in trace.replicas]


def only_worker(trace: Trace, replicas: Iterable[int]) -> str:
    """The worker that all of `replicas` are of, if the trace has others too; else empty."""
    workers = {trace.replicas[index].worker for index in replicas}
    return next(iter(workers)) if len(workers) == 1 < len(trace.workers) else ""


def replica_ids(trace: Trace) -> list[str]:
    """The same for a column headed by `replica_noun`: `0`, or `worker:1/0`."""
    several = len(trace.workers) > 1
    if replica_noun(trace) == "rank":
        return [each.worker.removeprefix(_RANK) for each in trace.replicas]
    return [f"{each.worker}/{each.id}" if several else str(each.id) for each in trace.replicas]


FIRST_TRACING = "graphs that never ran are usual: a first tracing only makes the variables"
"""What is said of graphs if `Summary.idle_as_usual`."""

_PARTS = (
    "a first tracing that never ran is usual: it only makes the variables; what else never ran is "
    "in a part of a graph that no step reached"
)


def why_idle(summary: Summary) -> str:
    """Why graphs never ran, if no other than usual ones did not; else empty."""
    if not summary.idle_as_usual:
        return ""
    return _PARTS if summary.idle_parts else FIRST_TRACING


_TOLD = 8  # processes
_SILENT = 30  # seconds: more than a file is behind while its program runs, as it is written


def has_ended(trace: Trace) -> bool:
    """Whether it is of programs that came to their end by themselves, so that nothing follows."""
    every = trace.programs
    return trace.finished and bool(every) and all(e.status == 0 and not e.error for e in every)


def endings(trace: Trace) -> list[str]:
    """A sentence for each way in which processes of the run ended that is no good end."""
    after = {worker: f"after step {n:,}" for worker, n in _steps_by_worker(trace).items() if n}
    ended = [
        (program.worker, f"{said}, {after.get(program.worker, 'before the first step')}")
        for program in trace.programs
        if (said := _ending(program))
    ]
    for each in _silent(trace):
        ended.append((each.worker, f"wrote nothing {after.get(each.worker, 'after the start')}"))
    alike: dict[tuple[str, bool], list[str]] = defaultdict(list)
    for worker, said in ended:
        alike[said, bool(worker)].append(worker)
    return [shown(f"{_whose(workers)} {said}.") for (said, _), workers in alike.items()]


def runs(trace: Trace) -> Iterator[str]:
    """A sentence for each of the first processes: its command, when it ran, and how fast.

    There is no rate of a run that was too short to time its steps, nor of a part of a run.
    """
    steps_of = _steps_by_worker(trace)
    for program in trace.programs[:_TOLD]:
        began = datetime.fromtimestamp(program.started, timezone.utc)
        whose, rate = f"{program.worker}: " if program.worker else "", ""
        trained = steps_of[program.worker] and (program.worker or len(trace.workers) == 1)
        if trained and program.timed_seconds and not trace.only:
            a_second = program.timed_steps / program.timed_seconds
            rate = f", {a_second:,.3g} steps a second while it trained"
        yield shown(
            f"{whose}{program.command}, on {began:%Y-%m-%d} at {began:%H:%M:%S} UTC, "
            f"for {_seconds(program.seconds)} with its start{rate}"
        )
    if len(trace.programs) > _TOLD:
        yield f"{len(trace.programs) - _TOLD:,} more processes"


def _ending(program: Program) -> str:
    return first_true(
        (program.error == "KeyboardInterrupt", "was interrupted (Ctrl-C)"),
        (program.error, f"ended with {program.error}"),
        (program.status, f"ended with status {program.status}"),
    )


def _silent(trace: Trace) -> list[Program]:
    """The workers that wrote nothing more when others had ended, or went on for some seconds.

    That a child has no status is no sign: it may have ended well.
    """
    running = [
        each
        for each in trace.programs
        if each.worker and each.status is None and not each.error and not each.run
    ]
    if trace.finished or len(trace.programs) < 2:
        return []
    others_ended = len(running) < len(trace.programs)
    latest = math.inf if others_ended else max(each.started + each.seconds for each in running)
    return [each for each in running if latest - each.started - each.seconds > _SILENT]


def _whose(workers: list[str]) -> str:
    several = "" if len(workers) == 1 else "s"
    return f"The program{several} of {listed(workers)}" if all(workers) else "The program"


def _steps_by_worker(trace: Trace) -> Counter[str]:
    """The most steps that an optimizer ran on a replica, by worker; for '' on any."""
    most: Counter[str] = Counter()
    for (_, replica), steps in trace.steps_by_replica().items():
        for worker in ("", trace.replicas[replica].worker):
            most[worker] = max(most[worker], steps)
    return most


def _seconds(seconds: float) -> str:
    """`12.3 s`, `4 min 10 s`, `3 h 5 min`."""
    minutes, rest = divmod(round(seconds), 60)
    return first_true(
        (seconds < 60, f"{seconds:.1f} s"),
        (minutes < 60, f"{minutes} min {rest} s"),
        (True, f"{minutes // 60:,} h {minutes % 60} min"),
    )
