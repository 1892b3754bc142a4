"""The process that this is: what it runs, since when, how it ended, its trace and its file."""

import atexit
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from tracer.api import CallTrace, recording_aloud
from tracer.cli.autosave import Autosave
from tracer.layout import cut
from tracer.model.records import Program, TraceData
from tracer.model.redaction import message

_LONGEST = 200  # cells of what an exception says
_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""The rank and the number of ranks, as a launcher says them in the environment.

Sources: docs.pytorch.org/docs/stable/elastic/run.html (`RANK`, `WORLD_SIZE`), Open MPI's
mpirun(1), MPICH's Hydra and Slurm's srun(1). `SLURM_NTASKS` is not asked: a batch script, which is
one process, has it too."""
_MAX_RANKS = 100_000


class Process:
    """The process that this is, from now on; every optimizer that it uses is traced.

    `command` is what the process runs, `launch` tells one `tracer run --children` from others, and
    a `child` was started by the program, so that how it ends is not always known. If `effects`, the
    variables are compared before and after each step. `say` is told what the class of an optimizer
    shows, when it is made.
    """

    def __init__(
        self,
        command: str,
        launch: str = "",
        *,
        child: bool = False,
        effects: bool = False,
        say: Callable[[str], None] | None = None,
    ) -> None:
        self.command = command
        self.launch = launch
        self.effects = effects
        self._place = ("", ()) if launch else place()
        self._child = child
        self._tracing = ExitStack()
        self._recording = self._tracing.enter_context(recording_aloud(say, effects=effects))
        self._begin()

    def _begin(self) -> None:
        self._id = os.getpid()
        self._over = False
        self.status: int | None = None
        self._error = ""
        self._started = time.time()
        self._start = time.monotonic()
        self._grown: list[tuple[int, float]] = []

    def keep(
        self,
        path: Path,
        *,
        folder: bool,
        seconds: float,
        workers: Path | None = None,
        always: bool = True,
        told: Callable[[CallTrace, Path | None], None] = lambda trace, written: None,
    ) -> Autosave:
        """Keep the trace in a file until the process ends; then call `told` with both.

        `path`, `folder`, `seconds` and `workers` are those of `Autosave`; where not `always`, there
        is a file only if an optimizer was used. The trace ends where Python does: after the
        program's other threads and `atexit` functions.
        """

        def snapshot() -> CallTrace | None:
            trace = self.trace()
            return trace if always or trace.optimizers else None

        autosave = Autosave(snapshot, path, folder=folder, seconds=seconds, workers=workers)

        def end() -> None:
            give_back()
            if os.getpid() != self._id or self._over:
                return
            self._over = True
            uncaught = getattr(sys, "last_value", None)  # Python has printed it
            if self._child and self.status is None and uncaught is not None:
                self.note(uncaught)
            self._tracing.close()
            written = autosave.finish()
            told(self.trace(), written)

        # Functions are called last come, first served: this one after all that the program adds.
        atexit.register(end)
        autosave.start()
        give_back = self._end_before_exiting(end)
        return autosave

    def restart_as_fork(self, command: str) -> bool:
        """Be the fork of a process, in the fork; False if that had used an optimizer before."""
        # Not the trace is asked: a thread of the parent may have held its locks, and is not here.
        if self._over or self._recording.used:
            return False
        self.command = command
        self._child = True
        self._begin()
        return True

    def trace(self) -> CallTrace:
        """What was recorded so far, with the process that it is of."""
        data = _placed(self._recording.trace().data, *self._place)
        status = 0 if self._over and self.status is None and not self._child else self.status
        seconds = time.monotonic() - self._start
        timed_steps, timed_seconds = self._time_steps(CallTrace(data).steps, seconds)
        worker = ", ".join(dict.fromkeys(each.worker for each in data.replicas if each.worker))
        program = Program(
            self.command,
            self._started,
            seconds,
            worker or self._place[0],
            status,
            self._error,
            self.launch,
            timed_steps,
            timed_seconds,
        )
        return CallTrace(msgspec.structs.replace(data, programs=(program,)))

    def _time_steps(self, steps: int, seconds: float) -> tuple[int, float]:
        """How many steps ran in how many seconds, from the first to the last but one new reading.

        Before the first reading the program was imported, before the last one it may have ended.
        """
        grown = self._grown
        if steps > (grown[-1][0] if grown else 0):
            grown = self._grown = [*grown[:1], *grown[1:][-1:], (steps, seconds)]
        if len(grown) < 3:
            return 0, 0.0
        (first, began), (last, ended), _ = grown
        return last - first, ended - began

    def note(self, error: BaseException) -> None:
        """The program ended by this exception."""
        if isinstance(error, SystemExit):
            # What `sys.exit` was given: nothing is well, a text is printed and is 1.
            code = error.code
            self.status = 0 if code is None else int(code) if isinstance(code, int) else 1
        else:
            self.status = 1
            said = ""
            with suppress(Exception):  # an exception of the program may not even have a text
                said = message(" ".join(str(error).split()))
            self._error = cut(f"{type(error).__name__}{': ' if said else ''}{said}", _LONGEST, 0)

    def _end_before_exiting(self, end: Callable[[], None]) -> Callable[[], None]:
        """Call `end` before `os._exit`, at which Python calls nothing of what waits for its end.

        Returns a function that puts `os._exit` back.
        """
        leave = os._exit

        @functools.wraps(leave)
        def leave_at_once(status: int) -> NoReturn:
            try:
                if not self._over and os.getpid() == self._id:
                    self.status = status
                    end()
            finally:
                leave(status)

        os._exit = leave_at_once

        def give_back() -> None:
            if os._exit is leave_at_once:
                os._exit = leave

        return give_back


def _placed(data: TraceData, worker: str, cluster: Sequence[str]) -> TraceData:
    """The trace, as that of `worker` of a `cluster` if its framework knows of no workers."""
    if not worker or any(each.worker for each in data.replicas):
        return data
    return msgspec.structs.replace(
        data,
        replicas=tuple(msgspec.structs.replace(each, worker=worker) for each in data.replicas),
        environment={**data.environment, "cluster": ", ".join(cluster)},
    )


def place(environment: Mapping[str, str] = os.environ) -> tuple[str, tuple[str, ...]]:
    """The name of this worker, and the names of all workers that train with it.

    The name is empty for a process that is alone, and in a cluster with parameter servers, whose
    coordinator counts for all.

    >>> place({"RANK": "1", "WORLD_SIZE": "2"})
    ('rank:1', ('rank:0', 'rank:1'))
    >>> place({"RANK": "0", "WORLD_SIZE": "1"})
    ('', ())
    """
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        return _task(json.loads(environment["TF_CONFIG"]))
    for rank, size in _VARIABLES:
        with suppress(KeyError, ValueError):
            number, count = int(environment[rank]), int(environment[size])
            if 0 <= number < count and 1 < count <= _MAX_RANKS:
                return f"rank:{number}", tuple(f"rank:{each}" for each in range(count))
    return "", ()


def _task(config: Mapping[str, Any]) -> tuple[str, tuple[str, ...]]:
    """The task that `TF_CONFIG` makes of this process, and those that train."""
    jobs = config["cluster"]
    if "ps" in jobs or sum(map(len, jobs.values())) < 2:
        return "", ()
    trains = [job for job in sorted(jobs) if job in ("chief", "worker")]
    every = tuple(f"{job}:{index}" for job in trains for index in range(len(jobs[job])))
    task = config["task"]
    return f"{task['type']}:{int(task.get('index', 0))}", every
