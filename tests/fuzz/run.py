"""Runs random programs: `python -m fuzz.run --seconds 600 --seed 1`, in the folder `tests`.

The programs run in another process, many in each, which is ended if one of them hangs.
"""

import argparse
import contextlib
import faulthandler
import gc
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fuzz.generator import program_of
from fuzz.oracle import Fault, Model, faults
from fuzz.programs import Program, source
from fuzz.shrinking import shrunk

TESTS = Path(__file__).parents[1]
LIMIT = 120
"""Seconds that one program may take, with all that is left out of it if it fails."""
BATCH = 250
"""How many programs one process runs."""


class Result(NamedTuple):
    """What came of one program."""

    seed: int
    kind: str
    cells: Sequence[str]
    faults: Sequence[tuple[str, str]]
    program: str
    """Its text, shrunk, if something was wrong."""
    alone: bool | None
    """Whether it is wrong in a process of its own as well."""
    excused: Sequence[str]
    """Why its trace was incomplete and might be."""
    seconds: float


def results(
    seed: int,
    *,
    seconds: float,
    programs: int = 10**9,
    shrink: float = 20,
    untraced: bool = False,
    alone: bool = True,
) -> Iterator[Result]:
    """Run the programs of `seed` and those after it; yields what came of each.

    If `alone`, those that are wrong are run in a process of their own as well.
    """
    end, last = time.monotonic() + seconds, seed + programs
    while seed < last and time.monotonic() < end:
        count = min(BATCH, last - seed)
        options = ["--shrink", str(shrink), *(["--untraced"] if untraced else [])]
        for result in _of_process(seed, count, end, options):
            if alone and result.faults and result.faults[0][0] != "hang":
                with_one = [*_of_process(result.seed, 1, end + LIMIT, ["--shrink", "0"])]
                result = result._replace(alone=any(each.faults for each in with_one))
            yield result
            seed = result.seed + 1


