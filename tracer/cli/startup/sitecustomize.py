"""Runs first in each Python process that a program starts under `tracer run --children`.

This folder is in `PYTHONPATH` then, and contains only this file.
"""

import os
import sys
from importlib.machinery import PathFinder

_NAME = "sitecustomize"


def _give_way() -> None:
    """Remove this folder from `sys.path`, and run the `sitecustomize` that it hides, if any."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    this = sys.modules.pop(_NAME, None)
    if PathFinder.find_spec(_NAME) is not None:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    if this is not None:
        sys.modules.setdefault(_NAME, this)  # the import of this file needs it


try:
    _give_way()
finally:
    try:
        from tracer.cli.process import follow
    except ImportError as error:
        if sys.stderr is not None:
            print(f"tracer: {sys.executable} is not traced: {error}", file=sys.stderr)
    else:
        follow()
