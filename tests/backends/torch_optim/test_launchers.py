"""What starts ranks of PyTorch: each has its file, and together they are one exact trace."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.cluster import free_ports

import tracer

pytest.importorskip("torch")

RUN = (sys.executable, "-m", "tracer", "run", "-q")
LAUNCH = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
STEPS = 10
PROGRAM = f"""
import os, signal, sys
import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, port):
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", port)
    of_mpi = os.environ.get("OMPI_COMM_WORLD_RANK")
    os.environ.setdefault("RANK", of_mpi or str(rank))
    os.environ.setdefault("WORLD_SIZE", "2")
    dist.init_process_group("gloo")
    layers = torch.nn.Linear(3, 4), torch.nn.Linear(4, 1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range({STEPS}):
        if "die" in sys.argv and dist.get_rank() == 1 and step == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        optimizer.zero_grad()
        (model(torch.ones(4, 3)) ** 2).mean().backward()
        optimizer.step()
    dist.destroy_process_group()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        mp.spawn(train, (sys.argv[1],), nprocs=2)
    else:
        train(0, sys.argv[1])
"""


def launched(folder: Path, *command: str) -> tuple[int, tracer.CallTrace]:
    """The exit status of a command that ends in the program's arguments, and its trace."""
    (folder / "train.py").write_text(PROGRAM)
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, tracer.load(folder / "traces")


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        (sys.executable, *LAUNCH, *RUN[1:], "train.py"),
        (*RUN, "--children", *LAUNCH, "train.py"),
        (*RUN, "--children", "train.py", "spawn"),
        ("mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", *RUN, "train.py"),
    ],
    ids=["inside the launcher", "around the launcher", "spawn", "Open MPI"],
)
def test_each_launcher(command: tuple[str, ...], tmp_path: Path) -> None:
    if not shutil.which(command[0]):
        pytest.skip(f"{command[0]} is not installed")
    (port,) = free_ports(1)
    name = command.index("train.py") + 1
    status, trace = launched(tmp_path, *command[:name], str(port), *command[name:])
    assert status == 0
    assert trace.complete and trace.findings() == []
    updates = trace.count("updates", by=("worker", "variable"))
    names = [f"{layer}.{kind}" for layer in (0, 1) for kind in ("weight", "bias")]
    assert updates == {(f"rank:{rank}", each): STEPS for rank in (0, 1) for each in names}


@pytest.mark.long
def test_a_rank_that_is_killed(tmp_path: Path) -> None:
    """The launcher ends the other rank, a moment after it: no file is of an earlier run."""
    (port,) = free_ports(1)
    command = (sys.executable, *LAUNCH, *RUN[1:], "train.py", str(port), "die")
    status, trace = launched(tmp_path, *command)
    assert status and not trace.data.finished
    assert {each.worker for each in trace.programs} == {"rank:0", "rank:1"}
    assert not any("earlier run" in note for note in trace.notes)
