"""The model is compiled in each epoch, each time with a new Adam that begins without moments."""

import sys

import keras
import numpy as np


def train(healthy: bool) -> bool:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    for epoch in range(4):
        if not healthy or epoch == 0:
            model.compile("adam", "mse")
        model.fit(x, y, batch_size=4, verbose=0)
    return int(model.optimizer.iterations) < 4 * 2


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
