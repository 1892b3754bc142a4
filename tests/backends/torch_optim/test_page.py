"""The page for people who train with PyTorch: its code runs, and prints what it says."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("sybil")  # what finds the code in a page

from support.code_blocks import ROOT, Page

torch.set_num_threads(1)


def test_what_the_blocks_print_is_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Page(ROOT / "docs" / "how-to" / "pytorch.md").run(tmp_path)
