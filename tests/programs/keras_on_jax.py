"""One of two processes in which Keras on JAX trains models: `keras_on_jax.py RANK PORT FOLDER`.

Each has two devices. A model is copied to all four, and one is split, with an odometer and with
Adam. Each is traced into a folder of its own, or not traced where there is no FOLDER (`-`). Each
process prints JSON: how far the weights of the odometer moved, how often Adam counted its steps,
the shapes of the first shards, and the bits of all shards of what Adam trained.
"""

import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Any

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax  # noqa: E402

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from backends.jax.keras_on_jax import Odometer, X, Y, model  # noqa: E402

import tracer  # noqa: E402


def copied() -> Any:
    devices = keras.distribution.list_devices()
    return keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)


def split() -> Any:
    """Both kernels and a bias are split in two, over the devices of each process."""
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((2, 2), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*a/kernel"], layout[".*a/bias"] = (None, "model"), ("model",)
    layout[".*b/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name="batch", auto_shard_dataset=False
    )


def shards(variables: Any) -> list[Any]:
    """What this process has of the variables."""
    arrays = [each.value for each in variables]
    return [np.asarray(each.data) for array in arrays for each in array.addressable_shards]


def train(name: str, optimizer: Any) -> Any:
    """What a model trained with, in 6 steps."""
    if folder != "-":
        tracer.wrap(optimizer, effects=True)
    keras.utils.set_random_seed(1)
    trained = model(optimizer, "zeros" if isinstance(optimizer, Odometer) else "glorot_uniform")
    trained.fit(X[:16], Y[:16], batch_size=8, epochs=3, shuffle=False, verbose=0)
    if folder != "-":
        (Path(folder) / name).mkdir(exist_ok=True)
        tracer.trace_of(optimizer).save(f"{folder}/{name}/{rank}.json")
    return trained


printed: dict[str, Any] = {}
for distribution in (copied, split):
    name = distribution.__name__
    keras.distribution.set_distribution(distribution())
    odometer = train(f"{name}-odometer", Odometer()).trainable_variables
    first = [each.value.addressable_data(0) for each in odometer]
    trained = train(f"{name}-adam", optimizer := keras.optimizers.Adam(0.1)).trainable_variables
    bits = b"".join(each.tobytes() for each in shards([*trained, *optimizer.variables]))
    printed[name] = {
        "moved": [float(np.ravel(each)[0]) for each in first],
        "shards": [list(each.shape) for each in first],
        "steps": int(optimizer.iterations.value.addressable_data(0)),
        "bits": hashlib.sha256(bits).hexdigest(),
    }
print(json.dumps(printed))
