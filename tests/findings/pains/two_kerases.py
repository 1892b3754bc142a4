"""A model of Keras 3 is given an optimizer of tf_keras: "Could not interpret optimizer identifier".

Asked in keras 19262 and 21666, and tensorflow 64250.
"""

import sys

import keras
import numpy as np
import tf_keras


def train(healthy: bool) -> bool:
    optimizers = keras.optimizers if healthy else tf_keras.optimizers
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(optimizers.Adam(), "mse")
    model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=4, verbose=0)
    return False


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
