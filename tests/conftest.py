"""The machine that every test finds: three CPU devices, a clean Keras, and a hard time limit.

TensorFlow reads the environment when it is imported, so it is set here, before any test module.
"""

import faulthandler
import inspect
import os
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from typing import TextIO

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# With fewer threads, MirroredStrategy over logical CPUs can wait for itself for good on 2 cores.
os.environ["TF_NUM_INTEROP_THREADS"] = "16"
# It is for this run, not for those that tests of the plugin start.
os.environ.pop("PYTEST_ADDOPTS", None)

import pytest

collect_ignore = ["programs"]  # what other processes run: no tests in there

DEVICES = 3
"""Logical CPU devices: enough for `MirroredStrategy` over two and over three."""

LIMIT = 180
"""Seconds that a test may take. No test needs half of it."""

_stderr: TextIO | None = None


def pytest_configure() -> None:
    global _stderr
    # The real stderr: while a test runs, pytest holds file descriptor 2.
    _stderr = os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w")


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()
    if _stderr is not None:
        _stderr.close()


def pytest_report_header() -> str:
    """What the tests run with, read without importing it."""
    names = ("tensorflow", "keras", "tf_keras", "numpy", "msgspec", "rich", "typer", "wrapt")
    versions = {d.name.lower().replace("-", "_"): d.version for d in metadata.distributions()}
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the devices once, before any test can start TensorFlow's runtime."""
    integration = any("integration" in item.path.parts for item in session.items)
    if session.config.option.collectonly or not (integration or "tensorflow" in sys.modules):
        return
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)],
    )


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is parametrized by `keras3` where the package `keras` is Keras 2."""
    if not metadata.version("keras").startswith("2."):
        return
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec and "integration" in item.path.parts and re.search(r"\bkeras3\b", callspec.id):
            item.add_marker(pytest.mark.skip(reason="this TensorFlow has no Keras 3"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the whole run with a traceback if a test hangs.

    A hang in TensorFlow's C++ cannot be interrupted, neither by a signal nor by an exception.
    """
    assert _stderr is not None
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def clean_keras() -> Iterator[None]:
    """Give each test the automatic names and the graph of a fresh process."""
    yield
    for name in ("keras", "tf_keras"):
        clear = getattr(getattr(sys.modules.get(name), "backend", None), "clear_session", None)
        if clear is not None:  # collecting the garbage each time takes minutes
            quick = "free_memory" in inspect.signature(clear).parameters
            clear(**{"free_memory": False} if quick else {})
