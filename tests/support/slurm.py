"""A cluster of Slurm with this machine as its only node: the real daemons, for `srun`."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.cluster import free_ports

_DAEMONS = ("munged", "slurmctld", "slurmd")
_CONFIG = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
AuthInfo=socket={folder}/munge
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cpus}
PartitionName=main Nodes=localhost Default=YES
"""


def is_installed() -> bool:
    """Whether there is Slurm here, and this process may start its daemons."""
    return all(map(shutil.which, ("srun", *_DAEMONS))) and os.geteuid() == 0


@contextmanager
def cluster(folder: Path) -> Iterator[dict[str, str]]:
    """A cluster while the block runs; yields what `srun` needs in its environment."""
    config, key = folder / "slurm.conf", folder / "munge.key"
    ports, cpus = free_ports(2), os.cpu_count()
    config.write_text(_CONFIG.format(folder=folder, ports=ports, cpus=cpus))
    key.write_bytes(os.urandom(128))
    key.chmod(0o600)
    files = {"key": key, **{name: folder / f"munge.{name}" for name in ("pid", "log", "seed")}}
    munge = [f"--{name}-file={path}" for name, path in files.items()]
    commands = (
        ["munged", "--foreground", "--force", f"--socket={folder}/munge", *munge],
        ["slurmctld", "-D", "-f", str(config)],
        ["slurmd", "-D", "-f", str(config), "-N", "localhost"],
    )
    environment = {"SLURM_CONF": str(config)}
    daemons = []
    try:
        for command in commands:
            daemons.append(subprocess.Popen(command, stdout=-3, stderr=-3))
            time.sleep(0.5)  # each needs the one before it
        _wait_for_the_node({**os.environ, **environment})
        yield environment
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(30)


def _wait_for_the_node(environment: dict[str, str]) -> None:
    command = ["sinfo", "--noheader", "--format=%T"]
    for _ in range(100):
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.stdout.strip() == "idle":
            return
        time.sleep(0.2)
    raise TimeoutError(f"the node of Slurm is not idle: {done.stdout} {done.stderr}")
