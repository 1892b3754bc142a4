"""The page about Keras on JAX: its code runs, and prints what it says."""

from pathlib import Path

import pytest
from support.code_blocks import ROOT, Page


def test_what_the_blocks_print_is_what_the_page_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Page(ROOT / "docs" / "how-to" / "keras-on-jax.md").run(tmp_path)
