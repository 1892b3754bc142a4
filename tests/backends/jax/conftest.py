"""Keras on JAX, and two devices, before anything imports either.

These tests are a process of their own: Keras has one backend in a process. Beside TensorFlow they
run only if `KERAS_BACKEND=jax` asks for them.
"""

import importlib.util
import os

if importlib.util.find_spec("tensorflow") is None and importlib.util.find_spec("torch") is None:
    os.environ.setdefault("KERAS_BACKEND", "jax")
if os.environ.get("KERAS_BACKEND") != "jax" or importlib.util.find_spec("jax") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2".strip()
