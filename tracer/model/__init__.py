"""Defines traces, and queries, saves, merges, cuts and compares them. No TensorFlow, no report."""
