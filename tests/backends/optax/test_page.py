"""The page about optax: its blocks run, in their order, and print what it says.

`tests/repository/test_code_blocks.py` runs all pages, but where optax may be missing.
"""

import contextlib
import io
import os
import re
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "optax.md"


def test_the_blocks_print_what_the_page_says() -> None:
    text = PAGE.read_text()
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    blocks = re.findall(
        r"^```python\n(.*?)^```\n\n<!--.*?-->\n```text\n(.*?)^```$", text, re.M | re.S
    )
    assert len(blocks) == 3
    for code, _ in blocks:
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            exec(compile(code, str(PAGE), "exec"), names)
        printed.append(output.getvalue())
    if os.environ.get("TRACER_UPDATE_GOLDEN"):
        renewed = iter(printed)
        PAGE.write_text(
            re.sub(
                r"^(```text\n)(.*?)(^```$)",
                lambda match: match[1] + next(renewed) + match[3],
                text,
                flags=re.M | re.S,
            )
        )
        return
    assert printed == [expected for _, expected in blocks]