def _of_process(seed: int, count: int, end: float, options: list[str]) -> Iterator[Result]:
    """The results of one process; the last one may be of a program that hung or ended it."""
    command = [sys.executable, "-W", "ignore", "-m", "fuzz.run", "--worker", *options]
    command += ["--seed", str(seed), "--programs", str(count)]
    paths = [*map(str, (TESTS.parent, TESTS)), os.environ.get("PYTHONPATH", "")]
    settings = {"TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTEROP_THREADS": "16"}
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            command,
            cwd=TESTS,
            env={**os.environ, **settings, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        lines: queue.Queue[str | None] = queue.Queue()

        def read() -> None:
            assert process.stdout is not None
            for line in process.stdout:
                lines.put(line)
            lines.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            done = seed
            while done < seed + count:
                try:
                    line = lines.get(timeout=LIMIT)
                except queue.Empty:
                    line = None
                if line is None:
                    hung = process.poll() is None
                    process.kill()
                    errors.seek(0)
                    text = "took too long" if hung else "ended its process"
                    yield _lost(done, text + ": " + errors.read()[-3000:])
                    return
                if not line.startswith("{"):
                    continue
                found = Result(**json.loads(line))
                done = found.seed + 1
                yield found
                if time.monotonic() > end:
                    return
        finally:
            process.kill()
            process.wait()


def _lost(seed: int, text: str) -> Result:
    program = program_of(seed)
    written = source(program, f"seed {seed}: it hangs, or ends the process")
    kind, cells = program.optimizer.kind, program.ways
    return Result(seed, kind, cells, [("hang", text)], written, None, (), LIMIT)


# In the process that runs them.


def check(program: Program, folder: str, name: str, *, traced: bool = True) -> list[Fault]:
    """What is wrong with a program."""
    return checked(program, folder, name, traced)[0]


def checked(
    program: Program, folder: str, name: str, traced: bool = True
) -> tuple[list[Fault], list[str]]:
    """What is wrong with a program, and why its traces were rightly incomplete."""
    path = Path(folder) / f"{name}.py"  # AutoGraph reads the source
    path.write_text(source(program, name))
    namespace: dict[str, Any] = {"__name__": name, "__file__": str(path)}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    model = Model(program).run()
    untraced = namespace["main"](False)
    with_tracer = namespace["main"](True) if traced else None
    excused = set()
    for expected, found in zip(model.looks, with_tracer.looks if with_tracer else (), strict=False):
        for root, each in expected.items():
            if root in found and not found[root]["complete"]:
                excused |= {*each["must"], *each["may"]}
    return list(faults(model, untraced, with_tracer)), sorted(excused)


def _work(options: argparse.Namespace) -> None:
    """Run the programs, and print the result of each as a line of JSON."""
    warnings.simplefilter("ignore")
    faulthandler.enable()
    _clean()
    gc.freeze()  # what was imported is swept no more, by nobody: that took half of the time
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(options.seed, options.seed + options.programs):
            faulthandler.dump_traceback_later(LIMIT - 5, exit=True)
            result = _result_of(seed, folder, options.shrink, not options.untraced)
            faulthandler.cancel_dump_traceback_later()
            print(json.dumps(result._asdict()), flush=True)
            if seed % 10 == 0:
                _clean()


def _result_of(seed: int, folder: str, shrink: float, traced: bool) -> Result:
    begin = time.monotonic()
    program = program_of(seed)
    excused: list[str] = []
    try:
        found, excused = checked(program, folder, f"seed_{seed}", traced)
    except Exception as error:
        found = [Fault("crash", f"{type(error).__name__}: {error}")]
    text = ""
    if found:
        first = found[0].what
        number = 0

        def fails(candidate: Program) -> bool:
            nonlocal number
            number += 1
            with contextlib.suppress(Exception):
                again = check(candidate, folder, f"seed_{seed}_{number}", traced=traced)
                return bool(again) and again[0].what == first
            return False

        smallest = shrunk(program, fails, shrink) if traced else program
        if smallest is not program:
            found = check(smallest, folder, f"seed_{seed}_last", traced=traced) or found
        title = f"seed {seed}, {' '.join(program.ways)}: {found[0].what}: {found[0].text}"
        text = source(smallest, _plain(title), Model(smallest).run().looks)
    shown = [(fault.what, fault.text) for fault in found]
    kind, took = program.optimizer.kind, time.monotonic() - begin
    return Result(seed, kind, program.ways, shown, text, None, excused, took)


def _plain(text: str) -> str:
    return text.replace("\\", "/").replace('"""', "'")


def _clean() -> None:
    """Give the next programs a Keras and a memory that are nearly new."""
    from support.libraries import keras2, keras3

    if keras3 is not None:
        keras3.backend.clear_session(free_memory=False)
    keras2.backend.clear_session()
    gc.collect()


# The report.


class Report:
    """How many programs of which cells were run, and what was wrong."""

    def __init__(self) -> None:
        self.programs = 0
        self.cells: Counter[tuple[str, str]] = Counter()
        self.failed: Counter[str] = Counter()
        self.excused: Counter[str] = Counter()
        self.seeds: list[int] = []
        self.slow: list[tuple[float, int]] = []

    def add(self, result: Result) -> None:
        """Take in the result of a program."""
        self.programs += 1
        for cell in (*result.cells, "all"):
            self.cells[cell, result.kind] += 1
        self.excused.update(result.excused)
        self.slow = sorted([*self.slow, (result.seconds, result.seed)])[-3:]
        if result.faults:
            self.seeds.append(result.seed)
            self.failed.update({what for what, _ in result.faults})

    def __str__(self) -> str:
        kinds = sorted({kind for _, kind in self.cells})
        rows = sorted({cell for cell, _ in self.cells}, key=lambda cell: (cell == "all", cell))
        lines = [f"{'programs':36}" + "".join(f"{kind:>9}" for kind in kinds)]
        for row in rows:
            lines.append(f"{row:36}" + "".join(f"{self.cells[row, kind]:9}" for kind in kinds))
        lines += [f"{n:6} programs incomplete: {why}" for why, n in sorted(self.excused.items())]
        lines += [f"{n:6} programs wrong: {what}" for what, n in sorted(self.failed.items())]
        slow = ", ".join(f"{seconds:.0f} s for {seed}" for seconds, seed in reversed(self.slow))
        lines.append(f"the slowest seeds: {slow}")
        lines.append(f"{self.programs} programs, {len(self.seeds)} of them wrong: {self.seeds}")
        return "\n".join(lines)


def main() -> int:
    """The command; its exit status is 1 if a program was wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long to run")
    parser.add_argument("--seed", type=int, default=1, help="the first seed")
    parser.add_argument("--programs", type=int, default=10**9, help="how many programs at most")
    parser.add_argument("--shrink", type=float, default=20, help="seconds for a failing program")
    parser.add_argument("--failures", type=int, default=10**9, help="end after so many")
    parser.add_argument("--brief", action="store_true", help="print no programs")
    parser.add_argument("--untraced", action="store_true", help="hold only the model itself")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        _work(options)
        return 0
    report = Report()
    for result in results(
        options.seed,
        seconds=options.seconds,
        programs=options.programs,
        shrink=0 if options.brief else options.shrink,
        untraced=options.untraced,
        alone=not options.brief,
    ):
        report.add(result)
        if result.faults:
            alone = {None: "", True: ", also alone", False: ", only among other programs"}
            print(f"seed {result.seed}: {result.kind}, {', '.join(result.cells)}", end="")
            print(alone[result.alone])
            for what, text in result.faults[: 1 if options.brief else 4]:
                print(f"    {what}: {text[:1500]}")
            if not options.brief:
                print(f"{'-' * 40} seed {result.seed}\n{result.program}\n{'-' * 40}")
            sys.stdout.flush()
        if len(report.seeds) >= options.failures:
            break
    print(report)
    return bool(report.seeds)


if __name__ == "__main__":
    sys.exit(main())
