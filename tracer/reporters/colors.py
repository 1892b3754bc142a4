"""The styles of the text report."""

WARNING, ERROR = "bold yellow", "bold red"
"""For possible faults, as skipped steps, and for certain ones."""
