"""How calls are counted, for every framework: calls under way, what each does, when it ran."""
