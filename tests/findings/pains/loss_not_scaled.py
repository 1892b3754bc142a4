"""A loss scale divides gradients whose loss nobody multiplied. Asked in keras 19479, 19244 and
20894.
"""

import sys

import keras
import numpy as np
import tensorflow as tf


def train(healthy: bool) -> bool:
    weight = keras.Variable(tf.ones([3]), name="weight")
    optimizer = keras.mixed_precision.LossScaleOptimizer(keras.optimizers.SGD(0.1))

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight.value**2)
            if healthy:
                loss = optimizer.scale_loss(loss)
        optimizer.apply_gradients([(tape.gradient(loss, weight.value), weight)])

    for _ in range(10):
        step()
    # Each step takes a fifth: rate 0.1 times the gradient, which is twice the weight.
    return not np.allclose(weight.numpy(), 0.8**10, rtol=1e-3)


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
