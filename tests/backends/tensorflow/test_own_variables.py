"""What is read of the variables that an optimizer keeps for itself."""

import tensorflow as tf

import tracer


def test_the_rate_in_a_variable_of_any_shape() -> None:
    rate = tf.Variable(0.25, shape=tf.TensorShape(None))
    optimizer = tracer.wrap(tf.compat.v1.train.GradientDescentOptimizer(rate))
    optimizer.apply_gradients([(tf.ones(2), tf.Variable(tf.zeros(2)))])
    (rates,) = [each for each in tracer.trace_of(optimizer).data.rates if each.what == "rate"]
    assert [run.value for run in rates.runs] == [0.25]
