"""The page on Keras with PyTorch prints what it says, and so does the benchmark of it."""

from argparse import Namespace
from pathlib import Path

import keras
import keras_torch
import pytest
from support.printed_pages import assert_prints


def test_the_page_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keras.utils.clear_session()
    assert_prints("keras-on-pytorch.md", 1)


def test_the_benchmark_counts_right() -> None:
    (table,) = keras_torch.tables(Namespace(quick=True))
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    assert len(rows) == 6
    for row in rows:
        variables, counted, of = (int(cell) for cell in row[1:])
        assert counted == of == 3 * variables
