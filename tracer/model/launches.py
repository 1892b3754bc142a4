"""Which processes are of one launch, and so one run.

Each trace records the launch of its process. Two are of one launch if their `key` is the same:

1. `TRACER_RUN`, an environment variable that the user may set for all processes of a run;
2. else the id of the launcher: that of torchrun (`--rdzv-id`; with one node, torchrun makes one up;
   "none" is no id), Slurm's job and step, Open MPI's namespace;
3. else, if the ranks are on several machines, the address where they meet (`MASTER_ADDR` and
   `MASTER_PORT`, or the first worker in `TF_CONFIG`);
4. else the machine, the process that started this one, when that began, and the address.

The processes of one `tracer run --children` are one launch, whatever their keys; in it, those that
train together have one key. There, 4 leaves out the process that started them if the address is
known, because Lightning's first rank starts the others.

An id, or an address, may be used again. So of the files of one launch, those are of an earlier one
whose process last wrote more than a minute before another one began.
"""

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import cache
from pathlib import Path

import msgspec
from msgspec.structs import replace

from tracer.model.records import Launch, TraceData

CHILDREN = "TRACER_CHILDREN"
"""The environment variable of `tracer run --children`: its folder and options, as JSON."""
_MAX_GAP = 60  # seconds
_RANKS = (
    ("RANK", "WORLD_SIZE", ()),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", ("PMIX_NAMESPACE",)),
    ("PMI_RANK", "PMI_SIZE", ()),
    (
        "SLURM_PROCID",
        "SLURM_STEP_NUM_TASKS",
        ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"),
    ),
)
"""The environment variables in which launchers pass the rank, the number of ranks, and an id.

Sources: docs.pytorch.org/docs/stable/elastic/run.html (`RANK`, `WORLD_SIZE`), Open MPI's mpirun(1)
and PMIx (`PMIX_NAMESPACE`), MPICH's Hydra and Slurm's srun(1). `SLURM_NTASKS` is not used: it is
also set in a batch script, which is a single process.
"""
_MALFORMED = (KeyError, ValueError, TypeError, AttributeError, IndexError, msgspec.MsgspecError)
_LOOPBACK = re.compile(r"localhost\b|127\.|\[?::1\b|$")
_HOST = os.uname().nodename if hasattr(os, "uname") else os.environ.get("COMPUTERNAME", "")


def place(environment: Mapping[str, str] = os.environ) -> tuple[str, str]:
    """The name of this worker, and the names of all workers that train with it, joined by commas.

    Both are empty for a single process, and in a cluster with parameter servers, whose coordinator
    counts for all.

    >>> place({"RANK": "1", "WORLD_SIZE": "2"})
    ('rank:1', 'rank:0, rank:1')
    >>> place({"RANK": "0", "WORLD_SIZE": "1"})
    ('', '')
    """
    with suppress(*_MALFORMED):
        config = msgspec.json.decode(environment["TF_CONFIG"])
        jobs, task = config["cluster"], config["task"]
        train = {job: range(len(jobs.get(job, ()))) for job in ("chief", "worker")}
        names = ", ".join(f"{job}:{index}" for job in train for index in train[job])
        alone = "ps" in jobs or sum(map(len, jobs.values())) < 2
        return ("", "") if alone else (f"{task['type']}:{int(task.get('index', 0))}", names)
    for rank, size, _ in _RANKS:
        with suppress(KeyError, ValueError):
            number, count = int(environment[rank]), int(environment[size])
            if 0 <= number < count and count > 1:
                return f"rank:{number}", ", ".join(f"rank:{each}" for each in range(count))
    return "", ""


def here(environment: Mapping[str, str] = os.environ) -> Launch:
    """The launch of this process."""
    process = os.getpid()
    key, (_, began) = _key(environment), _at_first(process)
    return Launch(key, children_of(environment), _HOST, process, _start_now(process), began)


def children_of(environment: Mapping[str, str] = os.environ) -> str:
    """The name of the folder of the `tracer run --children` that started this process, if any."""
    return Path(msgspec.json.decode(environment.get(CHILDREN, '[""]'))[0]).name


def _key(environment: Mapping[str, str]) -> str:
    """What is equal for the processes that train together: see the head of this module."""
    elastic = environment.get("TORCHELASTIC_RUN_ID")
    parent, _ = _at_first(os.getpid())
    if own := environment.get("TRACER_RUN"):
        return own
    if elastic and elastic != "none":
        return f"torchrun {elastic}"
    if elastic and environment.get("LOCAL_WORLD_SIZE") == environment.get("WORLD_SIZE"):
        return parent  # one agent started all ranks
    for _, size, names in _RANKS:
        if names and environment.get(size, "1") != "1" and names[0] in environment:
            return " ".join(environment.get(name, "0") for name in names)
    address = _address(environment)
    if elastic or not _LOOPBACK.match(address):
        return address
    return f"{_HOST if address and children_of(environment) else parent} {address}".rstrip()


def _address(environment: Mapping[str, str]) -> str:
    """Where the ranks of a training meet; empty if the environment does not say it."""
    with suppress(*_MALFORMED):
        jobs = msgspec.json.decode(environment["TF_CONFIG"])["cluster"]
        return str((jobs.get("chief") or jobs["worker"])[0])
    host, port = environment.get("MASTER_ADDR"), environment.get("MASTER_PORT")
    return f"{host}:{port}" if host and port else environment.get("JAX_COORDINATOR_ADDRESS", "")


@cache
def _at_first(process: int) -> tuple[str, float]:
    """When asked first: what started this process, which may have ended later; and the time."""
    parent = os.getppid()
    return f"{_HOST} {parent} {_start_now(parent)}", datetime.now().timestamp()


def _start_now(process: int) -> int:
    """When a process started, in ticks of its machine; 0 if that is unknown, or if it has ended."""
    with suppress(OSError, ValueError, IndexError):
        state, *fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        return 0 if state in "ZX" else int(fields[18])
    return 0


def is_running(launch: Launch) -> bool:
    """True if the process of a trace is another one, and runs on this machine now."""
    here = launch.host == _HOST and launch.process != os.getpid()
    return here and 0 < launch.process_started == _start_now(launch.process)


def of_this_process(data: TraceData) -> TraceData:
    """The trace with its launch, and the names of the launcher for workers without one."""
    launch = here()
    worker, cluster = ("", "") if launch.run else place()
    names = tuple(dict.fromkeys(replica.worker for replica in data.replicas if replica.worker))
    if worker and not names:  # unknown to frameworks
        names = (worker,)
        data = replace(
            data,
            replicas=tuple(replace(replica, worker=worker) for replica in data.replicas),
            environment={**data.environment, "cluster": cluster},
        )
    return replace(data, launch=launch, processes=names)


def newest(launches: Mapping[Path, Launch | None]) -> list[Path]:
    """The files of the newest launch, without those that an earlier launch of its key left."""
    known = {path: launch or Launch() for path, launch in launches.items()}
    last = max(known.values(), key=lambda launch: launch.started)
    return [
        path
        for path, launch in known.items()
        if (launch.run or launch.key) == (last.run or last.key)
        and (launch.run or not 0 < launch.saved < last.started - _MAX_GAP)
    ]
