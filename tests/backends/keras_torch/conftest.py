"""Keras on PyTorch, before anything imports either.

These tests are a process of their own: Keras has one backend in a process. Beside TensorFlow or JAX
they run only if `KERAS_BACKEND=torch` asks for them.
"""

import importlib.util
import os

if not any(map(importlib.util.find_spec, ("tensorflow", "jax"))):
    os.environ.setdefault("KERAS_BACKEND", "torch")
if os.environ.get("KERAS_BACKEND") != "torch" or importlib.util.find_spec("torch") is None:
    collect_ignore_glob = ["test_*.py"]
