"""Two processes with two devices each: each counts for itself, and their files are one run."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

import tracer

PROGRAM = Path(__file__).parents[2] / "programs" / "keras_on_jax.py"


@pytest.mark.long
def test_each_process_counts_what_its_weights_say(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), str(rank), str(port), str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    printed = [process.communicate(timeout=300)[0] for process in processes]
    assert [float(each.split()[-1]) for each in printed] == [24, 24]  # 6 steps of 4 variables
    trace = tracer.load(tmp_path)
    assert trace.complete, trace.notes
    assert trace.count("updates", by="worker") == {("process:0",): 24, ("process:1",): 24}
    assert trace.count("compared", by="worker") == {("process:0",): 24, ("process:1",): 24}
    assert not trace.count("unchanged", by=()) and not trace.count("not_finite", by=())
    assert trace.steps == 6
