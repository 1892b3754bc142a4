"""After `kill -9` at any moment the trace file loads, and lacks no more than the last interval."""

import pytest
from kills import kill

pytestmark = pytest.mark.long


@pytest.mark.parametrize(
    ("after", "early"), [(0.3, True), (1.5, True), (0.1, False), (1.3, False), (2.2, False)]
)
def test_kill(after: float, early: bool) -> None:
    found = kill(after, early)
    assert found.held, found
