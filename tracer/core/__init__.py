"""How it is counted, for every framework: calls under way, what each does, when it ran."""
