"""Makes the locks of a recorder.

A thread that holds one takes only later ones of `ORDER`, and never two of the same name. No code of
the program runs under one. `tests/support/locks.py` checks both.
"""

from threading import RLock
from typing import Any, Literal, get_args

Guards = Literal["counters", "ledger", "rows", "paths"]
"""What a lock guards: logs, numbers of steps and graph tracings; which counter serves which graph;
the rows of variables, sites and optimizers; the paths to calls.
"""
ORDER: tuple[Guards, ...] = get_args(Guards)


def new_lock(guards: Guards) -> Any:
    """A reentrant lock: a signal handler may read a trace while its thread holds the lock."""
    return RLock()
