"""Kills a traced training, and looks at what is left of its trace."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class Kill:
    """What a kill left; steps are those of the optimizer."""

    after: float
    """Seconds to the kill: from the first step or, if `early`, from the start of the program."""
    early: bool
    file: bool
    """Whether there is a trace file. It was loaded, or `kill` raised."""
    finished: bool
    steps: int
    """The steps in the file."""
    due: int
    """The steps that ran up to `EVERY` seconds before the kill: what the file must hold."""
    ran: int
    """The steps that ran."""

    @property
    def held(self) -> bool:
        """Whether the file is as it must be. Before there is a step there may be none."""
        return (self.file and not self.finished and self.due <= self.steps) or not self.ran


def kill(after: float, early: bool = False) -> Kill:
    """Kill a training that many seconds after its first step; raises if the file does not load."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = folder / "steps.log"
        (folder / "train.py").write_text(TRAINING)
        command = [sys.executable, "-m", "tracer", "run", "--every", str(EVERY), "train.py"]
        environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        with subprocess.Popen(
            command, cwd=folder, env=environment, stdout=-3, stderr=-3
        ) as process:
            while not early and not (log.exists() and log.stat().st_size):
                time.sleep(0.01)
            time.sleep(after)
            now = time.monotonic()
            process.send_signal(signal.SIGKILL)
        lines = log.read_text().split("\n")[:-1] if log.exists() else []
        steps = [(float(at), int(step)) for at, step in map(str.split, lines)]
        due = max((step for at, step in steps if at <= now - EVERY), default=0)
        ran = max((step for _, step in steps), default=0)
        path = folder / "tracer.json"
        if not path.exists():
            return Kill(after, early, False, False, 0, due, ran)
        trace = tracer.load(path)
        return Kill(after, early, True, trace.finished, trace.steps, due, ran)
