"""Compare a trace with expectations: for the assertions, the pytest plugin and `tracer check`."""
