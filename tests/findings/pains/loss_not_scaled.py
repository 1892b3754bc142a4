"""A loss scale divides gradients whose loss nobody multiplied. Asked in keras 19479, 19244 and
20894.
"""

import sys

import keras
import tensorflow as tf


def train(healthy: bool) -> None:
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


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
