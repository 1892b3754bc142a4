"""Which processes are of one launch, by what launchers put into the environment."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support import traces

import tracer
from tracer.model import launches
from tracer.model.records import Launch, Replica

CHILDREN = {launches.CHILDREN: json.dumps(["/tmp/traces/one", {}])}
LOCAL = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
TORCHRUN = {"TORCHELASTIC_RUN_ID": "none", "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
SLURM = {"SLURM_STEP_NUM_TASKS": "2", "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0"}


def task(*places: str) -> dict[str, str]:
    """`TF_CONFIG` of the first of these workers."""
    task = {"type": "worker", "index": 0}
    return {"TF_CONFIG": json.dumps({"cluster": {"worker": places}, "task": task})}


PARENT = launches.here({}).key


@pytest.mark.parametrize(
    ("environment", "key"),
    [
        ({"TRACER_RUN": "mine", **SLURM}, "mine"),
        ({**TORCHRUN, "TORCHELASTIC_RUN_ID": "job", **SLURM}, "torchrun job"),
        # The agent of torchrun started all ranks; several may run in one task of Slurm.
        ({**TORCHRUN, **LOCAL}, PARENT),
        ({**TORCHRUN, **LOCAL, **SLURM}, PARENT),
        # Two agents, on one machine or more.
        ({**TORCHRUN, "WORLD_SIZE": "4", **LOCAL}, "127.0.0.1:29500"),
        ({**TORCHRUN, "WORLD_SIZE": "4", **LOCAL, **SLURM}, "7 0 0"),
        ({**SLURM, **LOCAL, "SLURM_RESTART_COUNT": "1"}, "7 0 1"),
        ({**SLURM, "SLURM_STEP_NUM_TASKS": "1"}, PARENT),  # `srun --pty bash`
        ({"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prterun-a-5@1"}, "prterun-a-5@1"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, PARENT),
        # Ranks that a script starts.
        ({"RANK": "0", "WORLD_SIZE": "2", **LOCAL}, f"{PARENT} 127.0.0.1:29500"),
        ({"RANK": "0", **LOCAL, "MASTER_ADDR": "10.0.0.1"}, "10.0.0.1:29500"),
        (task("localhost:1", "localhost:2"), f"{PARENT} localhost:1"),
        (task("a:1", "b:1"), "a:1"),
        ({"JAX_COORDINATOR_ADDRESS": "a:1"}, "a:1"),
        # What no launcher writes.
        ({"TF_CONFIG": "[1]", "MASTER_ADDR": "a"}, PARENT),
        ({"TF_CONFIG": '{"cluster": {"worker": []}}'}, PARENT),
        # One of them starts the others.
        ({**CHILDREN, **LOCAL}, f"{PARENT.split()[0]} 127.0.0.1:29500"),
        ({**CHILDREN, **TORCHRUN, **LOCAL}, PARENT),
        (CHILDREN, PARENT),
    ],
)
def test_what_is_equal_for_the_processes_of_a_launch(environment: dict[str, str], key: str) -> None:
    launch = launches.here(environment)
    assert launch.key == key
    assert launch.run == ("one" if environment.items() >= CHILDREN.items() else "")
    assert not launches.is_running(launch)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="only Linux says when it started")
def test_a_process_that_runs_is_known() -> None:
    assert PARENT.split()[1:] == [str(os.getppid()), PARENT.split()[2]] and PARENT[-2:] != " 0"
    script = (
        "from tracer.model import launches; import msgspec, sys;"
        "print(msgspec.json.encode(launches.here()).decode(), flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdin
        launch = msgspec.json.decode(process.stdout.readline(), type=Launch)
        assert launches.is_running(launch)
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not launches.is_running(launch)  # it has ended, and nobody has asked how
        assert not launches.is_running(msgspec.structs.replace(launch, process_started=0))


def save(path: Path, launch: Launch | None, rank: int = 0) -> None:
    """Save a trace of one of two ranks."""
    path.parent.mkdir(exist_ok=True)
    replicas = (Replica(f"rank:{rank}", 0, "cpu"),)
    cluster = {"cluster": "rank:0, rank:1"}
    trace = traces.accumulation(8)
    traces.changed(trace, replicas=replicas, environment=cluster, launch=launch).save(path)


def test_a_folder_is_its_newest_launch(tmp_path: Path) -> None:
    for folder, started in ("new", 200.0), ("old", 100.0):
        for rank in (0, 1):
            launch = Launch(folder, started=started + rank)
            save(tmp_path / folder / f"rank-{rank}.json", launch, rank)
    save(tmp_path / "older.json", None)
    (tmp_path / "new" / "other.json").write_text("{}")
    trace = tracer.load(tmp_path)
    assert trace.complete and trace.workers == ("rank:0", "rank:1")
    assert trace.notes == (
        "not counted, from another launch: older.json, old/rank-0.json and old/rank-1.json",
    )
    assert tracer.load(tmp_path / "old").notes == ()


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (Launch("id", host="b", started=100, saved=130), True),
        # The id was used before.
        (Launch("id", host="b", started=9, saved=20), False),
        (Launch("id", host="b", started=9), True),
        (Launch("other", host="a", started=99, saved=130), False),
        # `tracer run --children` lasts until its last process ends.
        (Launch("id", "run", "a", started=9, saved=20), False),
    ],
)
def test_what_an_earlier_launch_left_is_not_counted(
    tmp_path: Path, left: Launch, kept: bool
) -> None:
    save(tmp_path / "rank-0.json", Launch("id", host="a", started=101, saved=200))
    save(tmp_path / "rank-1.json", left, 1)
    trace = tracer.load(tmp_path)
    assert trace.workers == (("rank:0", "rank:1") if kept else ("rank:0",))
    assert trace.complete == kept
    named = "not counted, from another launch: rank-1.json"
    assert (named in trace.notes) != kept


RECORDED = "import sys, tracer\nwith tracer.record() as r: pass\nr.trace().save(sys.argv[1])"


def test_ranks_without_an_optimizer_have_a_file_each(tmp_path: Path) -> None:
    for rank in ("0", "1"):
        subprocess.run(
            [sys.executable, "-c", RECORDED, f"{tmp_path}/"],
            env={**os.environ, "RANK": rank, "WORLD_SIZE": "2"},
            check=True,
        )
    assert sorted(each.name for each in tmp_path.iterdir()) == ["rank-0.json", "rank-1.json"]
    assert tracer.load(tmp_path).complete
    (tmp_path / "rank-1.json").unlink()
    assert not tracer.load(tmp_path).complete
