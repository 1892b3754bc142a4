"""What starts ranks of PyTorch: each has its file, and together they are one exact trace."""

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support.cluster import free_ports

import tracer
from tracer.model.phrases import endings
from tracer.words import some

pytest.importorskip("torch")

RUN = (sys.executable, "-m", "tracer", "run", "-q")
FOLLOW = (*RUN, "--children")
ELASTIC = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MPI = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
ACCELERATE = (
    *("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2"),
    *("--main_process_port", "0"),  # else it is 29500, which others on the machine may use
)
PROGRAM = Path(__file__).parents[2] / "programs" / "launched_ranks.py"
UPDATES = {
    **dict.fromkeys([("SGD", "dense.weight"), ("SGD", "dense.bias")], 10),
    **dict.fromkeys([("Adam", "summed.weight"), ("Adam", "summed.bias")], 5),  # each 2nd batch
    **dict.fromkeys([("AdamW", "scaled.weight"), ("AdamW", "scaled.bias")], 8),  # 2 were infinite
    ("SparseAdam", "table.weight"): 10,
}
"""The updates in the 10 batches of a rank, by optimizer and variable, without the odometer's."""
ODOMETERS = {"rank:0": 5, "rank:1": 4}  # each 2nd batch, each 3rd batch: the weights agree
SWEEP = pytest.mark.sweep
"""For launchers that come from elsewhere, where PyTorch alone takes up to a minute to end its
ranks, and where another way starts the same processes: `nox -s trainers` runs these tests."""


def weekly(*command: str) -> Any:
    return pytest.param(command, marks=SWEEP)


