"""Long runs in small: counts stay right and memory bounded.

`tests/support/endurance.py` has the lengths that count.
"""

import pytest
from support import endurance


@pytest.mark.parametrize(
    ("what", "kind", "number"),
    [
        pytest.param("steps_in_one_loop", "legacy", 10_000, marks=pytest.mark.long),
        pytest.param("graph_tracings", "v1", 200, marks=pytest.mark.sweep),
    ],
)
def test_long_runs(what: str, kind: str, number: int) -> None:
    right, line = endurance.run(what, kind, number)
    assert right, line
