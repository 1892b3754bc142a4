"""The benchmark of PyTorch's own optimizers starts, and what it counts is right."""

import pytest
from scripts import output_of

pytest.importorskip("torch")  # which another process imports


@pytest.mark.sweep
def test_what_the_benchmark_counts() -> None:
    page = output_of("benchmarks/torch_optim.py", "--quick")
    for parameters in (2, 20, 100, 400):
        assert page.count(f"{20 * parameters:,} of {20 * parameters:,}") == 2
