"""What starts ranks of PyTorch: each has its file, and together they are one exact trace."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from support import slurm
from support.cluster import free_ports

import tracer
from tracer.model.phrases import endings

pytest.importorskip("torch")

RUN = (sys.executable, "-m", "tracer", "run", "-q")
FOLLOW = (*RUN, "--children")
ELASTIC = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
MPI = ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2")
SRUN = ("srun", "--overcommit", "-n", "2")
ACCELERATE = ("-m", "accelerate.commands.launch", "--multi_gpu", "--num_processes", "2")
STEPS = 10
PROGRAM = f"""
import os, signal, sys, time
from contextlib import suppress
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import tracer


def fail(step):
    \"\"\"What the arguments say that rank 1 does at this step.\"\"\"
    if not sys.argv[3:] or os.environ["RANK"] != "1" or step != int(sys.argv[2]):
        return
    while step and not saved(step):
        time.sleep(0.05)
    if sys.argv[3] == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "dies once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "raises":
        raise ValueError("no data")


def saved(step):
    with suppress(tracer.TraceFileError):
        return tracer.load("traces/rank-1.json").steps == step


def train(rank):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", sys.argv[1])
    ranks = map(os.environ.get, ("OMPI_COMM_WORLD_RANK", "SLURM_PROCID"))
    os.environ.setdefault("RANK", next(filter(None, ranks), str(rank)))
    os.environ.setdefault("WORLD_SIZE", "2")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Linear(4, 1))
    if "apart" not in sys.argv:
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range({STEPS}):
        fail(step)
        optimizer.zero_grad()
        (model(torch.ones(4, 3)) ** 2).mean().backward()
        optimizer.step()
    if dist.is_initialized():
        dist.destroy_process_group()


def work(rank):
    if "recorded" not in sys.argv:
        return train(rank)
    with tracer.record() as recording:
        train(rank)
    recording.trace().save("traces")


if __name__ == "__main__":
    if "spawn" in sys.argv:
        sys.argv.remove("spawn")
        mp.spawn(work, nprocs=2)
    else:
        work(0)
"""
SWEEP = pytest.mark.sweep
"""For launchers that come from elsewhere, where PyTorch alone takes up to a minute to end its
ranks, and where another way starts the same processes: `nox -s trainers` runs these tests."""
LAUNCHER = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"


def weekly(*command: str) -> Any:
    return pytest.param(command, marks=SWEEP)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, str]]:
    """A cluster of Slurm, as what `srun` needs in its environment."""
    if not slurm.is_installed():
        pytest.skip("Slurm is not installed, or this user may not start it")
    with slurm.cluster(tmp_path_factory.mktemp("slurm")) as environment:
        yield environment


def launched(
    folder: Path, request: pytest.FixtureRequest, *command: str
) -> tuple[int, tracer.CallTrace]:
    """The exit status of a command, after `train.py` in which a free port is put, and its trace."""
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    if ACCELERATE[1] in command and not find_spec("accelerate"):
        pytest.skip("accelerate is not installed")
    more = request.getfixturevalue("cluster") if "srun" in command else {}
    (folder / "train.py").write_text(PROGRAM)
    (folder / "launch.py").write_text(LAUNCHER)
    (port,) = free_ports(1)
    name = command.index("train.py") + 1
    done = subprocess.run(
        [*command[:name], str(port), *command[name:]],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path), **more},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, tracer.load(folder / "traces")


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        weekly(sys.executable, *ELASTIC, *RUN[1:], "train.py"),
        (*FOLLOW, *ELASTIC, "train.py"),
        weekly(*FOLLOW, "train.py", "spawn"),
        (sys.executable, "train.py", "spawn", "recorded"),
        weekly(sys.executable, *ACCELERATE, *RUN[1:], "train.py"),
        weekly(*MPI, *RUN, "train.py"),
        weekly(*SRUN, *RUN, "train.py"),
        weekly(*FOLLOW, "launch.py", *SRUN, sys.executable, "train.py"),
    ],
    ids=[
        "inside torchrun",
        "around torchrun",
        "around spawn",
        "recorded in spawn",
        "inside accelerate",
        "inside mpirun",
        "inside srun",
        "around srun",
    ],
)
def test_each_launcher(
    command: tuple[str, ...], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "traces").mkdir()
    status, trace = launched(tmp_path, request, *command)
    assert status == 0
    assert trace.complete and trace.findings() == []
    updates = trace.count("updates", by=("worker", "variable"))
    names = [f"{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")]
    assert updates == {(f"rank:{rank}", each): STEPS for rank in (0, 1) for each in names}
    assert not list((tmp_path / "traces").glob(".*"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "step", "said"),
    [
        pytest.param(
            (sys.executable, *ELASTIC, *RUN[1:]), "3", "wrote nothing after step 3.", marks=SWEEP
        ),
        (FOLLOW, "3", "wrote nothing after step 3."),
        pytest.param((*MPI, *RUN), "0", "wrote nothing after the start.", marks=SWEEP),
        pytest.param((*SRUN, *RUN), "3", "wrote nothing after step 3.", marks=SWEEP),
    ],
    ids=["torchrun", "spawn", "mpirun", "srun"],
)
def test_a_rank_that_is_killed_is_named(
    command: tuple[str, ...], step: str, said: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Whether the launcher ends the other rank, or that one raises."""
    spawn = ("spawn",) if command == FOLLOW else ()
    status, trace = launched(tmp_path, request, *command, "train.py", step, "dies", *spawn)
    assert status and not trace.finished
    assert f"The program of rank:1 {said}" in endings(trace)
    (other,) = (each for each in endings(trace) if "rank:0" in each)
    assert "was terminated (SIGTERM), and" in other or "ended with RuntimeError: " in other
    assert trace.complete, trace.notes


@SWEEP
def test_a_rank_that_raises_is_named(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    command = (sys.executable, *ELASTIC, *RUN[1:], "train.py", "3", "raises")
    status, trace = launched(tmp_path, request, *command)
    assert status
    said = "\n".join(endings(trace))
    assert "The program of rank:1 ended with ValueError: no data, " in said and "rank:0" in said


@SWEEP
def test_a_rank_that_starts_again_keeps_its_first_trace(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The ranks train apart: PyTorch 2.13 may hang where it makes a group of gloo again."""
    restarts = (*ELASTIC, "--max-restarts", "1")
    command = (sys.executable, *restarts, *RUN[1:], "train.py", "3", "dies once", "apart")
    status, trace = launched(tmp_path, request, *command)
    assert status == 0 and trace.complete and trace.finished
    assert trace.count("updates", by=("worker",)) == {("rank:0",): 40, ("rank:1",): 40}
    first = tracer.load(tmp_path / "traces" / "earlier-1")
    assert {each.worker for each in first.programs} == {"rank:0", "rank:1"}
    said = endings(first)
    assert "The program of rank:1 wrote nothing after step 3." in said and len(said) == 2
