"""`reports/without_tensorflow`, which the tests of each backend measure again."""

from pathlib import Path

import without_tensorflow

REPORTS = Path(__file__).parents[2] / "reports"


def assert_measured_again(backend: str) -> None:
    """What is measured of a backend is what others count, and what is kept."""
    rows = without_tensorflow.measure(backend)
    assert all(row.tracer == row.oracle for row in rows)
    kept = without_tensorflow.kept(REPORTS).rows
    assert rows == [row for row in kept if row.backend == backend]
