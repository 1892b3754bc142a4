"""The benchmarks count the updates of PyTorch's own optimizers, and effects hold one copy."""

import pytest
from support.scripts import output_of

pytest.importorskip("torch")  # which another process imports


@pytest.mark.sweep
def test_what_the_benchmark_counts() -> None:
    page = output_of("benchmarks/instructions.py", "--quick", "torch")
    rows = [line.split("|")[2:5] for line in page.splitlines()[2:6]]
    assert [list(map(int, row)) for row in rows] == [[2, 16, 16]] * 2 + [[40, 320, 320]] * 2


@pytest.mark.sweep
def test_one_copy_is_held() -> None:
    page = output_of("benchmarks/effects.py", "--quick", "torch")
    _, _, weights, held, _ = page.splitlines()[2].split("|")
    assert int(weights) == int(held)
