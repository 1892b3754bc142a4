"""A worker of a `MultiWorkerMirroredStrategy`: trains odometers, saves their traces and readings.

For each kind it writes to the folder that it is given: `KIND/worker-N.json`, the trace, and
`KIND.worker-N.truth`, what the odometers show.
"""

import json
import sys
from pathlib import Path
from typing import Any

import tensorflow as tf
from support import odometers

import tracer

STEPS = 40
folder = Path(sys.argv[1])
strategy = tf.distribute.MultiWorkerMirroredStrategy()
worker = strategy.cluster_resolver.task_id


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
    place = folder / kind
    place.mkdir(exist_ok=True)
    tracer.trace_of(optimizer).save(place)
    truth = {name: odometers.read(variable)[0] for name, variable in variables.items()}
    (folder / f"{kind}.worker-{worker}.truth").write_text(json.dumps(truth))
