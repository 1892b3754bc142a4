"""Reporters: one module a format, each turns a `Trace` into text or bytes."""
