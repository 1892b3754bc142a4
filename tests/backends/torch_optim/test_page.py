"""The pages for people who train with PyTorch: their code runs, and prints what they say."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("sybil")  # what finds the code in a page

from support.code_blocks import ROOT, Page

torch.set_num_threads(1)


@pytest.mark.parametrize("page", ["pytorch.md", "how-to/pytorch.md"])
def test_what_the_blocks_print_is_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Page(ROOT / "docs" / page).run(tmp_path)
