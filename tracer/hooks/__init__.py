"""Intercepts calls: the only code that touches the objects of the program."""
