"""The optimizer, and what it trains, of the tests here that run once for each kind of optimizer.

pytest imports this before it captures what is printed, so TensorFlow is imported by the fixtures.
"""

from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(params=("legacy", "keras2", "keras3", "v1"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def optimizer(kind: str) -> Any:
    """An odometer that is not yet traced."""
    from support.odometers import ODOMETERS

    return ODOMETERS[kind]()


@pytest.fixture
def variables(kind: str) -> dict[str, Any]:
    from support.odometers import make_variables

    return make_variables(kind)


@pytest.fixture
def apply(optimizer: Any, variables: dict[str, Any]) -> Callable[[], None]:
    """Apply a gradient to each variable."""
    from support.odometers import gradients

    def apply_all() -> None:
        optimizer.apply_gradients(gradients(variables))

    return apply_all
