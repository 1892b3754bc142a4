"""`reports/without_tensorflow`, which the tests of each backend measure again."""

import make
import without_tensorflow


def assert_measured_again(backend: str) -> None:
    """Assert that the tracer counts what the odometers count, and what the report says."""
    rows = without_tensorflow.measured(backend)
    assert all(row.tracer == row.oracle for row in rows)
    kept = make.kept("without_tensorflow", without_tensorflow.Row)
    assert rows == [row for row in kept if row.backend == backend]
