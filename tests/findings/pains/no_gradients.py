"""A layer that the loss does not depend on: "Gradients do not exist for variables".

Asked in tensorflow 47469, 42542 and 48547.
"""

import sys

import keras
import numpy as np


def train(healthy: bool) -> bool:
    inputs = keras.layers.Input((3,))
    used = keras.layers.Dense(1, name="used")(inputs)
    unused = keras.layers.Dense(1, name="unused")(inputs)
    model = keras.Model(inputs, [used, used + unused if healthy else unused])
    model.compile(keras.optimizers.SGD(0.1), ["mse", "mse" if healthy else None])
    y = np.ones((8, 1), "f4")
    before = model.get_layer("unused").get_weights()[0]
    model.fit(np.ones((8, 3), "f4"), [y, y], batch_size=4, verbose=0)
    return bool(np.all(model.get_layer("unused").get_weights()[0] == before))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
