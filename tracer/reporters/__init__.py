"""Reporters: one module a format, each turns a `CallTrace` into text or bytes."""
