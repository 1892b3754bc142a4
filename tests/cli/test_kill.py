"""After `kill -9` at any moment the trace file loads, and lacks no more than the last interval.

A busy machine saves late, so only a weekly run asks how much of a training is lacking.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.patience import wait_until

import tracer

EVERY = 0.5
"""Seconds that the trace file may be behind."""

TRAINING = """
import time
import tensorflow as tf
import keras
log = open("steps.log", "w")
layers = [keras.layers.Dense(4) for _ in range(20)]
model = keras.Sequential(layers)
model.compile("adam", "mse")
class Log(keras.callbacks.Callback):
    steps = 0
    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        print(time.monotonic(), self.steps, file=log, flush=True)
x = tf.ones((8, 4))
model.fit(tf.data.Dataset.from_tensors((x, x)).repeat(), epochs=1, verbose=0, callbacks=[Log()])
"""


@pytest.mark.parametrize(
    ("after", "early"),
    [
        pytest.param(0.3, True, marks=pytest.mark.long),
        pytest.param(1.3, False, marks=pytest.mark.sweep),
        pytest.param(1.5, True, marks=pytest.mark.sweep),
        pytest.param(0.1, False, marks=pytest.mark.sweep),
        pytest.param(2.2, False, marks=pytest.mark.sweep),
    ],
)
def test_kill(after: float, early: bool, tmp_path: Path) -> None:
    """So many seconds after its first step or, if `early`, after the start of the program."""
    log, saved = tmp_path / "steps.log", tmp_path / "tracer.json"
    (tmp_path / "train.py").write_text(TRAINING)
    command = [sys.executable, "-m", "tracer", "run", "--every", str(EVERY), "train.py"]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=-3, stderr=-3) as process:
        if not early:
            wait_until(lambda: log.exists() and log.stat().st_size)
        time.sleep(after)
        now = time.monotonic()
        process.send_signal(signal.SIGKILL)
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    steps = [(float(at), int(step)) for at, step in map(str.split, lines)]
    due = max((step for at, step in steps if at <= now - EVERY), default=0)
    if saved.exists():
        trace = tracer.load(saved)
        assert not trace.finished and due <= trace.steps
    else:
        assert not steps, "nothing was saved"
