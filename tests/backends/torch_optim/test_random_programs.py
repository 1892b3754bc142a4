"""Random programs with a fixed seed; `nox -s torch_fuzz -- --seconds 900` runs others, longer."""

import pytest
from fuzz import healthy_torch
from fuzz.batch import run_batch
from fuzz.torch_optim import check, programs


def test_random_programs() -> None:
    """What is counted is what the weights say, and training is as without the tracer."""
    assert run_batch(programs(), check, 1, examples=30)["programs"] > 10


@pytest.mark.filterwarnings("ignore:.*lr_scheduler:UserWarning")
@pytest.mark.parametrize(
    "seeds", [range(12), pytest.param(range(12, 300), marks=pytest.mark.sweep)]
)
def test_nothing_is_said_of_healthy_programs(seeds: range) -> None:
    """Nor of their weights: each second one is recorded with effects."""
    assert not [found for seed in seeds if (found := healthy_torch.check(seed))]
