"""The rules of `tracer.findings`: each a function from a trace to the cases of it."""
