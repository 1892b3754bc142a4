"""What was expected of a run, and why it is not so: for tests, pytest and `tracer check`."""
