"""The process that this is, and those that it starts: what they run, how they ended, their files.

The file is written again and again, so that a kill loses little of the trace. With `--children` a
child is reached in two ways: a new Python finds `startup/sitecustomize.py` by `PYTHONPATH`, and
that calls `follow`; a fork is reported by `os.register_at_fork`.
"""

import atexit
import functools
import itertools
import json
import os
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import wrapt
from msgspec.structs import replace

from tracer import locations
from tracer.api import recording_aloud
from tracer.cli.claims import claim, leave_to_parent
from tracer.errors import TraceFileError, shown
from tracer.layout import cut
from tracer.model import tracefile
from tracer.model.records import Program
from tracer.model.redaction import command_line, message, without_secrets
from tracer.model.trace import Trace
from tracer.model.words import listed

_MIN_PAUSE = 0.05  # seconds between two writings, however long the last one took
_POLL = 0.1  # seconds between two looks whether the program has made a step
_MAX_WAIT = 30  # seconds that the last writing may take
FOLDER = "traces"
"""Where one of several processes writes its own file if nothing else is asked for."""
_EMPTY = re.compile(rb'"optimizers"\s*:\s*\[\s*\]')
_MAX_CELLS = 200  # cells of what an exception says
_COLORS = re.compile(r"\x1b\[[0-9;]*m")  # Keras writes some into what its exceptions say
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

at_fork = getattr(os, "register_at_fork", lambda **hooks: None)
"""`os.register_at_fork`; nothing where there are no forks."""


