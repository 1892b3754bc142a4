"""Runs a program of the table: `python run.py MODULE NAME [KIND] [healthy]`."""

import importlib
import sys
from pathlib import Path

if __name__ == "__main__":
    module, name, *given = sys.argv[1:]
    sys.path[0] = str(Path(__file__).parents[1])
    train = getattr(importlib.import_module(f"twins.{module}"), name)
    hurts = train("healthy" in given, *(kind for kind in given if kind != "healthy"))
    print("hurts", hurts[0] if isinstance(hurts, tuple) else hurts)
