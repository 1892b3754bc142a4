"""Reporters: each module turns a `Trace` into text or bytes, in one format."""
