"""Trains models that TensorFlow Model Optimization wrapped, and prints what came of it, as JSON.

It takes tf_keras. Beside Keras 2.15 the one that was imported last is found by the names of layers,
so these programs are alone in a process.
"""
# mypy: ignore-errors

import hashlib
import json
import tempfile

import keras as keras_before  # noqa: F401
import numpy as np
import tensorflow as tf
import tensorflow_model_optimization as tfmot
import tf_keras as keras

import tracer


def network():
    layers = keras.layers
    return keras.Sequential(
        [layers.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(1)]
    )


def pruned():
    sparsity = tfmot.sparsity.keras
    schedule = sparsity.PolynomialDecay(0.2, 0.6, begin_step=2, end_step=10, frequency=2)
    return sparsity.prune_low_magnitude(network(), schedule), [sparsity.UpdatePruningStep()]


def quantized():
    return tfmot.quantization.keras.quantize_model(network()), []


def clustered():
    clustering = tfmot.clustering.keras
    return clustering.cluster_weights(network(), 3, clustering.CentroidInitialization.LINEAR), []


def saved(model, optimizer):
    """A digest of each value in a checkpoint of both, by its key."""
    with tempfile.TemporaryDirectory() as folder:
        path = tf.train.Checkpoint(model=model, optimizer=optimizer).write(folder + "/saved")
        reader = tf.train.load_checkpoint(path)
        names = reader.get_variable_to_shape_map()
        values = {name: np.asarray(reader.get_tensor(name)) for name in names}
    return {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in values.items()}


def train(wrap_layers, make, traced):
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    model, callbacks = wrap_layers()
    optimizer = make()
    if traced:
        tracer.wrap(optimizer, effects=True)
    model.compile(optimizer, "mse")
    data = np.random.default_rng(1).normal(size=(24, 5)).astype("f4")
    options = {"batch_size": 4, "epochs": 3, "verbose": 0, "callbacks": callbacks}
    model.fit(data[:, :4], data[:, 4:], **options)
    ended = {"saved": saved(model, optimizer), "config": str(optimizer.get_config())}
    if not traced:
        return ended
    trace = tracer.trace_of(optimizer)
    ended["trace"] = {
        "iterations": int(optimizer.iterations),
        "steps": trace.steps,
        "updates": [trace.updates(variable=each) for each in model.trainable_variables],
        "all updates": trace.updates(),
        "compared": sum(trace.count("compared", by=()).values()),
        "notes": list(trace.notes),
        "complete": trace.complete,
        "findings": [f"{each.code}: {each.text}" for each in trace.findings()],
    }
    return ended


results = {}
for wrap_layers in (pruned, quantized, clustered):
    for kind in (keras.optimizers.Adam, keras.optimizers.legacy.Adam):
        of_kind = "legacy" if "legacy" in kind.__module__ else "keras2"
        twins = [
            train(wrap_layers, lambda kind=kind: kind(0.01), traced) for traced in (False, True)
        ]
        results[f"{wrap_layers.__name__}, {of_kind}"] = twins
print(json.dumps(results))
