"""How many files of the package a reader has to know: those that five ways through it enter.

A file is entered if one of its functions is called. The limits may only fall.
"""

import json
import subprocess
import sys
from pathlib import Path

LIMITS = {
    "report": 16,
    "page": 18,
    "check that fails": 14,
    "diff": 7,
    "assertion that fails": 30,
}

CODE = """
import contextlib, io, json, sys
import tensorflow as tf, tracer
from tracer.__main__ import main

def command(*words):
    sys.argv[1:] = words
    main()

def train(optimizer):
    for _ in range(4):
        optimizer.apply_gradients([(tf.ones(1), variable) for variable in variables])

variables = [tf.Variable([1.0], name=name) for name in "ab"]
with tracer.record() as recording:
    train(tf.compat.v1.train.GradientDescentOptimizer(0.1))
recording.trace().save("tracer.json")
optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
assertion = tracer.assert_updates(optimizer, dense=3, per_step=True)
assertion.__enter__()
train(optimizer)

def note(frame, event, argument):
    if event == "call" and not frame.f_code.co_name.startswith("<"):
        entered.add(frame.f_code.co_filename)

def files_of(way):
    sys.setprofile(note)
    with contextlib.suppress(SystemExit, AssertionError):
        way()
    sys.setprofile(None)
    return sorted(name.removeprefix(root) for name in entered if name.startswith(root))

root, entered, found = tracer.__file__.removesuffix("__init__.py"), set(), {}
with contextlib.redirect_stdout(io.StringIO()):
    with contextlib.suppress(SystemExit):
        command("report", "tracer.json")  # imports
    for name, way in {
        "report": lambda: command("report", "tracer.json"),
        "page": lambda: command("report", "tracer.json", "-o", "page.html"),
        "check that fails": lambda: command("check", "tracer.json", "--expect", "dense=3/step"),
        "diff": lambda: command("diff", "tracer.json", "tracer.json"),
        "assertion that fails": lambda: assertion.__exit__(None, None, None),
    }.items():
        entered.clear()
        found[name] = files_of(way)
print(json.dumps(found))
"""


def test_no_way_enters_more_files(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    entered = json.loads(done.stdout)
    assert entered.keys() == LIMITS.keys()
    assert all(entered.values())
    more = {way: files for way, files in entered.items() if len(files) > LIMITS[way]}
    assert not more, "find out which file is new on the way, and whether it has to be"
