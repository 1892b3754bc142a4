"""A layer is frozen after its step was traced, and trains on. Asked in keras 3268, 7965, 4674 and
10222.
"""

import sys

import keras
import numpy as np


def train(healthy: bool) -> bool:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")
    base = keras.layers.Dense(2, name="base")
    head = keras.layers.Dense(1, name="head")
    model = keras.Sequential([keras.layers.Input((3,)), base, head])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=4, verbose=0)
    base.trainable = False
    before = base.get_weights()[0]
    if healthy:
        model.compile(keras.optimizers.SGD(0.1), "mse")
    model.fit(x, y, batch_size=4, epochs=3, verbose=0)
    return bool(np.any(base.get_weights()[0] != before))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
