"""`tracer run` is `python`, and the trace: programs in many styles, each run with both."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import forked, traces
from support.libraries import needs_keras3
from support.patience import wait_until

import tracer
from tracer.cli.process import ELSEWHERE, FILE

ENVIRONMENT = {
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "16",
    "TF_ENABLE_ONEDNN_OPTS": "0",
}
PYTHON = (sys.executable,)
TRACER = (sys.executable, "-m", "tracer", "run")
CHECK = (sys.executable, "-m", "tracer", "check")


def run(command: Sequence[str], folder: Path, text: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=ENVIRONMENT, input=text, capture_output=True, text=True
    )


def quiet(stderr: str) -> list[str]:
    """What a program writes to standard error, without what TensorFlow's libraries write."""
    noise = re.compile(r"^(WARNING: All log messages|[IWE]0000 |\d{4}-\d\d-\d\d )")
    return [line for line in stderr.splitlines() if not noise.match(line)]


def both(folder: Path, *program: str, text: str = "") -> subprocess.CompletedProcess[str]:
    """Run a program with `python` and `tracer run`, compare, and return the first."""
    plain = run([*PYTHON, *program], folder, text)
    traced = run([*TRACER, "-q", "-o", "run.json", *program], folder, text)
    timing = re.compile(r"\d+m?s(/step)?\b")  # what Keras prints beside the losses
    assert timing.sub("", traced.stdout) == timing.sub("", plain.stdout)
    assert quiet(traced.stderr) == quiet(plain.stderr)
    assert traced.returncode == plain.returncode
    assert tracer.load(folder / "run.json").finished
    return plain


# Programs without TensorFlow.

LOOK = """
import json, os, sys
print(__name__, __file__, __package__, __spec__ and __spec__.name, __doc__, __builtins__.__class__)
print(sys.argv, sys.path, sorted(globals()), vars().get("__annotations__"), type(__loader__))
print(sys.modules["__main__"].__dict__ is globals(), os.getcwd(), sys.excepthook)
"""


QUICK_PROGRAMS = (
    ["./look.py", "a", "-o", "b", "--help", "-m", "--", "--by"],
    ["-m", "below.look"],
)
LONG_PROGRAMS = (
    ["look.py"],
    ["link.py"],
    ["-m", "below"],
    ["below"],
    ["program.zip", "x"],
)


@pytest.mark.parametrize(
    "program",
    [*QUICK_PROGRAMS, *(pytest.param(each, marks=pytest.mark.long) for each in LONG_PROGRAMS)],
    ids=" ".join,
)
def test_what_a_program_sees(tmp_path: Path, program: list[str]) -> None:
    import zipfile

    (tmp_path / "below").mkdir()
    for name in ("look.py", "below/look.py", "below/__main__.py", "below/__init__.py"):
        (tmp_path / name).write_text(LOOK)
    (tmp_path / "link.py").symlink_to("below/look.py")
    with zipfile.ZipFile(tmp_path / "program.zip", "w") as file:
        file.writestr("__main__.py", LOOK)
    both(tmp_path, *program)


ENDS = {
    "nothing": "",
    "int": "import sys; sys.exit(3)",
    "text": "import sys; sys.exit('that was all')",
    "exception": "def f():\n    1 / 0\n\nf()",
    "chained": (
        "def f():\n    try:\n        1 / 0\n    except Exception as e:\n"
        "        raise KeyError('é') from e\n\nf()"
    ),
    "syntax": "print('one')\nprint('two'",
    "encoding": "# coding: latin-1\nprint('\u00e9')",
    "hook": (
        "import sys\nsys.excepthook = lambda kind, e, tb: print(kind, e, e.__traceback__ is tb,"
        " tb.tb_frame.f_code.co_name, tb.tb_next)\n1 / 0"
    ),
    "broken pipe": "raise BrokenPipeError(32, 'Broken pipe')",
    "at exit": "import atexit\natexit.register(print, 'bye')\nprint('hello')",
    "thread": (
        "import threading, time\n"
        "threading.Thread(target=lambda: (time.sleep(0.3), print('late'))).start()\nprint('early')"
    ),
    "interrupt": "raise KeyboardInterrupt",
    "closed": "import sys\nsys.stdout.close()\nsys.stderr.close()",
}
QUICK = ("nothing", "int", "exception")
"""The ends that the quick tests have."""


