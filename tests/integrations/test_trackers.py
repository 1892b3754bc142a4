"""Counts in Keras's logs reach the experiment trackers of others: MLflow and Weights & Biases.

`nox -s integrations` installs them. Both write to local files here, and nothing is sent anywhere.
"""

import json
import struct
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import odometers
from support.libraries import keras3

import tracer.keras

pytestmark = [
    pytest.mark.long,
    pytest.mark.filterwarnings("default"),  # theirs are not ours to mend
]

EPOCHS, BATCHES, BATCH = 3, 10, 4
EXPECTED = {
    "tracer/steps": [10.0] * EPOCHS,
    "tracer/updates": [2.0 * 8] * EPOCHS,  # a kernel and a bias, in the steps that are not skipped
    "tracer/steps_without_updates": [2.0] * EPOCHS,
}
"""Of each epoch's 10 batches 2 have gradients that are not finite: the loss scale skips them."""


def train(*callbacks: Any) -> None:
    """Train an odometer, which counts the updates in the weights."""
    layers = [keras3.layers.Input((3,)), keras3.layers.Dense(2, kernel_initializer="zeros")]
    model = keras3.Sequential(layers)
    model.compile(keras3.optimizers.LossScaleOptimizer(odometers.Keras3Odometer()), "mse")
    x, y = np.ones((BATCHES * BATCH, 3), "float32"), np.ones((BATCHES * BATCH, 2), "float32")
    x[: 2 * BATCH] = np.inf
    callback = tracer.keras.TraceCallback(every=None, logs=True)
    options = {"batch_size": BATCH, "epochs": EPOCHS, "shuffle": False, "verbose": 0}
    model.fit(x, y, callbacks=[callback, *callbacks], **options)
    assert (model.get_weights()[0] == EPOCHS * 8).all()


@pytest.mark.parametrize("automatic", [False, True], ids=["callback", "autolog"])
def test_mlflow(
    automatic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # it needs no database
    mlflow = pytest.importorskip("mlflow", reason="only `nox -s integrations` installs MLflow")
    mlflow.set_tracking_uri(tmp_path.as_uri())
    mlflow.set_experiment("odometer")
    if automatic:
        mlflow.tensorflow.autolog(log_models=False, log_datasets=False, checkpoint=False)
        request.addfinalizer(lambda: mlflow.tensorflow.autolog(disable=True))
    with mlflow.start_run() as run:
        train(*([] if automatic else [mlflow.keras.MlflowCallback()]))
    for name, counts in EXPECTED.items():
        found = mlflow.MlflowClient().get_metric_history(run.info.run_id, name)
        assert [(each.step, each.value) for each in found] == list(enumerate(counts))


def test_weights_and_biases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    for name in ("CACHE", "CONFIG", "DATA"):
        monkeypatch.setenv(f"WANDB_{name}_DIR", str(tmp_path / name))
    wandb = pytest.importorskip("wandb", reason="only `nox -s integrations` installs wandb")
    keras_of_wandb: Any = import_module("wandb.integration.keras")
    run = wandb.init(project="odometer", dir=tmp_path, mode="offline")
    train(keras_of_wandb.WandbMetricsLogger())
    run.finish()
    (file,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    rows = list(history(file))
    for name, counts in EXPECTED.items():
        assert [row[f"epoch/{name}"] for row in rows] == counts


def history(file: Path) -> Iterator[dict[str, Any]]:
    """What `wandb.log` wrote.

    The file of an offline run is a log of LevelDB with another head, of 7 bytes: blocks of 32 KiB,
    in them pieces with a checksum of 4 bytes, the length in 2, and 1 for the place in the record
    (1: all of it, 4: the last of it). github.com/google/leveldb, doc/log_format.md.
    """
    messages: Any = import_module("wandb.proto.wandb_internal_pb2")
    data, at, whole = file.read_bytes(), 7, b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 2**15 - at % 2**15
        if left < 7:
            at += left
            continue
        length, place = struct.unpack("<HB", data[at + 4 : at + 7])
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if place in (1, 4):
            record, whole = messages.Record.FromString(whole), b""
            if record.HasField("history"):
                items = record.history.item
                yield {"/".join(i.nested_key) or i.key: json.loads(i.value_json) for i in items}
