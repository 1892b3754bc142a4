"""The `tracer` command."""
