"""Every code block of README.md and of the pages in `docs` runs, and prints what the page says.

`tests/support/code_blocks.py` has the rules. The blocks of a page are one program, and one test.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import keras
import pytest
import tensorflow  # noqa: F401, so that `conftest.py` makes the devices
import tf_keras
from support.code_blocks import ROOT, BadPage, Page
from support.libraries import needs_keras3
from sybil.example import SybilFailure

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
    "docs/command.md": 1,  # `cli/test_run.py` starts such ranks, where there is PyTorch
    "docs/distribution.md": 1,  # the same
    "docs/performance.md": 1,  # 20 minutes of benchmarks
}
"""How many blocks of a page are left out. Each has its reason in a comment before it."""


def cases() -> Iterator[object]:
    """The pages with code. Nearly all of them train, so they are long."""
    for page in PAGES:
        try:
            code = any(block.is_code for block in page.blocks)
        except BadPage:
            code = True  # the test says what is bad
        if code:
            yield pytest.param(page, id=page.name, marks=pytest.mark.long)


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
@pytest.mark.parametrize("page", list(cases()))
@pytest.mark.filterwarnings("ignore::tracer.OptimizerWarning")
@pytest.mark.filterwarnings("ignore:Gradients do not exist for variables")
@pytest.mark.usefixtures("tidy")
def test_what_the_blocks_print_is_what_the_page_says(
    page: Page, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if page.makes_devices:
        run_by_itself(page)
    else:
        monkeypatch.chdir(tmp_path)
        page.run(tmp_path)


def run_by_itself(page: Page) -> None:
    """Run a page in a process of its own."""
    done = subprocess.run(
        [sys.executable, ROOT / "tests" / "support" / "code_blocks.py", page.path],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr


def test_few_blocks_do_not_run_and_each_has_its_reason() -> None:
    left_out = {page.name: [block.reason for block in page.not_run] for page in PAGES}
    assert all(len((reason or "").split()) > 3 for each in left_out.values() for reason in each)
    counts = Counter({name: len(reasons) for name, reasons in left_out.items() if reasons})
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
    with pytest.raises(SybilFailure, match=r"-41\n\+42"):
        run(tmp_path, "'''python\nprint(42)\n'''\n\n'''text\n41\n'''\n")
    with pytest.raises(SybilFailure, match="nothing was printed"):
        run(tmp_path, "'''python\n42\n'''\n\n'''text\n42\n'''\n")


def test_an_output_can_be_updated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = "one\n'''python\nprint(4)\nprint(2)\n'''\n'''text\n41\n'''\ntwo\n'''toml\n'''\n"
    with monkeypatch.context() as patch:
        patch.setenv("TRACER_UPDATE_GOLDEN", "1")
        run(tmp_path, page)
    assert (tmp_path / "page.md").read_text() == page.replace("41", "4\n2").replace("'''", FENCE)


def test_a_command_that_fails_fails_the_page(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=r"exit status 1:\nfirst"):
        run(tmp_path, "'''sh\necho first\nfalse | cat\necho second\n'''\n")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("'''py\n'''\n", "page.md:1: write `python`"),
        ("'''console\n$ ls\n'''\n", "write `sh`"),
        ("'''\nx\n'''\n", "write `text`"),
        ("<!-- not run: -->\n'''python\n'''\n", "a mark is"),
        ("<!-- not run: a -->\n<!-- not run: b -->\n'''python\n'''\n", "a mark is"),
        ("<!-- not run: a -->\n", "no block follows"),
        ("'''python\n'''\n'''text\na\n'''\n'''text\nb\n'''\n", "follows no block that runs"),
        ("<!-- not run: a -->\n'''sh\n'''\n'''text\nb\n'''\n", "follows no block that runs"),
    ],
)
def test_what_would_not_be_run_unseen_is_refused(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadPage, match=re.escape(why)):
        run(tmp_path, text)
