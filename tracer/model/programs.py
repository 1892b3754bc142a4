"""What is said of the processes of a run: which ran, and how they ended."""

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timezone

from tracer.errors import shown
from tracer.model.records import Program
from tracer.model.trace import Trace
from tracer.model.wording import listed

_INTERRUPTED = "KeyboardInterrupt"
_TOLD = 8  # processes
_SILENT = 30  # seconds: more than a file is behind while its program runs, as it is written


def has_ended(trace: Trace) -> bool:
    """Whether it is of programs that came to their end by themselves, so that nothing follows."""
    every = trace.programs
    return trace.finished and bool(every) and all(e.status == 0 and not e.error for e in every)


def endings(trace: Trace) -> list[str]:
    """A sentence for each way in which processes of the run ended that is no good end."""
    alike: dict[tuple[str, bool], list[str]] = {}
    steps_of = _steps_by_worker(trace)
    for program in trace.programs:
        said = _ending(program)
        if said:
            steps = steps_of[program.worker]
            when = f"after step {steps:,}" if steps else "before the first step"
            alike.setdefault((f"{said}, {when}", bool(program.worker)), []).append(program.worker)
    for program in _silent(trace):
        steps = steps_of[program.worker]
        said = f"wrote nothing after {f'step {steps:,}' if steps else 'the start'}"
        alike.setdefault((said, True), []).append(program.worker)
    return [shown(f"{_whose(workers)} {said}.") for (said, _), workers in alike.items()]


def runs(trace: Trace) -> Iterator[str]:
    """A sentence for each of the first processes: its command, when it ran, and how fast.

    There is no rate of a run that was too short to time its steps, nor of a part of a run.
    """
    steps_of = _steps_by_worker(trace)
    for program in trace.programs[:_TOLD]:
        began = datetime.fromtimestamp(program.started, timezone.utc)
        steps = steps_of[program.worker]
        trained = steps and not trace.only and (program.worker or len(trace.workers) == 1)
        rate = ""
        if trained and program.timed_seconds:
            a_second = program.timed_steps / program.timed_seconds
            rate = f", {a_second:,.3g} steps a second while it trained"
        whose = f"{program.worker}: " if program.worker else ""
        yield shown(
            f"{whose}{program.command}, on {began:%Y-%m-%d} at {began:%H:%M:%S} UTC, "
            f"for {_seconds(program.seconds)} with its start{rate}"
        )
    if len(trace.programs) > _TOLD:
        yield f"{len(trace.programs) - _TOLD:,} more processes"


def _ending(program: Program) -> str:
    if program.error == _INTERRUPTED:
        return "was interrupted (Ctrl-C)"
    if program.error:
        return f"ended with {program.error}"
    return f"ended with status {program.status}" if program.status else ""


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
    if len(running) < len(trace.programs):
        return running
    latest = max(each.started + each.seconds for each in running)
    return [each for each in running if latest - each.started - each.seconds > _SILENT]


def _whose(workers: list[str]) -> str:
    several = "" if len(workers) == 1 else "s"
    return f"The program{several} of {listed(workers)}" if all(workers) else "The program"


def _steps_by_worker(trace: Trace) -> Counter[str]:
    """The most steps that an optimizer ran on a replica, by worker; for '' on any."""
    most: Counter[str] = Counter()
    for (_, replica), steps in trace.steps_by_replica().items():
        for worker in {"", trace.replicas[replica].worker}:
            most[worker] = max(most[worker], steps)
    return most


def _seconds(seconds: float) -> str:
    """`12.3 s`, `4 min 10 s`, `3 h 5 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes} min" if hours else f"{minutes} min {rest} s"
