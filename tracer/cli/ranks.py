"""Which of several processes this one is, as its launcher says in the environment.

Sources: docs.pytorch.org/docs/stable/elastic/run.html (`RANK`, `WORLD_SIZE`), Open MPI's
mpirun(1), MPICH's Hydra and Slurm's srun(1). `SLURM_NTASKS` is not asked: a batch script, which is
one process, has it too.
"""

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
_MOST = 100_000


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
            if 0 <= number < count and 1 < count <= _MOST:
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
