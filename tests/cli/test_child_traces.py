"""`tracer run --children`: the processes that a program starts, each in a file, all in one trace.

The truth is the program's own arithmetic: each of its trainings prints how many steps it made.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import tracer
from tracer.cli.process import ELSEWHERE
from tracer.model.trace import Trace

RUN = (sys.executable, "-m", "tracer", "run", "--children")
ROOT = str(Path(tracer.__file__).parents[1])
ENVIRONMENT = {
    **os.environ,
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_NUM_INTEROP_THREADS": "16",
    "PYTHONPATH": ROOT,
}

TRAIN = """
import sys

def train(steps, name="w"):
    import keras, tensorflow as tf
    variable = tf.Variable([0.0, 0.0], name=name)
    optimizer = keras.optimizers.SGD(1.0)
    for _ in range(steps):
        optimizer.apply_gradients([(tf.constant([1.0, 1.0]), variable)])
    return steps, float(variable[0])

if __name__ == "__main__":
    assert train(int(sys.argv[1]), *sys.argv[3:]) == (int(sys.argv[1]), -float(sys.argv[1]))
    exec(sys.argv[2])
"""


def run(
    folder: Path, program: str, *arguments: str, options: Sequence[str] = ("-q",)
) -> subprocess.CompletedProcess[str]:
    """Run a launcher, whose source is `program`, beside the script `train.py`."""
    (folder / "train.py").write_text(TRAIN)
    (folder / "launch.py").write_text(program)
    return subprocess.run(
        [*RUN, *options, "launch.py", *arguments],
        cwd=folder,
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
    )


def steps_of(trace: Trace) -> list[int]:
    """The steps of each optimizer in ascending order; each has one variable and one replica."""
    return sorted(trace.count("updates", by="optimizer").values())


# Without TensorFlow.


def test_who_uses_no_optimizer_writes_no_file(tmp_path: Path) -> None:
    program = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    done = run(tmp_path, program, options=())
    assert done.returncode == 0
    assert len(list((tmp_path / "traces").rglob("*.json"))) == 1
    assert "No optimizer was traced" in done.stderr
    assert done.stderr.splitlines()[-1].startswith("tracer: wrote traces/20")
    trace = tracer.load(tmp_path / "traces")
    assert (trace.data.programs[0].command, trace.data.programs[0].status) == ("launch.py", 0)


def test_each_run_has_a_folder(tmp_path: Path) -> None:
    for _ in range(2):
        assert run(tmp_path, "pass").returncode == 0
    folders = sorted((tmp_path / "traces").iterdir())
    assert [len(list(each.iterdir())) for each in folders] == [1, 1]
    (note,) = tracer.load(tmp_path / "traces").notes
    assert note.partition(": ")[2].partition("/")[0] in {each.name for each in folders}


CHILD = """
import json, os, subprocess, sys
look = "import sys, json, sitecustomize as s; print(json.dumps([sys.path, s.__file__, sys.argv]))"
print(subprocess.run([sys.executable, "-c", look, "x"], capture_output=True, text=True).stdout)
"""


def test_a_child_finds_what_it_finds_untraced(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("seen = 1")
    (tmp_path / "launch.py").write_text(CHILD)
    environment = {**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path / "own"), ROOT])}
    said = [
        subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
        for command in ([sys.executable, "launch.py"], [*RUN, "-q", "launch.py"])
    ]
    assert said[0].stdout == said[1].stdout
    assert json.loads(said[0].stdout)[1] == str(tmp_path / "own" / "sitecustomize.py")


def test_a_python_without_tracer_runs_as_it_is(tmp_path: Path) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', 'print(1)'])"
    assert run(tmp_path, child).stdout == "1\n"
    child = (
        "import os, subprocess, sys; path = os.environ['PYTHONPATH'].split(os.pathsep)[0];"
        "subprocess.run([sys.executable, '-I', '-c', f'import sys; sys.path.insert(0, {path!r});'"
        '\'sys.modules["tracer"] = None; sys.modules.pop("sitecustomize", None);\''
        "'import sitecustomize; print(2)'])"  # that of the system was imported already
    )
    done = run(tmp_path, child, options=["-q", "-o", "other"])
    assert done.stdout == "2\n"
    assert "is not traced: " in done.stderr


# With training.

SPAWN = """
import multiprocessing
from train import train

if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        pool.map(train, [3, 5], chunksize=1)
        pool.close()
        pool.join()
"""

FORKS = """
import os
from train import train

