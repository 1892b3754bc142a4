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


@pytest.mark.skipif(FRAMEWORK != "torch", reason="`backends/jax/test_benchmarks.py` has it")
@pytest.mark.sweep
@pytest.mark.parametrize(("name", "large"), [("keras_torch", 1), ("torch", 2)])
def test_the_benchmark_counts_right(name: str, large: int) -> None:
    page = output_of("benchmarks/instructions.py", "--quick", name)
    rows = [line.split("|")[2:5] for line in page.splitlines()[2 : 2 + 2 * large]]
    assert [list(map(int, row)) for row in rows] == [[2, 16, 16]] * large + [[40, 320, 320]] * large


@pytest.mark.sweep
@pytest.mark.skipif(FRAMEWORK != "torch", reason="`backends/jax/test_benchmarks.py` has it")
def test_one_copy_is_held() -> None:
    page = output_of("benchmarks/effects.py", "--quick", "torch")
    _, _, weights, held, _ = page.splitlines()[2].split("|")
    assert int(weights) == int(held)