@pytest.mark.parametrize(
    "how", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in ENDS]
)
def test_how_a_program_ends(tmp_path: Path, how: str) -> None:
    (tmp_path / "end.py").write_text(ENDS[how], encoding="utf-8")
    both(tmp_path, "end.py")
    if how in ("exception", "int", "interrupt"):
        both(tmp_path, "-m", "end")


@pytest.mark.parametrize(
    ("source", "status", "error", "said"),
    [
        ("pass", 0, "", ""),
        ("raise SystemExit(3)", 3, "", "ended with status 3, before the first step."),
        ("raise KeyError('a\\nb')", 1, "KeyError: 'a\\nb'", "ended with KeyError: 'a"),
        (
            "raise ValueError('\\033[1mExpected\\033[0m a layer')",
            1,
            "ValueError: Expected a layer",
            "ended with ValueError: Expected a layer, before the first step.",
        ),
        *(
            pytest.param(*each, marks=pytest.mark.long)
            for each in (
                (
                    "class Mute(Exception):\n    def __str__(self): return 1 / 0\nraise Mute",
                    1,
                    "Mute",
                    "ended with Mute, before the first",
                ),
                ("raise KeyboardInterrupt", 1, "KeyboardInterrupt", "ended at Ctrl-C"),
            )
        ),
    ],
)
def test_the_trace_knows_how_the_program_ended(
    tmp_path: Path, source: str, status: int, error: str, said: str
) -> None:
    (tmp_path / "end.py").write_text(source)
    begin = time.time()
    traced = run([*TRACER, "end.py", "--epochs", "a b"], tmp_path)
    took = time.time() - begin
    trace = tracer.load(tmp_path / "tracer.json")
    (program,) = trace.data.programs
    assert (trace.finished, traced.stdout) == (True, "")
    assert (program.command, program.status) == ("end.py", status)
    assert program.error == error
    assert begin <= program.started <= begin + took
    assert ("The program " + said in traced.stderr) if said else "The program" not in traced.stderr
    assert "Ran: end.py, on 20" in traced.stderr


FAILS_TO_END = """
from tracer.hooks.recording import Recording
def end(recording):
    raise RuntimeError("cannot end")
Recording.end = end
"""


