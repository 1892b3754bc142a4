"""Compare a run with expectations: for tests, pytest and `tracer check`."""
