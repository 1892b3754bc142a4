"""Counts in Keras's logs reach an experiment tracker of others, MLflow.

`nox -s integrations` installs it. It writes to local files here, and sends nothing anywhere.
"""

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
