"""The framework that the tests without TensorFlow are about: a process has one.

It is the one that is installed, or that `KERAS_BACKEND` asks for. A `conftest.py` imports this
before anything imports Keras or JAX: Keras has one backend in a process, and JAX gets two devices.
"""

import importlib.util
import os

FRAMEWORKS = ("tensorflow", "torch", "jax")
FRAMEWORK = os.environ.get("KERAS_BACKEND") or next(
    filter(importlib.util.find_spec, FRAMEWORKS), ""
)

if FRAMEWORK in FRAMEWORKS[1:]:
    os.environ.setdefault("KERAS_BACKEND", FRAMEWORK)
if FRAMEWORK == "jax":
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2".strip()
