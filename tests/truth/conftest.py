"""These tests need no TensorFlow; the framework is chosen before anything imports it."""

from support.framework import FRAMEWORK

# A module of doctests is imported once more, and Keras knows the classes of the last one by name.
collect_ignore_glob = ["keras_*.py"] if FRAMEWORK in ("torch", "jax") else ["*.py"]
