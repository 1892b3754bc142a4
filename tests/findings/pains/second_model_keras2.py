"""The same with tf_keras: "The optimizer cannot recognize variable"."""

import sys

import numpy as np
import tf_keras


def train(healthy: bool) -> bool:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")
    optimizer = tf_keras.optimizers.Adam()
    for _ in range(2):
        if healthy:
            optimizer = tf_keras.optimizers.Adam()
        model = tf_keras.Sequential([tf_keras.layers.Input((3,)), tf_keras.layers.Dense(1)])
        model.compile(optimizer, "mse")
        model.fit(x, y, batch_size=4, verbose=0)
    return False


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
