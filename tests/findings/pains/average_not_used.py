"""A moving average of the weights is kept in a loop of one's own, and never put into the model.

Asked in keras 18949.
"""

import sys

import keras
import numpy as np
import tensorflow as tf


def train(healthy: bool) -> bool:
    model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1, use_ema=True)

    @tf.function
    def step(x: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(x) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(5):
        step(tf.ones([4, 3]))
    if healthy:
        optimizer.finalize_variable_values(model.trainable_variables)
    average = next(each for each in optimizer.variables if "average" in each.path)
    return bool(np.any(model.get_weights()[0] != average.numpy()))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
