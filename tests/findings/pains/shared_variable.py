"""The optimizer of the generator also trains the discriminator, which was never frozen in it."""

import sys

import keras
import numpy as np


def train(healthy: bool) -> bool:
    noise, real = np.ones((4, 2), "f4"), np.ones((4, 3), "f4")
    generator = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(3, name="draw")])
    critic = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(1, name="judge")])
    critic.compile(keras.optimizers.Adam(name="of_critic"), "mse")
    critic.train_on_batch(real, np.ones((4, 1)))
    if healthy:
        critic.trainable = False
    both = keras.Sequential([keras.layers.Input((2,)), generator, critic])
    both.compile(keras.optimizers.Adam(name="of_generator"), "mse")
    for _ in range(4):
        critic.train_on_batch(real, np.ones((4, 1)))
        before = critic.get_weights()[0]
        both.train_on_batch(noise, np.ones((4, 1)))
    return bool(np.any(critic.get_weights()[0] != before))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
