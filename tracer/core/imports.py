"""Runs code once a module is imported."""

import sys
from collections.abc import Callable
from types import ModuleType

import wrapt


def when_imported(home: str, then: Callable[[ModuleType], None]) -> None:
    """Call `then` with the module `home`: now if it is imported, else once it is."""
    if home in sys.modules:
        then(sys.modules[home])
    else:
        wrapt.register_post_import_hook(then, home)
