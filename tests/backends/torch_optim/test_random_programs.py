"""Random programs with a fixed seed; `nox -s torch_fuzz -- --seconds 900` runs others, longer."""

import time

from fuzz.batch import Batch
from fuzz.torch_optim import check, programs


def test_random_programs() -> None:
    """What is counted is what the weights say, and training is as without the tracer."""
    batch = Batch(programs(), check, 1, time.monotonic() + 60, examples=30)
    assert batch.last is None, str(batch)
    assert batch.seen["programs"] > 10
