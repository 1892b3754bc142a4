"""An optimizer that gets the parts of a model one by one, and was built for the first one.

Asked in scanpy 1849, pyod 459 and gaminet 11.
"""

import sys

import tensorflow as tf
import tf_keras


def train(healthy: bool) -> bool:
    optimizer = tf_keras.optimizers.Adam()
    parts = [tf.Variable([1.0, 2.0], name="first"), tf.Variable([3.0], name="second")]
    if healthy:
        optimizer.build(parts)

    @tf.function
    def step(index: int) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(parts[index] ** 2)
        optimizer.apply_gradients([(tape.gradient(loss, parts[index]), parts[index])])

    for index in (0, 1):
        for _ in range(3):
            step(index)
    return False


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
