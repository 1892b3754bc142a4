"""A `train_step` computes gradients and forgets to apply them."""

import sys

import keras
import numpy as np
import tensorflow as tf


class Model(keras.Sequential):  # type: ignore[misc]
    healthy = False

    def train_step(self, batch):  # type: ignore[no-untyped-def]
        x, y = batch
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        if self.healthy:
            self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        return {"loss": loss}


def train(healthy: bool) -> bool:
    model = Model([keras.layers.Input((3,)), keras.layers.Dense(1)])
    model.healthy = healthy
    model.compile(keras.optimizers.Adam(), "mse")
    before = model.get_weights()[0]
    model.fit(np.ones((8, 3), "f4"), np.ones((8, 1), "f4"), batch_size=4, verbose=0)
    return bool(np.all(model.get_weights()[0] == before))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
