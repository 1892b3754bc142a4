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
    return [shown(f"{_whose(workers)} {said}.") for (said, _), workers in alike.items()]


def runs(trace: Trace) -> Iterator[str]:
    """A sentence for each of the first processes: its command, when it ran, and how fast.

    A part of a run took a part of the time, and nobody knows which: it has no rate.
    """
    steps_of = _steps_by_worker(trace)
    for program in trace.programs[:_TOLD]:
        began = datetime.fromtimestamp(program.started, timezone.utc)
        steps = steps_of[program.worker]
        trained = steps and not trace.only and (program.worker or len(trace.workers) == 1)
        rate = f", {steps / program.seconds:,.3g} steps a second" if trained else ""
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


def _whose(workers: list[str]) -> str:
    if not all(workers):
        return "The program"
    return f"The program{'' if len(workers) == 1 else 's'} of {listed(workers)}"


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
