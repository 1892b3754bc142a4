"""Random programs with fixed seeds; `nox -s fuzz -- --seconds 1800` runs others, for longer."""

import pytest
from fuzz.run import results

pytestmark = pytest.mark.long


def test_random_programs() -> None:
    """What the tracer says of each is what the odometers show, and training is as without it."""
    found = list(results(1, seconds=150, programs=12, shrink=5, alone=False))
    wrong = [result for result in found if result.faults]
    assert not wrong, "\n\n".join(f"seed {r.seed}: {r.faults[0]}\n{r.program}" for r in wrong[:3])
    assert len(found) == 12
