"""What is said of the processes of a run: which ran, and how they ended."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from datetime import datetime, timezone

from tracer.errors import shown
from tracer.model.records import Program
from tracer.model.trace import Trace
from tracer.model.wording import first_true, listed

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
