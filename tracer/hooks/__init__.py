"""How calls are seen: the only code that touches the objects of the program."""
