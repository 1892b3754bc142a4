"""Training goes on from weights alone: Adam begins again, at iteration 0 and without moments."""

import sys
import tempfile
from pathlib import Path

import keras
import numpy as np


def compiled() -> keras.Model:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(), "mse")
    return model


def train(healthy: bool) -> bool:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")
    model = compiled()
    model.fit(x, y, batch_size=4, epochs=3, verbose=0)
    with tempfile.TemporaryDirectory() as folder:
        if healthy:
            file = Path(folder, "model.keras")
            model.save(file)
            model = keras.models.load_model(file)
        else:
            file = Path(folder, "only.weights.h5")
            keras.Model.save_weights(model, file)
            model = compiled()
            model.load_weights(file)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0)
    return int(model.optimizer.iterations) < 10


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
