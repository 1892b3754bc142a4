"""Trains on two workers of a `MultiWorkerMirroredStrategy`, both on this machine.

    python reports/two_workers.py run
    tracer report run

Each worker is a process of its own and writes its trace to the folder `run`, as `worker-0.json` and
`worker-1.json`; `tracer report` merges them. On several machines it is the same script, started on
each with its own `TF_CONFIG` and a folder that all of them see.
"""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

WORKERS = 2
LIMIT = 300  # seconds


def train(folder: Path) -> None:
    """What each worker does."""
    import numpy as np
    import tensorflow as tf
    import tf_keras

    import tracer

    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Embedding(50, 8, input_length=4),
                tf_keras.layers.Flatten(),
                tf_keras.layers.Dense(16, activation="relu"),
                tf_keras.layers.Dense(1),
            ]
        )
        optimizer = tracer.wrap(tf_keras.optimizers.legacy.Adam())
        model.compile(optimizer, "mse")
    rng = np.random.default_rng(0)
    words = rng.integers(0, 50, (256, 4))
    model.fit(words, words.mean(axis=1), batch_size=32, epochs=2, verbose=0)
    tracer.trace_of(optimizer).save(folder)


def start(folder: Path) -> int:
    """Start the workers and wait for them; returns the exit status."""
    folder.mkdir(parents=True, exist_ok=True)
    sockets = [socket.socket() for _ in range(WORKERS)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    places = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    workers = []
    for index in range(WORKERS):
        task = {"cluster": {"worker": places}, "task": {"type": "worker", "index": index}}
        environment = {
            "TF_CPP_MIN_LOG_LEVEL": "2",
            "TF_NUM_INTEROP_THREADS": "16",  # fewer can be too few for a collective on 2 cores
            **os.environ,
            "CUDA_VISIBLE_DEVICES": "-1",
            "TF_CONFIG": json.dumps(task),
        }
        command = [sys.executable, __file__, str(folder)]
        workers.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
    try:
        statuses = [worker.wait(LIMIT) for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    print(f"worker exit statuses {statuses}; traces: {', '.join(sorted(os.listdir(folder)))}")
    return max(map(abs, statuses))


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python reports/two_workers.py FOLDER")
    if "TF_CONFIG" in os.environ:
        train(Path(sys.argv[1]))
    else:
        sys.exit(start(Path(sys.argv[1])))
