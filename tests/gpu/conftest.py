"""The device of these tests: a GPU, or what `TRACER_TEST_DEVICE=cpu` names, to try the tests.

Without it they are skipped before they import a framework: `nox -s gpu` runs each in a process.
"""

import os

import pytest


@pytest.fixture
def device() -> str:
    """What to train on, `gpu` or `cpu`."""
    asked = os.environ["TRACER_TEST_DEVICE"]
    assert asked in ("gpu", "cpu")
    return asked
