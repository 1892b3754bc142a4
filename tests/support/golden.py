"""Texts that are kept in `tests/golden`: compared with what comes now, written if you ask for it.

`tests/golden/README.md` says which test holds which file.
"""

import difflib
import os
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "golden"

UPDATE = "TRACER_UPDATE_GOLDEN"
"""With this in the environment each text is written first."""


def assert_golden(name: str | Path, text: str) -> None:
    """Fail with the difference if `text` is not what the file holds; the name is below `FOLDER`."""
    path = FOLDER / name
    if os.environ.get(UPDATE):
        path.write_text(text, encoding="utf-8")
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    if text != kept:
        before, now = (each.splitlines(keepends=True) for each in (kept, text))
        difference = "".join(difflib.unified_diff(before, now, "golden", "now"))
        pytest.fail(f"{path}: see tests/golden/README.md\n{difference}", pytrace=False)
