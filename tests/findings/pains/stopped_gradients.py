"""Gradients are stopped, and weight decay moves the weights all the same.

https://github.com/huggingface/transformers/issues/22059
"""

import sys

import keras
import numpy as np
import tensorflow as tf


def train(healthy: bool) -> bool:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")
    words = keras.Variable(np.ones((3, 2), "f4"), name="words")
    head = keras.Variable(np.full((2, 1), 0.1, "f4"), name="head")
    trained = [head] if healthy else [words, head]
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    optimizer.build(trained)
    before = words.numpy().copy()

    @tf.function
    def step() -> None:
        with tf.GradientTape() as tape:
            stopped = tf.stop_gradient(words.value) + 0.0 * words.value
            loss = tf.reduce_mean((x @ stopped @ head.value - y) ** 2)
        gradients = tape.gradient(loss, [each.value for each in trained])
        optimizer.apply(gradients, trained)

    for _ in range(12):
        step()
    return bool(np.any(words.numpy() != before))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
