"""Two processes of one program, each of which is a worker: `PROGRAM RANK PORT FOLDER`."""

import os
import subprocess
import sys
from pathlib import Path

from support.cluster import free_ports

TESTS = Path(__file__).parents[1]


def launch(program: str, folder: Path) -> list[str]:
    """What each rank of a program in `tests/programs` prints."""
    (port,) = free_ports(1)
    ranks = [
        subprocess.Popen(
            [sys.executable, str(TESTS / "programs" / program), str(rank), str(port), str(folder)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=(folder / f"stderr-{rank}.txt").open("w"),
            text=True,
        )
        for rank in range(2)
    ]
    printed = [rank.communicate(timeout=300)[0] for rank in ranks]
    for number, rank in enumerate(ranks):
        assert rank.returncode == 0, (folder / f"stderr-{number}.txt").read_text()
    return printed
