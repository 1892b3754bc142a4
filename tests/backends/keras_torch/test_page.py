"""The page on Keras with PyTorch prints what it says, and so does the benchmark of it."""

from pathlib import Path

import keras
import pytest
from support.code_blocks import ROOT, Page
from support.scripts import output_of


def test_the_page_prints_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keras.utils.clear_session()
    Page(ROOT / "docs" / "how-to" / "keras-on-pytorch.md").run(tmp_path)


def test_the_benchmark_counts_right() -> None:
    page = output_of("benchmarks/instructions.py", "--quick", "keras_torch")
    rows = [line.split("|")[2:5] for line in page.splitlines()[2:4]]
    assert [list(map(int, row)) for row in rows] == [[2, 16, 16], [40, 320, 320]]
