"""A task of a `ParameterServerStrategy`: the coordinator trains odometers, the others serve.

The coordinator writes to the folder that it is given: `KIND.json`, the trace, and `KIND.truth`: the
closures that it scheduled, what the odometers show, and for a sharded variable each shard. When
half of the closures are scheduled it writes `half`, and goes on when `on` is there.
"""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import tensorflow as tf
from support import odometers

import tracer

STEPS = 100
folder = Path(sys.argv[1])
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    )
    server.join()

strategy = tf.distribute.ParameterServerStrategy(
    resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
)
coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
pause = (folder / "pause").exists()


def make_step(optimizer: Any, table: Any, bias: Any) -> Any:
    def apply() -> None:
        shards = [(tf.ones_like(shard), shard) for shard in table.variables]
        optimizer.apply_gradients([*shards, (tf.ones_like(bias), bias)])

    return tf.function(lambda: strategy.run(apply))


for kind in ("legacy", "keras2"):
    with strategy.scope():
        optimizer = tracer.wrap(odometers.ODOMETERS[kind]())
        table = tf.Variable(tf.zeros((4, 2)), name="table")
        bias = tf.Variable(0.0, name="bias")

    step = make_step(optimizer, table, bias)
    for index in range(STEPS):
        coordinator.schedule(step)
        if pause and index == STEPS // 2 and kind == "legacy":
            coordinator.join()
            (folder / "half").touch()
            while not (folder / "on").exists():
                time.sleep(0.05)
    coordinator.join()
    trace = tracer.trace_of(optimizer)
    trace.save(folder / f"{kind}.json")
    truth = {
        "scheduled": STEPS,
        "bias": float(bias.numpy()),
        "shards": {
            shard.name: sorted(set(shard.numpy().ravel().tolist())) for shard in table.variables
        },
        "by object": trace.updates(variable=table.variables[0]),
    }
    (folder / f"{kind}.truth").write_text(json.dumps(truth))
sys.stdout.flush()
os._exit(0)  # TensorFlow's own teardown waits for servers that nobody ends