def fork():
    child = os.fork()
    if child == 0:
        train(2)
        os._exit(0)
    os.waitpid(child, 0)

fork()
"""

FORK_OF_THREADS = """
import os, threading, time
import tensorflow as tf

weight = tf.Variable([0.0, 0.0])
optimizer = tf.compat.v1.train.GradientDescentOptimizer(1.0)
stop = threading.Event()

def train():
    while not stop.is_set():
        optimizer.apply_gradients([(tf.ones(2), weight)])

thread = threading.Thread(target=train, daemon=True)
thread.start()
time.sleep(0.5)
for _ in range(200):
    child = os.fork()  # it has the locks that the thread held, and not the thread
    if child == 0:
        os._exit(0)
    end = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > end:
            os.kill(child, 9)
            os._exit(1)
        time.sleep(0.001)
stop.set()
thread.join()
"""


@pytest.mark.long
def test_spawned_processes_are_traced(tmp_path: Path) -> None:
    done = run(tmp_path, SPAWN)
    assert done.returncode == 0, done.stderr
    trace = tracer.load(tmp_path / "traces")
    assert (trace.finished, trace.complete) == (True, True)
    assert steps_of(trace) == [3, 5]
    assert [each.command for each in trace.data.programs] == ["launch.py"] * 3


@pytest.mark.long
@pytest.mark.parametrize("trains", [False, pytest.param(True, marks=pytest.mark.sweep)])
def test_forks_are_not_traced(tmp_path: Path, trains: bool) -> None:
    """They may have trained, if the process that forks did not: workers of a loader do not."""
    done = run(tmp_path, FORKS + trains * "train(4)\nfork()\n")
    assert done.returncode == 0, done.stderr
    trace = tracer.load(tmp_path / "traces")
    assert steps_of(trace) == [4] * trains
    assert trace.complete == trains
    assert trace.notes == (ELSEWHERE,) * (not trains)


@pytest.mark.long
def test_a_child_that_forks_is_incomplete(tmp_path: Path) -> None:
    (tmp_path / "forks.py").write_text(FORKS)
    run(tmp_path, "import subprocess, sys; subprocess.run([sys.executable, 'forks.py'])")
    trace = tracer.load(tmp_path / "traces")
    assert not trace.complete and not trace.optimizers


@pytest.mark.sweep
def test_a_fork_beside_a_thread_that_trains(tmp_path: Path) -> None:
    assert run(tmp_path, FORK_OF_THREADS).returncode == 0
    assert tracer.load(tmp_path / "traces").complete


SCRIPTS = """
import shutil, subprocess, sys

def start(steps, code):
    return subprocess.Popen([sys.executable, f"train-{steps}.py", steps, code], stderr=-3)

for steps in "5678":
    shutil.copy("train.py", f"train-{steps}.py")
children = [
    start("5", "import os; python = sys.executable;"
        f"os.execv(python, [python, 'train-6.py', '6', {'sys.exit(5)'!r}])"),
    start("7", "import subprocess; subprocess.run([sys.executable, 'train-8.py', '8', 'pass']);"
        "raise KeyError('no data')"),
]
for child in children:
    child.wait()
from train import train
train(9)
"""


@pytest.mark.long
def test_scripts_that_a_script_starts(tmp_path: Path) -> None:
    done = run(tmp_path, SCRIPTS, options=())
    assert done.returncode == 0, done.stderr
    trace = tracer.load(tmp_path / "traces")
    found = {each.command: (each.status, each.error) for each in trace.data.programs}
    ended = {"launch.py": (0, ""), "train-7.py": (1, "KeyError: 'no data'")}
    unknown = dict.fromkeys(("train-6.py", "train-8.py"), (None, ""))
    assert {**found, **ended, **unknown} == found
    expected = {
        each.worker: 9 if each.command == "launch.py" else int(each.command[6])
        for each in trace.data.programs
        if each.command != "train-5.py"  # it became another one, and left what it had saved
    }
    counted = {worker: n for (worker,), n in trace.count("updates", by="worker").items()}
    assert sorted(expected.values()) == [6, 7, 8, 9]
    assert {worker: counted[worker] for worker in expected} == expected
    assert "ended with KeyError: 'no data', after 7 steps." in " ".join(done.stderr.split())
    check = [sys.executable, "-m", "tracer", "check", "traces", "-e", "sparse=0"]
    assert subprocess.run(check, cwd=tmp_path, env=ENVIRONMENT, capture_output=True).returncode == 1
