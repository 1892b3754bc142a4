"""A function gets another optimizer the second time: "only supports singleton tf.Variables", for
the slots of that one are made where no variable may be.

Asked in tensorflow 27120 and 34983.
"""

import sys

import keras
import tensorflow as tf


def train(healthy: bool) -> bool:
    parts = [tf.Variable([1.0, 2.0], name="first"), tf.Variable([3.0], name="second")]
    optimizers = [keras.optimizers.Adam(name="one"), keras.optimizers.Adam(name="other")]
    for part, optimizer in zip(parts, optimizers, strict=True) if healthy else ():
        optimizer.build([part])

    @tf.function
    def step(index: int) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(parts[index] ** 2)
        gradient = tape.gradient(loss, parts[index])
        optimizers[index].apply_gradients([(gradient, parts[index])])

    for index in (0, 1):
        for _ in range(3):
            step(index)
    return False


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
