"""Counts calls, for every framework: calls under way, their sites, and when blocks ran."""
