"""One of two processes in which Keras on JAX trains one model: `keras_on_jax.py RANK PORT FOLDER`.

Each has two devices. The weights of an odometer count the updates; each process prints its own.
"""

import os
import sys
from pathlib import Path

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"
sys.path.insert(0, str(Path(__file__).parents[1]))

import jax  # noqa: E402

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from backends.jax.keras_on_jax import Odometer, model  # noqa: E402

import tracer  # noqa: E402

devices = keras.distribution.list_devices()
keras.distribution.set_distribution(
    keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
)
optimizer = tracer.wrap(Odometer(), effects=True)
trained = model(optimizer)
x, y = np.ones((16, 4), "float32"), np.ones((16, 1), "float32")
trained.fit(x, y, batch_size=8, epochs=3, verbose=0)
tracer.trace_of(optimizer).save(folder)
weights = [each.value.addressable_data(0) for each in trained.trainable_variables]
print(sum(float(np.ravel(each)[0]) for each in weights))
