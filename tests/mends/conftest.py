"""Collect the tests of one framework: the one that is installed, or that `KERAS_BACKEND` asks for.

JAX gets two devices, before anything imports it.
"""

import importlib.util
import os

FRAMEWORKS = ("tensorflow", "torch", "jax")

asked = os.environ.get("KERAS_BACKEND") or next(filter(importlib.util.find_spec, FRAMEWORKS), "")
collect_ignore = [f"test_{name}.py" for name in FRAMEWORKS if name != asked]
if asked != "tensorflow":
    collect_ignore.append("test_verdicts.py")
if asked in FRAMEWORKS[1:]:
    os.environ.setdefault("KERAS_BACKEND", asked)
if asked == "jax":
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=2".strip()
