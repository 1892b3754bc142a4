"""Real processes on this machine that form a TensorFlow cluster, each with a time limit."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

LIMIT = 150
"""Seconds after which a process of a cluster is ended."""

_TESTS = Path(__file__).parents[1]


class Task:
    """A process of the cluster, one task of one job."""

    def __init__(
        self, program: str, cluster: Mapping[str, Sequence[str]], job: str, index: int, folder: Path
    ) -> None:
        config = {"cluster": dict(cluster), "task": {"type": job, "index": index}}
        self.name = f"{job}:{index}"
        self._log = folder / f"{job}-{index}.log"
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, str(_TESTS / "programs" / program), str(folder)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ
                | {
                    "TF_CONFIG": json.dumps(config),
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                    "TF_NUM_INTEROP_THREADS": "16",
                    "CUDA_VISIBLE_DEVICES": "-1",
                    "GRPC_FAIL_FAST": "use_caller",
                    "PYTHONPATH": os.pathsep.join([str(_TESTS.parent), str(_TESTS)]),
                },
            )

    def wait(self) -> None:
        """Wait until it ends well; if it does not, fail with what it printed."""
        try:
            status = self.process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = None
        if status != 0:
            tail = self._log.read_text(errors="replace")[-4000:]
            raise AssertionError(f"{self.name} ended with status {status}:\n{tail}")

    def end(self) -> None:
        """End it, if it still runs."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)


def free_ports(count: int) -> list[int]:
    """So many ports that no process uses now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def addresses(**jobs: int) -> dict[str, list[str]]:
    """A cluster specification with so many tasks for each job."""
    ports = iter(free_ports(sum(jobs.values())))
    return {job: [f"127.0.0.1:{next(ports)}" for _ in range(n)] for job, n in jobs.items()}


@contextmanager
def running(
    program: str, cluster: Mapping[str, Sequence[str]], folder: Path
) -> Iterator[dict[str, Task]]:
    """All tasks of `cluster` by name, each running `program`; they are ended with the block."""
    tasks: dict[str, Task] = {}
    try:
        for job, places in cluster.items():
            for index in range(len(places)):
                task = Task(program, cluster, job, index, folder)
                tasks[task.name] = task
        yield tasks
    finally:
        for task in tasks.values():
            task.end()