class Process:
    """The process that this is, from now on; every optimizer that it uses is traced.

    `command` is what the process runs; `path`, `folder` and `seconds` are as for `Autosave`. With
    `launch`, which tells one `tracer run --children` from others, each process has a file in the
    folder, named by its number. A `child` was started by the program, so that how it ends is not
    always known, and there is a file only if it used an optimizer. If `effects`, the variables are
    compared before and after each step. `say` gets what the class of an optimizer shows, when it is
    made; `report` gets the trace and its file when the process ends, but not from its forks.
    `unfollowed` are the processes that it started and that are not traced: see `note_children`.

    The trace ends where Python does: after the program's other threads and `atexit` functions.
    """

    def __init__(
        self,
        command: str,
        path: Path | None,
        folder: Path | None,
        launch: str = "",
        *,
        seconds: float,
        child: bool = False,
        effects: bool = False,
        say: Callable[[str], None] | None = None,
        report: Callable[[Trace, Path | None], None] | None = None,
        unfollowed: Sequence[str] = (),
    ) -> None:
        self.command = command
        self._unfollowed = unfollowed
        self._launch = launch
        self._keep_in = path, folder
        self._seconds = seconds
        self._place = ("", "") if launch else place()
        self._child = child
        self._report = report
        self._tracing = ExitStack()
        self._recording = self._tracing.enter_context(recording_aloud(say, effects=effects))
        # Functions are called last come, first served: this one after all that the program adds.
        atexit.register(self._end)
        wrapt.wrap_function_wrapper(os, "_exit", self._exit)
        self._begin()

    def _begin(self) -> None:
        """Keep the trace in a file until this process ends, be it a fork of the one before."""
        self._id = os.getpid()
        self.status: int | None = None
        self._error = ""
        self._started = time.time()
        self._start = time.monotonic()
        self._readings = {0: 0.0}
        path, folder = self._keep_in
        if self._launch and folder is not None:
            path = folder / self._own_name(folder)
        self.autosave = Autosave(
            self._snapshot,
            path,
            folder,
            seconds=self._seconds,
            begun=lambda: self._recording.counted.used,
        )

    def _own_name(self, folder: Path) -> str:
        """A name that no file of the folder has: an earlier process became this one by `exec`.

        A URL is not asked, for that may take long.
        """
        name = f"process-{self._id}"
        if locations.is_remote(folder):
            return f"{name}-{secrets.token_hex(4)}.json"
        names = (f"{name}{'-again' * times}.json" for times in itertools.count())
        return next(each for each in names if not (folder / each).exists())

    @property
    def is_alive(self) -> bool:
        """True until this process ends; False in a fork of it that is not followed."""
        return os.getpid() == self._id

    def become_fork(self) -> None:
        """Be the fork of a process, in the fork, unless that had used an optimizer before."""
        # Not the trace is asked: a thread of the parent may have held its locks, and is not here.
        if self._id and not self._recording.counted.used:
            self.command = f"{self.command} (a fork)"
            self._child, self._report = True, None
            self._begin()

    def trace(self) -> Trace:
        """What was recorded so far, with the process that it is of."""
        data = self._recording.trace().data
        worker, cluster = self._place
        if worker and not any(each.worker for each in data.replicas):  # known to no framework
            replicas = tuple(replace(each, worker=worker) for each in data.replicas)
            environment = {**data.environment, "cluster": cluster}
            data = replace(data, replicas=replicas, environment=environment)
        if self._unfollowed and not data.optimizers:
            notes = (*data.notes, f"{other_processes(self._unfollowed)}: {_UNFOLLOWED}")
            data = replace(data, complete=False, notes=notes)
        seconds = time.monotonic() - self._start
        trace = Trace(data)
        program = Program(
            self.command,
            self._started,
            seconds,
            ", ".join(filter(None, trace.workers)) or worker,
            self.status,
            self._error,
            self._launch,
            *self._time_steps(trace.steps, seconds),
        )
        return Trace(replace(data, programs=(program,)))

    def _snapshot(self) -> Trace | None:
        trace = self.trace()
        return trace if trace.optimizers or not self._child else None

    def _time_steps(self, steps: int, seconds: float) -> tuple[int, float]:
        """How many steps ran in how many seconds, from the first to the last but one new reading.

        Before the first reading the program was imported, before the last one it may have ended.
        """
        self._readings.setdefault(steps, seconds)
        if len(self._readings) < 4:
            return 0, 0.0
        _, (first, began), *_, (last, ended), _ = self._readings.items()
        return last - first, ended - began

    def note(self, error: BaseException) -> None:
        """The program ended by this exception."""
        code = error.code if isinstance(error, SystemExit) else 1
        # A text is printed, and is 1.
        self.status = int(code) if isinstance(code, int) else int(code is not None)
        if not isinstance(error, SystemExit):
            said = type(error).__name__
            with suppress(Exception):  # an exception of the program may not even have a text
                text = _COLORS.sub("", " ".join(str(error).split()))
                said = ": ".join(filter(None, [said, message(text)]))
            self._error = cut(said, _MAX_CELLS, 0)
        self.autosave.hurry()  # a launcher may kill this process while it ends

    def _exit(self, leave: Callable[..., None], _: object, args: Any, options: Any) -> None:
        """End before `os._exit`, at which Python calls nothing of what waits for its end."""
        try:
            self.status = args[0] if args else options["status"]
            self._end()
        finally:
            leave(*args, **options)

    def _end(self) -> None:
        if not self.is_alive:
            return
        self._id = 0
        if not self._child:
            self.status = self.status or 0
        elif self.status is None and (uncaught := getattr(sys, "last_value", None)) is not None:
            self.note(uncaught)  # Python has printed it
        self._tracing.close()
        written = self.autosave.finish()
        if self._report is not None:
            self._report(self.trace(), written)


