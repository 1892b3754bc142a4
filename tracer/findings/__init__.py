"""Finds what looks wrong in a trace: the rules by subject, in the order of a report."""

from tracer.findings import updates as updates, steps as steps  # isort: skip
