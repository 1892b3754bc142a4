"""Keras on the framework that the tests are about, and two devices of JAX, before each import.

As the tests of a backend these are a process of their own: Keras has one backend in a process.
"""

import importlib.util
import os

collect_ignore_glob = ["on_*.py", "with_*.py"]  # programs, which `test_twins.py` imports

if "KERAS_BACKEND" not in os.environ:
    installed = filter(importlib.util.find_spec, ("tensorflow", "torch", "jax"))
    os.environ["KERAS_BACKEND"] = next(installed, "tensorflow")
flags = os.environ.get("XLA_FLAGS", "")
if os.environ["KERAS_BACKEND"] == "jax" and "host_platform_device_count" not in flags:
    os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2".strip()
