"""A train step calls `apply_gradients` for each of its two losses: the schedule goes on twice."""

import sys

import keras
import numpy as np
import tensorflow as tf


def train(healthy: bool) -> bool:
    layers = [keras.layers.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    rate = keras.optimizers.schedules.PolynomialDecay(0.1, 20, 0.01)
    optimizer = keras.optimizers.Adam(rate)
    optimizer.build(model.trainable_variables)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        weights = model.trainable_variables
        with tf.GradientTape(persistent=True) as tape:
            predicted = model(x, training=True)
            fit = tf.reduce_mean((predicted - y) ** 2)
            smooth = tf.reduce_mean(tf.abs(predicted))
            both = fit + smooth
        for loss in [both] if healthy else [fit, smooth]:
            optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))

    calls = 10
    for _ in range(calls):
        train_step(tf.constant(np.ones((8, 3), "f4")), tf.constant(np.ones((8, 1), "f4")))
    return int(optimizer.iterations) > calls


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
