"""What Python runs first in each process that a program starts under `tracer run --children`.

This folder stands in `PYTHONPATH` then, and holds nothing but this file.
"""

import os
import sys
from importlib.machinery import PathFinder

_NAME = "sitecustomize"


def _give_way() -> None:
    """Take this folder out of `sys.path`, and run the `sitecustomize` that it hides, if any."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [each for each in sys.path if os.path.abspath(each) != here]
    this = sys.modules.pop(_NAME, None)
    if PathFinder.find_spec(_NAME) is not None:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    if this is not None:
        sys.modules.setdefault(_NAME, this)  # whoever imports this file wants to find it


try:
    _give_way()
finally:
    try:
        from tracer.cli.process import follow
    except ImportError as error:
        if sys.stderr is not None:
            print(f"tracer: not followed, for {error}: {sys.executable}", file=sys.stderr)
    else:
        follow()
