"""The report on `torch.optim`: measured again, it is what is kept, and what others counted."""

from pathlib import Path

import without_tensorflow

REPORTS = Path(__file__).parents[3] / "reports"


def test_measured_again_it_is_the_same() -> None:
    rows = without_tensorflow.measure("torch.optim")
    assert all(row.tracer == row.oracle for row in rows)
    kept = without_tensorflow.kept(REPORTS).rows
    assert rows == [row for row in kept if row.backend == "torch.optim"]