def test_the_last_save_comes_although_the_recording_cannot_end(tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text(FAILS_TO_END)
    ended = run([*TRACER, "-q", "-o", "run.json", "end.py"], tmp_path)
    assert "RuntimeError: cannot end" in ended.stderr
    assert tracer.load(tmp_path / "run.json").finished


SECRETS = """
import sys
print(sys.argv[1:])
raise RuntimeError("cannot reach https://me:hidden@example.org/x")
"""


def test_arguments_and_secrets_of_the_program_are_not_recorded(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SECRETS)
    arguments = ["--api-key", "hidden", "DB_PASSWORD=hidden", "s3://me:hidden@bucket/x"]
    arguments += ["-o", "run.json"]
    done = run([*TRACER, "train.py", *arguments], tmp_path)
    assert done.stdout == f"{arguments}\n"
    assert "-o goes to train.py: options of tracer run stand before" in done.stderr
    report = done.stderr[done.stderr.index("How often did") :]
    page = run([sys.executable, "-m", "tracer", "report", FILE], tmp_path).stdout
    for text in (report, page, (tmp_path / FILE).read_text()):
        assert "hidden" not in text
        assert "train.py" in text and "--api-key" not in text
        assert "https://REDACTED@example.org/x" in " ".join(text.split())


def test_standard_input_is_the_programs(tmp_path: Path) -> None:
    (tmp_path / "read.py").write_text("import sys\nprint(input(), sys.stdin.read().upper())")
    both(tmp_path, "read.py", text="first\nand\nmore")


PROCESSES = """
import multiprocessing, os, pickle, sys

class Job:
    def __call__(self, n):
        return n * n

def work(n):
    print("in", n, __name__, flush=True)
    return Job()(n)

if __name__ == "__main__":
    print(pickle.loads(pickle.dumps(Job())).__class__.__module__)
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            print(pool.map(work, [2]))
    if os.fork() == 0:
        sys.exit(5)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


@pytest.mark.long
def test_other_processes(tmp_path: Path) -> None:
    (tmp_path / "jobs.py").write_text(PROCESSES)
    assert "[4]" in both(tmp_path, "jobs.py").stdout


def test_a_process_without_an_optimizer_that_started_another_is_incomplete(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'sum(range(10**6))'])"
    (tmp_path / "starts.py").write_text(child)
    run([*TRACER, "-q", "starts.py"], tmp_path)
    assert tracer.load(tmp_path / FILE).notes == (ELSEWHERE,)


def test_the_report_and_the_path_come_on_standard_error(tmp_path: Path) -> None:
    (tmp_path / "end.py").write_text("import os; print('x', end=''); os.chdir('/')")
    traced = run([*TRACER, "end.py"], tmp_path)
    assert traced.stdout == "x"
    assert "How often" in traced.stderr
    assert traced.stderr.splitlines()[-1].endswith(f"{tmp_path.name}/tracer.json")


@pytest.mark.parametrize("arguments", [["-m", "fails"], ["-q", "none.py"], ["fails.py"]])
def test_a_run_that_counted_nothing_replaces_an_earlier_trace(
    tmp_path: Path, arguments: list[str]
) -> None:
    """So a gate does not hold for the file of an earlier run."""
    (tmp_path / "none.py").write_text("print('ran')")
    (tmp_path / "fails.py").write_text("1 / 0")
    traces.eager().save(tmp_path / FILE)
    gate = [*CHECK, FILE, "-e", "dense=2/step"]
    assert run(gate, tmp_path).returncode == 0
    run([*TRACER, *arguments], tmp_path)
    trace = tracer.load(tmp_path / FILE)
    assert trace.complete and not trace.optimizers
    (program,) = trace.data.programs
    assert program.command == " ".join(each for each in arguments if each != "-q")
    assert program.status == ("none.py" not in arguments)
    checked = run(gate, tmp_path)
    assert checked.returncode == 1 and "no step ran" in checked.stdout


SIZE = {"OMPI_COMM_WORLD_SIZE": "3"}
TASK = '{"cluster": {"worker": ["a", "b"]}, "task": {"type": "worker", "index": 1}}'


@pytest.mark.parametrize(
    ("environment", "file"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2", "TRACER_RUN": "7"}, "traces/7/rank-1.json"),
        (
            {**dict.fromkeys(("OMPI_COMM_WORLD_RANK", "TRACER_RUN"), "0"), **SIZE},
            "traces/0/rank-0.json",
        ),
        ({"TF_CONFIG": TASK}, "traces/a/worker-1.json"),
        ({"TF_CONFIG": TASK.replace("worker", "ps")}, "tracer.json"),  # the coordinator counts
        ({"RANK": "0", "WORLD_SIZE": "1"}, "tracer.json"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "tracer.json"),  # a batch script
        ({"TF_CONFIG": "?", "RANK": "4", "WORLD_SIZE": "2"}, "tracer.json"),
    ],
)
def test_a_process_that_is_one_of_several_writes_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], file: str
) -> None:
    (tmp_path / "none.py").write_text("print('ran')")
    for name, value in environment.items():
        monkeypatch.setitem(ENVIRONMENT, name, value)
    run([*TRACER, "-q", "none.py"], tmp_path)
    assert [each.relative_to(tmp_path).as_posix() for each in tmp_path.rglob("*.json")] == [file]


# Programs that train. Each prints `expected N`, from the optimizer's own `iterations`.

KERAS3 = """
import keras, numpy as np
keras.utils.set_random_seed(1)
x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x.sum(axis=1, keepdims=True)
model = keras.Sequential([keras.layers.Dense(3, activation="relu"), keras.layers.Dense(1)])
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
history = model.fit(x, y, batch_size=16, epochs=3, validation_split=0.25, verbose=2)
print([each.tobytes().hex() for each in model.get_weights()], sorted(history.history))
print("expected", int(model.optimizer.iterations) * len(model.get_weights()))
"""

THREAD = """
import atexit, sys, threading, time
import keras
optimizer = keras.optimizers.get({"class_name": "SGD", "config": {"learning_rate": 0.5}})
weight = keras.Variable([1.0, 2.0])
def train(steps, after=0):
    time.sleep(after)
    for _ in range(steps):
        optimizer.apply_gradients([(weight * 0.5, weight)])
def last():
    train(3)
    print(weight.numpy(), "expected", int(optimizer.iterations))
atexit.register(last)
threading.Thread(target=train, args=(4, 0.5)).start()
train(2)
sys.exit("good night")
"""


@pytest.mark.long
@pytest.mark.parametrize("source", [KERAS3, pytest.param(THREAD, marks=pytest.mark.sweep)])
def test_training(tmp_path: Path, source: str) -> None:
    (tmp_path / "train.py").write_text(source)
    plain = both(tmp_path, "train.py")
    expected = re.search(r"expected (\d+)$", plain.stdout, re.MULTILINE)
    assert expected is not None, plain.stderr
    trace = tracer.load(tmp_path / "run.json")
    assert trace.updates() == int(expected[1]) > 0
    assert (trace.complete, trace.notes) == (True, ())
    assert not trace.data.effects


def saved_steps(path: Path) -> int:
    return tracer.load(path).steps if path.exists() else 0


@pytest.mark.long
def test_an_interrupt_ends_the_program_and_the_report_comes(tmp_path: Path) -> None:
    source = KERAS3.replace("epochs=3", "epochs=10**6").replace("verbose=2", "verbose=0")
    (tmp_path / "train.py").write_text(source)
    # A shell lets what it starts in the background ignore it, and that is inherited.
    heeding = (
        "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        "os.execv(sys.argv[1], sys.argv[1:])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", heeding, *TRACER, "--every", "0.2", "train.py"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            # After an epoch no graph is traced, in which an exception can leave TensorFlow's own
            # locks held (`tensorflow/python/util/lock_util.py`).
            wait_until(lambda: saved_steps(tmp_path / FILE) > 10)
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT  # 130 in a shell
    assert "KeyboardInterrupt" in stderr and "update_step ran" in stderr
    assert tracer.load(tmp_path / FILE).finished


# Effects, and a program that comes through a pipe.


NAN = """
import sys, keras, numpy as np
keras.utils.set_random_seed(1)
model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
targets = np.ones((40, 1), "float32")
targets[int(sys.argv[1]):] = np.nan
model.fit(np.ones((40, 4), "float32"), targets, batch_size=4, shuffle=False, verbose=0)
"""


@pytest.mark.long
@needs_keras3
def test_effects(tmp_path: Path) -> None:
    """Which step made the weights NaN stands in the first lines of the report; its twin is fine."""
    (tmp_path / "train.py").write_text(NAN)
    command = ("tracer", "run", "--effects")
    traced = forked.run([*command, "train.py", "22"], tmp_path, ENVIRONMENT)
    report = "\n".join(quiet(traced.stderr)[:25])
    assert "error[not-finite]" in report and "after step 6" in report
    assert tracer.load(tmp_path / "tracer.json").count("not_finite", by="step") == {
        (step,): 2 for step in range(6, 11)
    }
    children = ("--children", "-o", "runs", "train.py", "40")
    traced = forked.run([*command, *children], tmp_path, ENVIRONMENT)
    assert "wrong" not in traced.stderr
    assert tracer.load(tmp_path / "runs").count("compared", by=()) == {(): 20}


@pytest.mark.skipif(not os.path.exists("/dev/fd"), reason="there are no paths of open files")
def test_a_program_may_come_through_a_pipe(tmp_path: Path) -> None:
    end, other = os.pipe()
    os.write(other, b"print('trained')")
    os.close(other)
    command = [sys.executable, "-m", "tracer", "run", "--quiet", f"/dev/fd/{end}"]
    ran = subprocess.run(command, cwd=tmp_path, pass_fds=[end], capture_output=True, text=True)
    os.close(end)
    assert (ran.stdout, ran.stderr, ran.returncode) == ("trained\n", "", 0)
