"""The benchmarks of PyTorch's own optimizers start, and what they count is right."""

import pytest
from support.scripts import output_of

pytest.importorskip("torch")  # which another process imports


@pytest.mark.sweep
def test_what_the_benchmark_counts() -> None:
    page = output_of("benchmarks/torch_optim.py", "--quick")
    for parameters in (2, 20, 100, 400):
        assert page.count(f"{20 * parameters:,} of {20 * parameters:,}") == 2


@pytest.mark.sweep
def test_one_copy_is_held() -> None:
    page = output_of("benchmarks/torch_effects.py", "--quick")
    figures = [line.strip("| ").split("|") for line in page.splitlines()[2:4]]
    assert all(weights.strip() == held.strip() for weights, held in figures)
