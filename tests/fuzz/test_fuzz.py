"""Random programs with a fixed seed; `nox -s fuzz -- --seconds 1800` runs others, for longer."""

import time

import pytest
from fuzz.batch import Batch
from fuzz.generator import programs
from fuzz.run import check

pytestmark = pytest.mark.long


@pytest.mark.filterwarnings("ignore")
def test_random_programs() -> None:
    """What the tracer says of each is what the odometers show, and training is as without it."""
    batch = Batch(programs(), check, 1, time.monotonic() + 150, examples=12, shrink=5)
    assert batch.last is None, str(batch)
    assert batch.seen["programs"] > 5