def launched(folder: Path, *command: str) -> tuple[int, tracer.Trace]:
    """The exit status of a command, after `train.py` in which a free port is put, and its trace."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    packages = {word.partition(".")[0] for word in command} & {"accelerate", "lightning", "ray"}
    if missing := [each for each in packages if not find_spec(each)]:
        pytest.skip(f"{missing[0]} is not installed")
    shutil.copy(PROGRAM, folder / "train.py")
    (port,) = free_ports(1)
    name = command.index("train.py") + 1
    done = subprocess.run(
        [*command[:name], str(port), *command[name:]],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    return done.returncode, tracer.load(folder / "traces")


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        weekly(sys.executable, *ELASTIC, *RUN[1:], "train.py"),
        (*FOLLOW, *ELASTIC, "train.py"),
        weekly(*FOLLOW, "train.py", "spawn"),
        weekly(sys.executable, "train.py", "spawn", "recorded"),
        weekly(sys.executable, *ACCELERATE, *RUN[1:], "train.py"),
        weekly(*MPI, *RUN, "train.py"),
        weekly(*FOLLOW, "train.py", "lightning"),
        weekly(sys.executable, *ELASTIC, *RUN[1:], "train.py", "lightning"),
        weekly(sys.executable, "train.py", "ray", "recorded"),
    ],
    ids=[
        "inside torchrun",
        "around torchrun",
        "around spawn",
        "recorded in spawn",
        "inside accelerate",
        "inside mpirun",
        "around lightning",
        "lightning inside torchrun",
        "recorded in ray",
    ],
)
def test_each_launcher(command: tuple[str, ...], tmp_path: Path) -> None:
    (tmp_path / "traces").mkdir()
    status, trace = launched(tmp_path, *command)
    assert status == 0
    assert trace.complete and trace.finished
    assert trace.count("updates", by=("worker", "optimizer", "variable")) == {
        (rank, *each): number
        for rank, ran in ODOMETERS.items()
        for each, number in {**UPDATES, ("Odometer", "counter"): ran}.items()
    }
    assert [each.code for each in trace.findings()] == ["replicas-disagree", "steps-skipped"]
    assert not list((tmp_path / "traces").glob(".*"))


@SWEEP
@pytest.mark.parametrize(
    ("command", "step"),
    [
        ((sys.executable, *ELASTIC, *RUN[1:], "train.py"), "3"),
        ((sys.executable, *ACCELERATE, *RUN[1:], "train.py"), "3"),
        ((*FOLLOW, "train.py", "spawn"), "3"),
        ((*FOLLOW, "train.py", "lightning"), "3"),
        ((*FOLLOW, "train.py", "ray"), "3"),
        ((*MPI, *RUN, "train.py"), "0"),
    ],
    ids=["torchrun", "accelerate", "spawn", "lightning", "ray", "mpirun"],
)
def test_a_rank_that_is_killed_is_named(
    command: tuple[str, ...], step: str, tmp_path: Path
) -> None:
    """Whether the launcher ends the other rank, or that one raises."""
    name = command.index("train.py") + 1
    words = (*command[:name], step, "dies", *command[name:])
    status, trace = launched(tmp_path, *words)
    assert status and not trace.finished
    # Other ranks may have saved before it, and ended with an error.
    (named,) = (each for each in endings(trace) if "rank:1" in each)
    assert "had not ended when last saved" in named, named
    assert "rank:0" in named or f", after {some(int(step), 'step')}." in named
    no_trace = ("no trace of rank:0, so nothing that ran there is counted",)
    assert trace.complete or trace.notes == no_trace, trace.notes  # ended before its first save


@SWEEP
def test_a_rank_that_raises_is_named(tmp_path: Path) -> None:
    command = (sys.executable, *ELASTIC, *RUN[1:], "train.py", "3", "raises")
    status, trace = launched(tmp_path, *command)
    assert status
    said = "\n".join(endings(trace))
    assert "The program of rank:1 ended with ValueError: no data, " in said and "rank:0" in said


@SWEEP
def test_a_rank_that_starts_again_replaces_its_first_trace(tmp_path: Path) -> None:
    """The ranks train apart: PyTorch 2.13 may hang where it makes a group of gloo again."""
    restarts = (*ELASTIC, "--max-restarts", "1")
    command = (sys.executable, *restarts, *RUN[1:], "train.py", "3", "dies once", "apart")
    status, trace = launched(tmp_path, *command)
    assert status == 0 and trace.complete and trace.finished
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 61, ("rank:1",): 60}
    assert len(list((tmp_path / "traces").rglob("*.json"))) == 2


AT_ONCE = """
import os, subprocess, sys, time
def start(port, rank, steps):
    ranks = {"RANK": str(rank), "WORLD_SIZE": "2"}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, "rank.py", str(steps)]
    started = subprocess.Popen(command, env={**os.environ, **ranks, **place})
    time.sleep(0.3)
    return started
one, two = sys.argv[1:]
every = [start(one, 0, 3), start(two, 1, 7), start(two, 0, 7), start(one, 1, 3)]
assert not any(each.wait() for each in every)
"""

ONE_RANK = """
import sys, torch
import torch.distributed as dist
from support.torch_odometers import Odometer, give, readings, zeros
dist.init_process_group("gloo")
optimizer = Odometer(parameters := zeros(2))
for _ in range(int(sys.argv[1])):
    give(parameters)
    optimizer.step()
assert readings(parameters) == [int(sys.argv[1])] * 2
dist.barrier()
dist.destroy_process_group()
"""


@pytest.mark.sweep
def test_two_launches_at_once_are_two_trainings(tmp_path: Path) -> None:
    """3 and 7 steps of two parameters, on two ranks each, which start in turn."""
    (tmp_path / "launch.py").write_text(AT_ONCE)
    (tmp_path / "rank.py").write_text(ONE_RANK)
    subprocess.run(
        [*FOLLOW, "launch.py", *map(str, free_ports(2))],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        check=True,
        timeout=300,
    )
    trace = tracer.load(tmp_path / "traces")
    assert trace.complete, trace.notes
    counts = trace.count("updates", by=("optimizer", "worker")).values()
    assert sorted(counts) == [6, 6, 14, 14]
    assert len(trace.workers) == 4 and len(trace.optimizers) == 2
    assert [each.code for each in trace.findings()] == []
