"""Pages for people without TensorFlow print what they say, and a report is measured again."""

from pathlib import Path

import make
import pytest
import without_tensorflow
from support.code_blocks import ROOT, Page
from support.framework import FRAMEWORK
from support.scripts import output_of

PAGES = {
    "torch": ["pytorch.md", "how-to/pytorch.md"],
    "jax": ["optax.md", "how-to/optax.md", "how-to/keras-on-jax.md"],
}
BACKENDS = {"torch": ["torch", "torch.optim"], "jax": ["jax"]}


@pytest.mark.parametrize("page", PAGES[FRAMEWORK])
def test_the_page_prints_what_it_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Page(ROOT / "docs" / page).run(tmp_path)


@pytest.mark.sweep
@pytest.mark.parametrize("backend", BACKENDS[FRAMEWORK])
def test_measured_again_it_is_the_same(backend: str) -> None:
    """The tracer counts what the odometers count, and what the report says."""
    rows = without_tensorflow.measured(backend)
    assert all(row.tracer == row.oracle for row in rows)
    kept = make.kept("without_tensorflow", without_tensorflow.Row)
    assert rows == [row for row in kept if row.backend == backend]


COUNTED = {"torch": [("keras_torch", 1), ("torch", 2)], "jax": [("jax", 3)]}
"""The benchmarks of a framework, and how many kinds of steps each has."""


def figures(benchmark: str, name: str) -> list[list[int]]:
    """The numbers of each row that a benchmark prints of a framework with `--quick`."""
    lines = output_of(f"benchmarks/{benchmark}.py", "--quick", name).splitlines()[2:]
    rows = [line.split("|")[2:-1] for line in lines if line.startswith("|")]
    return [[int(cell) for cell in row if cell.strip().isdigit()] for row in rows]


@pytest.mark.sweep
@pytest.mark.parametrize(("name", "kinds"), COUNTED[FRAMEWORK])
def test_the_benchmark_counts_right(name: str, kinds: int) -> None:
    assert figures("instructions", name) == [[2, 16, 16]] * kinds + [[40, 320, 320]] * kinds


@pytest.mark.sweep
def test_what_effects_hold() -> None:
    """One copy of the weights; on JAX the old ones of a state that is donated."""
    ((weights, held, *_),) = figures("effects", FRAMEWORK)
    assert weights <= held < (1.1 * weights if FRAMEWORK == "jax" else weights + 1)
