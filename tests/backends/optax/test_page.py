"""The pages for people who train with JAX and optax: their code runs, and prints what they say."""

from pathlib import Path

import pytest
from support.code_blocks import ROOT, Page


@pytest.mark.parametrize("page", ["optax.md", "how-to/optax.md"])
def test_what_the_blocks_print_is_what_the_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Page(ROOT / "docs" / page).run(tmp_path)
