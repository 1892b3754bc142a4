"""The machine that every test finds: three CPU devices, a clean Keras, and a hard time limit.

TensorFlow reads the environment when it is imported, so it is set here, before any test module.
"""

import faulthandler
import os
import sys
from collections.abc import Iterator
from typing import TextIO

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# With fewer threads, MirroredStrategy over logical CPUs can wait for itself for good on 2 cores.
os.environ["TF_NUM_INTEROP_THREADS"] = "16"

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
    if "keras" in sys.modules and hasattr(sys.modules["keras"], "utils"):
        sys.modules["keras"].utils.clear_session(free_memory=False)
    if "tf_keras" in sys.modules and hasattr(sys.modules["tf_keras"], "backend"):
        sys.modules["tf_keras"].backend.clear_session()
