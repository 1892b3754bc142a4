"""These tests need no TensorFlow; the framework is chosen before anything imports it."""

from support.framework import FRAMEWORK

collect_ignore_glob = [] if FRAMEWORK in ("torch", "jax") else ["*.py"]
