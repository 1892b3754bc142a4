"""Gradients of four batches are accumulated, and there are ten: the last two are never applied.

Asked in keras 19990 and transformers 2995.
"""

import sys

import keras
import numpy as np


def train(healthy: bool) -> bool:
    examples = 12 if healthy else 10
    x, y = np.ones((examples, 3), "f4"), np.ones((examples, 1), "f4")
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, gradient_accumulation_steps=4), "mse")
    model.fit(x, y, batch_size=1, verbose=0)
    waiting = model.optimizer._accumulated_gradients
    return any(bool(np.any(np.asarray(each))) for each in waiting)


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
