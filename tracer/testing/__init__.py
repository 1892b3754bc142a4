"""Compare a run with what is expected of it: for tests, pytest and `tracer check`."""
