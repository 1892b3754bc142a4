"""Examples in docstrings, for the documentation site: as code, and not as quotes in quotes.

mkdocstrings takes docstrings as Markdown, in which `>>>` at the start of a line quotes three times.
"""

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^>>> .*\n?(?:^[^\s].*\n?|^\s+\S.*\n?)*", re.M)
"""From the first `>>>` to the next empty line."""


class Examples(griffe.Extension):
    """Puts the examples of each docstring between fences."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Called by griffe for each module, class, function and attribute that it has read."""
        if obj.docstring is not None:
            obj.docstring.value = with_fences(obj.docstring.value)


def with_fences(docstring: str) -> str:
    """The docstring with each example as a block of code, which a reader can copy."""
    return EXAMPLE.sub(lambda example: f"```pycon\n{example[0].rstrip()}\n```", docstring)