def place(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The name of this worker, and the names of all workers that train with it, with commas.

    The names are empty for a process that is alone, and in a cluster with parameter servers, whose
    coordinator counts for all.

    >>> place({"RANK": "1", "WORLD_SIZE": "2"})
    ('rank:1', 'rank:0, rank:1')
    >>> place({"RANK": "0", "WORLD_SIZE": "1"})
    ('', '')
    """
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        config = json.loads(environment["TF_CONFIG"])
        jobs, task = config["cluster"], config["task"]
        train = {job: range(len(jobs.get(job, ()))) for job in ("chief", "worker")}
        names = ", ".join(f"{job}:{index}" for job in train for index in train[job])
        alone = "ps" in jobs or sum(map(len, jobs.values())) < 2
        return ("", "") if alone else (f"{task['type']}:{int(task.get('index', 0))}", names)
    for rank, size in _VARIABLES:
        with suppress(KeyError, ValueError):
            number, count = int(environment[rank]), int(environment[size])
            if 0 <= number < count and 1 < count <= _MAX_RANKS:
                return f"rank:{number}", ", ".join(f"rank:{each}" for each in range(count))
    return "", ""


# The file.


class Autosave:
    """Writes what `snapshot` returns, if anything, to a file again and again until `finish`.

    It does so by a thread of its own. The file is `path`; without a `path`, or for a worker of
    several, it stands in `folder`, if one is given, and is named by the worker. It is written soon
    after the training has `begun`, then ever more rarely; it is never more than `seconds` behind,
    unless one writing takes longer than that. A file that cannot be written
    is reported once on standard error, and tried again; if that is a URL and the last writing
    fails, too, the trace goes to the folder `traces`. A trace without optimizers does not replace a
    trace that has some.
    """

    def __init__(
        self,
        snapshot: Callable[[], Trace | None],
        path: Path | None,
        folder: Path | None = None,
        *,
        seconds: float,
        begun: Callable[[], bool] = lambda: True,
    ) -> None:
        self._snapshot = snapshot
        self._begun = begun
        # The file system of a URL cannot be used in a fork of the process that opened it.
        self._path, self._folder = (
            locations.location(str(each)) if locations.is_remote(each) else each
            for each in (path, folder)
        )
        self._spare = Path(FOLDER).absolute()
        self._seconds = seconds
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._woken = threading.Event()
        self._ended = False
        self._finished = False
        self._warned = False
        self._failed = False  # also true of a writing that is not done
        self._written: Path | None = None
        self._last: Path | None = None
        self._own: dict[Path, Path] = {}  # by the name of a worker's file, the one that is written
        self._claims: list[Any] = []  # hidden files, which must stay open
        # A child process must not inherit a lock that this thread held when the process was forked.
        at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._forked)
        self._thread = threading.Thread(target=self._run, name="tracer-autosave", daemon=True)
        self._thread.start()

    def finish(self) -> Path | None:
        """Write the trace of the whole run; returns the path of the file, None if there is none."""
        place = self._path or self._folder
        if is_remote := locations.is_remote(place):
            locations.work_at_exit()
        self._ended = True
        self._woken.set()
        self._thread.join(timeout=_MAX_WAIT)
        if self._thread.is_alive():
            self._finished = True  # so that it is said, though Python ends
            self._warn(f"{place}: cannot be written: no answer for {_MAX_WAIT} s")
        for each in self._own.values() if self._last else ():
            with suppress(OSError):
                tracefile.claim_of(each).unlink()
        if not (is_remote and self._failed):
            return self._last
        self._writing, self._written = threading.Lock(), None  # the thread may hold the lock
        self._path, self._folder, self._finished = None, self._spare, True
        self._warned = False
        return self._write()

    def pause(self) -> None:
        """Write the file as that of a finished run, and no more until `resume`."""
        if not self._finished:
            self._finished = True
            self._write()

    def resume(self) -> None:
        """Keep the file up to date again."""
        self._finished = False

    def hurry(self) -> None:
        """Have the file written soon, by the thread that does so."""
        self._woken.set()

    def _run(self) -> None:
        pause = 0.0
        while not self._ended:
            began = time.monotonic()
            if not self._finished:
                self._write()
            took = time.monotonic() - began
            # What is in the file is as old as the next file is late: one pause and two writings.
            longest = max(_MIN_PAUSE, 0.8 * self._seconds - 2 * took)
            if self._begun():  # short pauses first: the program may be killed in its first second
                pause = min(longest, max(_MIN_PAUSE, 2 * pause, 10 * took))
                self._woken.wait(pause)
            else:
                until = time.monotonic() + longest
                while not (self._woken.wait(_POLL) or self._begun() or time.monotonic() > until):
                    pass
            self._woken.clear()
        self._finished = True
        self._last = self._write()

    def _write(self) -> Path | None:
        """Write the file; returns its path, None if there is nothing to write or that failed."""
        self._failed = True
        try:
            with self._writing:
                written = self._save()
            self._failed = False
            return written
        except TraceFileError as error:
            self._warn(str(error))
        except Exception as error:  # whatever it is, it must not reach the program
            place = self._path or self._folder
            self._warn(f"{place}: the trace was not written: {type(error).__name__}: {error}")
        return None

    def _save(self) -> Path | None:
        with self._reading:
            trace = self._snapshot()
        if trace is None or (path := self._file(trace)) is None:
            return None
        if not trace.optimizers and (earlier := self._earlier(path)) is not None:
            if self._finished:
                kept = locations.display(earlier)
                say(f"kept {kept}, the trace of an earlier run: this run used no optimizer")
            return None
        if locations.is_remote(path):  # which was not looked at when the program was started
            if self._written is None and tracefile.is_other(path):
                raise TraceFileError(f"{path}: is not a trace file, and would be overwritten")
        else:
            with suppress(OSError):  # the writing says why
                path.parent.mkdir(parents=True, exist_ok=True)
            if _is_one_of_several(trace) and path.parent == self._folder:
                path = self._own.get(path) or self._claim(path)
        programs = (replace(each, finished=self._finished) for each in trace.programs)
        data = replace(trace.data, finished=self._finished, programs=tuple(programs))
        tracefile.save(data, path)
        if self._written is not None and self._written != path:
            self._written.unlink(missing_ok=True)
        self._written = path
        return path

    def _file(self, trace: Trace) -> Path | None:
        """The file to write; None as long as it is not known which worker this is."""
        if self._folder is None or (self._path is not None and not _is_one_of_several(trace)):
            return self._path
        known = self._finished or trace.replicas or any(each.worker for each in trace.programs)
        return self._folder / tracefile.file_name(trace) if known else None

    def _claim(self, path: Path) -> Path:
        """The file of this worker: `path`, unless a process that lives has it; none is lost."""
        of_one_launch = self._path is not None and self._path.parent == self._folder
        own, hidden, kept = claim(path, only_new=of_one_launch)
        self._own[path] = own
        self._claims += filter(None, [hidden])
        place = locations.display(path)
        if kept is not None:
            say(f"{place} was of an earlier run: it is {locations.display(kept)} now")
        if own != path and not of_one_launch:
            say(f"{place} is of another process that runs: this one writes {own.name}")
        return own

    def _earlier(self, path: Path) -> Path | None:
        """The trace with optimizers that a trace without any would replace, or stand next to."""
        of_no_worker = path != self._path and path.stem == "trace"
        files = path.parent.glob("*.json") if of_no_worker else [path]
        return next(
            (each for each in files if (at := tracefile.head(each)) and not _EMPTY.search(at)), None
        )

    def _warn(self, reason: str) -> None:
        # While Python ends, a save may fail that is not the last one: the last one says so.
        if not self._warned and (self._finished or not locations.python_ends.is_set()):
            self._warned = True
            say(f"{reason} (the program goes on; this is not said again)")

    def _hold(self) -> None:
        self._held = self._reading.acquire(timeout=5)

    def _release(self) -> None:
        if self._held:
            self._reading.release()

    def _forked(self) -> None:
        self._release()
        for each in self._claims:
            leave_to_parent(each)


def _is_one_of_several(trace: Trace) -> bool:
    return ", " in trace.environment.get("cluster", "")


def say(line: str) -> None:
    """Print one line on standard error, if there is one; without the secrets of a URL in it."""
    with suppress(OSError, ValueError):  # it is closed, or a pipe that nobody reads
        text = shown(message(" ".join(line.split())))
        print(f"tracer: {text}", file=sys.__stderr__, flush=True)


# The processes that a program starts.

_CHILDREN = "TRACER_CHILDREN"
_STARTUP = Path(__file__).parent / "startup"
_MAX_COMMAND = 60  # cells of a command
_MAX_NAMES = 3  # processes
_TOOLS = {"git", "hostname", "ldconfig", "lscpu", "nvidia-smi", "uname"}
"""Programs that train nothing, and that frameworks or Python's `platform` start on their own."""
_UNFOLLOWED = "what they do is not traced; `tracer run --children` follows them"
_Call = Callable[..., Any]


def note_children() -> list[str]:
    """What the processes are called that this one starts from now on, each when it has started."""
    started: list[str] = []

    def run_subprocess(run: _Call, process: Any, args: Any, options: Any) -> None:
        run(*args, **options)
        command = process.args
        is_text = isinstance(command, str | bytes | os.PathLike)
        words = os.fsdecode(command).split(" ") if is_text else [*map(os.fsdecode, command)]
        if os.path.basename(words[0]) not in _TOOLS:
            said = " ".join(without_secrets(words))
            started.append(cut(shown(said), _MAX_COMMAND, _MAX_COMMAND // 2))

    def start_process(start: _Call, process: Any, args: Any, options: Any) -> None:
        before = len(started)
        start(*args, **options)
        started[before:] = [f"{process.name} of multiprocessing"]  # which may be a fork

    at_fork(after_in_parent=lambda: started.append("a fork"))
    wrapt.wrap_function_wrapper(subprocess, "Popen.__init__", run_subprocess)
    _wrap_process("start", start_process)
    return started


def other_processes(started: Sequence[str]) -> str:
    """That the program started these processes."""
    return f"the program started other processes ({listed([*dict.fromkeys(started)], _MAX_NAMES)})"


def follow_children(process: Process, folder: Path, options: Mapping[str, Any]) -> None:
    """Trace what the first process of a launch starts, with the same `options` of `Process`."""
    os.environ[_CHILDREN] = json.dumps([str(folder), options])
    path = [os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else []
    os.environ["PYTHONPATH"] = os.pathsep.join([str(_STARTUP), *path])
    _watch_starts(process)


def follow() -> None:
    """Trace this process, which a program started under `tracer run --children`."""
    if settings := os.environ.get(_CHILDREN):
        folder, options = json.loads(settings)
        command = command_line(sys.orig_argv[1:])
        _watch_starts(Process(command, None, locations.location(folder), child=True, **options))


def _watch_starts(process: Process) -> None:
    """Trace the forks of a process, and learn what those of `multiprocessing` do."""
    at_fork(after_in_child=process.become_fork)
    _wrap_process("_bootstrap", functools.partial(_bootstrap, process))
    wrapt.register_post_import_hook(
        functools.partial(_watch_pools, process), "multiprocessing.pool"
    )


def _bootstrap(process: Process, bootstrap: _Call, started: Any, args: Any, options: Any) -> Any:
    """Learn what a process of `multiprocessing` is called, and how it ends.

    It ends in `_bootstrap`, which prints and keeps what the program raises.
    """
    process.command = f"{command_line(sys.argv)} ({started.name})"
    process.status = bootstrap(*args, **options)
    return process.status


def _watch_pools(process: Process, module: ModuleType) -> None:
    """Write the file before a worker of a pool returns a result.

    For the program may end the pool as soon as it has them all, and does so by a signal.
    """
    worker: _Call = vars(module)["worker"]

    @functools.wraps(worker)
    def saving(tasks: Any, results: Any, *args: Any, **options: Any) -> None:
        take, give = tasks.get, results.put

        def get() -> Any:
            process.autosave.pause()  # the initializer may have trained
            task = take()
            process.autosave.resume()
            return task

        def put(result: Any) -> None:
            process.autosave.pause()
            give(result)

        if process.is_alive and hasattr(tasks, "_writer"):  # no queue of threads
            tasks.get, results.put = get, put
        worker(tasks, results, *args, **options)

    vars(module)["worker"] = saving


def _wrap_process(method: str, wrapper: Callable[..., Any]) -> None:
    """Wrap a method of each process of `multiprocessing`, as soon as that is imported."""
    wrapt.register_post_import_hook(
        lambda module: wrapt.wrap_function_wrapper(module, f"BaseProcess.{method}", wrapper),
        "multiprocessing.process",
    )
