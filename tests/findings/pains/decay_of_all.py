"""A pattern that is to leave variables out of weight decay matches no name."""

import sys

import keras
import numpy as np


def train(healthy: bool) -> bool:
    x, y = np.ones((8, 3), "f4"), np.ones((8, 1), "f4")
    layers = [keras.layers.Dense(3), keras.layers.LayerNormalization(), keras.layers.Dense(1)]
    model = keras.Sequential([keras.layers.Input((3,)), *layers])
    optimizer = keras.optimizers.AdamW(weight_decay=0.01)
    names = ["bias", "gamma", "beta"] if healthy else ["LayerNorm"]
    optimizer.exclude_from_weight_decay(var_names=names)
    model.compile(optimizer, "mse")
    model.fit(x, y, batch_size=4, verbose=0)
    return bool(optimizer._use_weight_decay(model.layers[1].gamma.value))


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
