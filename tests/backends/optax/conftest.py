"""Two devices before anything imports JAX; without JAX and optax there is nothing to test.

As the tests of Keras on JAX these are a process of their own: beside TensorFlow or PyTorch they run
only if `KERAS_BACKEND=jax` asks for them.
"""

import importlib.util
import os

others = any(importlib.util.find_spec(name) for name in ("tensorflow", "torch"))
missing = any(importlib.util.find_spec(name) is None for name in ("jax", "optax"))
if missing or (others and os.environ.get("KERAS_BACKEND") != "jax"):
    collect_ignore_glob = ["test_*.py"]
else:
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2".strip()
