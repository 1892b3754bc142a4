"""A worker of a `MultiWorkerMirroredStrategy`: trains odometers, saves their traces and readings.

For each cell it writes to the folder that it is given: `CELL/worker-N.json`, the trace, and
`CELL.worker-N.truth`, what the odometers show.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
import tf_keras
from support import odometers

import tracer

STEPS = 40
folder = Path(sys.argv[1])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id


def finish(cell: str, optimizer: Any, variables: dict[str, Any]) -> None:
    place = folder / cell
    place.mkdir(exist_ok=True)
    tracer.trace_of(optimizer).save(place)
    truth = {name: odometers.read(variable)[0] for name, variable in variables.items()}
    (folder / f"{cell}.worker-{worker}.truth").write_text(json.dumps(truth))


def make_step(optimizer: Any, variables: dict[str, Any]) -> Any:
    def apply() -> None:
        optimizer.apply_gradients(odometers.gradients(variables))

    return tf.function(lambda: strategy.run(apply))


for kind in ("legacy", "keras2", "keras3"):
    with strategy.scope():
        optimizer = tracer.wrap(odometers.ODOMETERS[kind]())
        variables = odometers.make_variables(kind)
        if kind == "keras3":
            optimizer.build(list(variables.values()))

    step = make_step(optimizer, variables)
    for _ in range(STEPS):
        step()
    finish(f"{kind}-loop", optimizer, variables)

for kind in ("legacy", "keras2"):
    with strategy.scope():
        optimizer = tracer.wrap(odometers.ODOMETERS[kind]())
        zeros = {"kernel_initializer": "zeros"}
        model = tf_keras.Sequential(
            [
                tf_keras.layers.Dense(3, input_shape=(2,), **zeros),
                tf_keras.layers.Dense(2, **zeros),
            ]
        )
        model.compile(optimizer, "mse")
    data = np.ones((8 * strategy.num_replicas_in_sync, 2), "float32")
    model.fit(data, data, batch_size=strategy.num_replicas_in_sync, epochs=STEPS // 8, verbose=0)
    finish(f"{kind}-fit", optimizer, {each.name: each for each in model.trainable_variables})
