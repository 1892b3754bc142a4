"""Finds what looks wrong in a trace, by rules; each module has the rules on one subject."""
