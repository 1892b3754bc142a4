"""Commands in forks of one Python that has imported TensorFlow: 4 s sooner than new processes.

What depends on how TensorFlow is imported, or on what Python does before it runs a command, needs a
process of its own: see `cli.test_run.run`.
"""

import atexit
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """What `python -m` with these arguments did in `folder`: its status and what it printed."""
    with tempfile.TemporaryDirectory() as place:
        outputs = [Path(place, name) for name in ("stdout", "stderr")]
        request = {
            "arguments": list(arguments),
            "folder": str(folder),
            "environment": dict(environment),
            "outputs": [str(output) for output in outputs],
        }
        server = _server()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(f"{json.dumps(request)}\n")
        server.stdin.flush()
        status = server.stdout.readline()
        assert status, f"the Python that forks ended with {server.poll()}"
        texts = [output.read_text("utf-8") for output in outputs]
        return subprocess.CompletedProcess(arguments, int(status), *texts)


@cache
def _server() -> subprocess.Popen[str]:
    """The Python that forks, as long as this process lives."""
    server = subprocess.Popen(
        [sys.executable, __file__],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(server.communicate)  # closes its standard input, and waits for its end
    return server


def _serve() -> None:
    """Fork for each request, a line of JSON, and answer with the status."""
    import keras  # noqa: F401
    import tensorflow as tf  # noqa: F401

    answers = os.fdopen(os.dup(1), "w")
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            answers.close()
            _become(json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), file=answers, flush=True)


def _become(request: dict[str, Any]) -> None:
    """Run `python -m` as a new process would, but for what is imported."""
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    for number, name in enumerate((os.devnull, *request["outputs"])):
        file = os.open(name, os.O_RDWR | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    paths = filter(None, request["environment"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:1] = [request["folder"], *paths]
    sys.argv = request["arguments"]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _serve()
