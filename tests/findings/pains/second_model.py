"""One optimizer for two models: the second one's variables are not those that it was built with.

Asked in tensorflow 27120 and 34983, scanpy 1849, pyod 459 and gaminet 11.
"""

import sys

import keras
import numpy as np


def train(healthy: bool) -> bool:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")
    optimizer = keras.optimizers.Adam()
    for _ in range(2):
        if healthy:
            optimizer = keras.optimizers.Adam()
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=4, verbose=0)
    return False


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
