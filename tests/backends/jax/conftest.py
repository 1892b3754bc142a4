"""Tests on JAX, a process of their own: see `support/framework.py`."""

from support.framework import FRAMEWORK

collect_ignore_glob = [] if FRAMEWORK == "jax" else ["test_*.py"]
