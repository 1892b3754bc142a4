"""What the tests of `torch.optim` share."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    """No program of `torch.compile` is left by another test, nor by this one."""
    import torch

    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
    gc.collect()
