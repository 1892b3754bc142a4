"""What is read of the variables that an optimizer keeps for itself."""

import tensorflow as tf

import tracer


def test_the_rate_in_a_variable_of_any_shape() -> None:
    rate = tf.Variable(0.25, shape=tf.TensorShape(None))
    optimizer = tracer.wrap(tf.compat.v1.train.GradientDescentOptimizer(rate))
    optimizer.apply_gradients([(tf.ones(2), tf.Variable(tf.zeros(2)))])
    assert tracer.trace_of(optimizer).optimizers[0].rate == 0.25
