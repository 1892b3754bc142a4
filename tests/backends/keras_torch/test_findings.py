"""What is found of Keras on PyTorch alone; `twins/on_keras.py` has the programs for any backend."""

from pathlib import Path

import keras
import numpy as np
from twins.on_keras import fit, model

import tracer


def test_a_layer_that_is_frozen_is_not_trained_and_no_rule_is_needed() -> None:
    trained = model(tracer.wrap(keras.optimizers.SGD(0.1)))
    fit(trained)
    base = trained.layers[0]
    base.trainable = False
    before = np.array(base.get_weights()[0])
    fit(trained, 8, 2)
    assert np.array_equal(base.get_weights()[0], before)
    (finding,) = tracer.trace_of(trained.optimizer).findings()
    assert (finding.code, finding.severity) == ("updates-stopped", "info")


def test_what_keras_makes_to_save_a_model_is_no_optimizer(tmp_path: Path) -> None:
    with tracer.record() as recording:
        trained = model(keras.optimizers.Adam(0.1))
        fit(trained)
        trained.save(tmp_path / "model.keras")
    assert [each.name for each in recording.trace().optimizers] == ["adam"]
