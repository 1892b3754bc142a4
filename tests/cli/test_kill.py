"""After `kill -9` at any moment the trace file loads, and lacks no more than the last interval."""

import pytest
from support.kills import kill


@pytest.mark.parametrize(
    ("after", "early"),
    [
        pytest.param(0.3, True, marks=pytest.mark.long),
        pytest.param(1.3, False, marks=pytest.mark.long),
        pytest.param(1.5, True, marks=pytest.mark.sweep),
        pytest.param(0.1, False, marks=pytest.mark.sweep),
        pytest.param(2.2, False, marks=pytest.mark.sweep),
    ],
)
def test_kill(after: float, early: bool) -> None:
    found = kill(after, early)
    assert found.held, found
