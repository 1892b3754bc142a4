"""The page on Keras with PyTorch prints what it says, and so does the benchmark of it."""

import contextlib
import io
import os
import re
from argparse import Namespace
from pathlib import Path

import keras
import keras_torch
import pytest

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "how-to" / "keras-on-pytorch.md"


def test_the_page_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keras.utils.clear_session()
    text = PAGE.read_text()
    code = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    said = re.search(r"```text\n(.*?)```", text, re.DOTALL)
    assert code is not None
    assert said is not None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(code[1], {"__name__": "__main__"})
    if os.environ.get("TRACER_UPDATE_GOLDEN"):
        PAGE.write_text(text[: said.start(1)] + printed.getvalue() + text[said.end(1) :])
    else:
        assert printed.getvalue() == said[1]


def test_the_benchmark_counts_right() -> None:
    (table,) = keras_torch.tables(Namespace(quick=True))
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for row in rows:
        variables, counted, of = (int(cell) for cell in row[1:])
        assert counted == of == 3 * variables
