"""The same with tf_keras, where gradients are divided by a method of their own."""

import sys

import numpy as np
import tensorflow as tf
import tf_keras


def train(healthy: bool) -> bool:
    weight = tf.Variable(tf.ones([3]), name="weight")
    optimizer = tf_keras.mixed_precision.LossScaleOptimizer(tf_keras.optimizers.SGD(0.1))
    for _ in range(10):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
            if healthy:
                loss = optimizer.get_scaled_loss(loss)
        gradients = optimizer.get_unscaled_gradients(tape.gradient(loss, [weight]))
        optimizer.apply_gradients(zip(gradients, [weight], strict=True))
    # Each step takes a fifth: rate 0.1 times the gradient, which is twice the weight.
    return not np.allclose(weight.numpy(), 0.8**10, rtol=1e-3)


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
