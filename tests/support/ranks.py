"""Processes of one program, each of which is a worker: `PROGRAM RANK PORT FOLDER`."""

import os
import subprocess
import sys
from pathlib import Path

from support.cluster import free_ports

TESTS = Path(__file__).parents[1]


def launch(program: str, folder: Path, given: str = "", count: int = 2) -> list[str]:
    """What each rank of a program in `tests/programs` prints; it is `given` the folder, or else."""
    (port,) = free_ports(1)
    command = sys.executable, str(TESTS / "programs" / program)
    ranks = [
        subprocess.Popen(
            [*command, str(rank), str(port), given or str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(folder / f"stderr-{rank}.txt").open("w"),
            text=True,
        )
        for rank in range(count)
    ]
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    for number, rank in enumerate(ranks):
        assert rank.returncode == 0, (folder / f"stderr-{number}.txt").read_text()
    return printed
