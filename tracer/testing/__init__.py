"""Assertions for tests, with the objects of the program."""
