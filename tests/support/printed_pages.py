"""Pages that run only where another framework is: each block prints what the page says."""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

HOW_TO = Path(__file__).parents[2] / "docs" / "how-to"
_BLOCK = re.compile(r"^```python\n(.*?)^```\n\n<!--.*?-->\n```text\n(.*?)^```$", re.M | re.S)
_TEXT = re.compile(r"^(```text\n)(.*?)(^```$)", re.M | re.S)


def assert_prints(name: str, number: int) -> None:
    """The page has so many blocks of Python that print, which run in their order.

    With `TRACER_UPDATE_GOLDEN` what they print is written to the page.
    """
    page = HOW_TO / name
    text = page.read_text()
    blocks = _BLOCK.findall(text)
    assert len(blocks) == number
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    for code, _ in blocks:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(page), "exec"), names)
        printed.append(output.getvalue())
    if os.environ.get("TRACER_UPDATE_GOLDEN"):
        renewed = iter(printed)
        page.write_text(_TEXT.sub(lambda match: match[1] + next(renewed) + match[3], text))
        return
    assert printed == [expected for _, expected in blocks]
