"""Every code block of README.md and of the pages in `docs` runs, and prints what the page says.

`tests/support/code_blocks.py` has the rules. The blocks of a page are one program, and one test.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest
import tensorflow  # noqa: F401, so that `conftest.py` makes the devices
import tf_keras
from support.code_blocks import ROOT, Page
from support.libraries import needs_keras3
from support.scripts import output_of

from tracer.backends.backend_list import BACKENDS
from tracer.kinds import BY_BASE

ELSEWHERE = {
    ROOT / "docs" / f"{name}.md"
    for name in (
        "optax",
        "pytorch",
        "how-to/keras-on-jax",
        "how-to/optax",
        "how-to/pytorch",
    )
}
"""Are run by `test_page.py` of their backend, in a process with its framework."""

PAGES = [
    Page(path)
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path not in ELSEWHERE
]

NOT_RUN = {
    "docs/distribution.md": 1,  # `cli/test_run.py` starts such ranks, where there is PyTorch
    "docs/performance.md": 1,  # 20 minutes of benchmarks
}
"""How many blocks of a page are left out. Each has its reason in a comment before it."""


WITH_CODE = [
    pytest.param(page, id=page.name, marks=pytest.mark.long)  # nearly all of them train
    for page in PAGES
    if any(block.runs for block in page.blocks)
]


@pytest.fixture
def tidy() -> Iterator[None]:
    """Put back what a page may set for the whole process."""
    kinds, backends = dict(BY_BASE), dict(BACKENDS)
    policy, old_policy = keras.config.dtype_policy(), tf_keras.mixed_precision.global_policy()
    yield
    keras.config.set_dtype_policy(policy)
    tf_keras.mixed_precision.set_global_policy(old_policy)
    keras.config.enable_interactive_logging()  # as it is at first
    for table, before in ((BY_BASE, kinds), (BACKENDS, backends)):
        for name in table.keys() - before.keys():
            del table[name]


@needs_keras3
@pytest.mark.parametrize("page", WITH_CODE)
@pytest.mark.filterwarnings("ignore::tracer.OptimizerWarning")
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.usefixtures("tidy")
def test_what_the_blocks_print_is_what_the_page_says(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.makes_devices:
        output_of("tests/support/code_blocks.py", str(page.path), seconds=300)
    else:
        monkeypatch.chdir(tmp_path)
        page.run(tmp_path)


def test_few_blocks_do_not_run_and_each_has_its_reason() -> None:
    left_out = [
        (page.name, block.reason) for page in PAGES for block in page.blocks if block.reason
    ]
    assert all(len(reason.split()) > 3 for _, reason in left_out)
    counts = Counter(name for name, _ in left_out)
    assert counts.pop("README.md", 0) <= 3
    assert counts == NOT_RUN


# The rules themselves, on pages made by hand.

FENCE = "```"


def run(folder: Path, text: str) -> None:
    """Run a page of this text; `'''` stands for a fence."""
    path = folder / "page.md"
    path.write_text(text.replace("'''", FENCE), encoding="utf-8")
    Page(path).run(folder)


def test_an_output_that_differs_fails_with_the_difference(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"-41\n\+42"):
        run(tmp_path, "'''python\nprint(42)\n'''\n\n'''text\n41\n'''\n")
    for code in ("'''python\n42\n'''\n", "<!-- not run: because -->\n'''python\nprint(42)\n'''\n"):
        with pytest.raises(AssertionError, match="nothing was printed"):
            run(tmp_path, f"{code}\n'''text\n42\n'''\n")


def test_an_output_can_be_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "one\n'''python\nprint(4)\nprint(2)\n'''\n'''text\n41\n'''\ntwo\n'''toml\n'''\n"
    with monkeypatch.context() as patch:
        patch.setenv("TRACER_UPDATE_GOLDEN", "1")
        run(tmp_path, page)
    assert (tmp_path / "page.md").read_text() == page.replace("41", "4\n2").replace("'''", FENCE)


@pytest.mark.parametrize("language", ["py", "console", ""])
def test_what_would_not_be_run_unseen_is_refused(language: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"page.md:1: a block of {language or 'no language'}"):
        run(tmp_path, f"'''{language}\n'''\n")
