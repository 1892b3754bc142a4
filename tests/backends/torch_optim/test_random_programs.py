"""Random programs with a fixed seed; `nox -s torch_fuzz -- --seconds 900` runs others, longer."""

import pytest
from fuzz import healthy_torch
from fuzz.batch import run_batch
from fuzz.torch_optim import BEHAVIOURS, Action, Made, Program, blind, check, numpy, programs, twice

SOME, NONE = (True, False, True, False), (False,) * 4
ODOMETER = Made("odometer", 0, (1, 1, 0, 0))
TWICE = Made("sgd", BEHAVIOURS.index(twice), (1, 1, 0, 0))
BLIND = Made("lbfgs", BEHAVIOURS.index(blind), (1, 0, 0, 0))
FUSED = Made("sgd fused", BEHAVIOURS.index(numpy), (1, 1, 0, 0))
HOOKS = ["hook gives", "hook after", "step"]


@pytest.mark.parametrize(
    ("made", "actions"),
    [
        (ODOMETER, HOOKS),
        (TWICE, HOOKS),
        (TWICE, ["step", *HOOKS]),
        (TWICE, ["hook after", "closure"]),
        (BLIND, ["step"]),
        (FUSED, ["infinite"]),
    ],
)
@pytest.mark.parametrize("flags", [SOME, NONE])
def test_programs_whose_steps_hide_something(
    made: Made, actions: list[str], flags: tuple[bool, ...]
) -> None:
    """What `docs/limits.md` says of them is no fault: a gradient that a hook may have removed."""
    lines = [Action(does, 0, flags) for does in ["wrap", *actions, "read", *actions[-1:]]]
    assert check(Program((made, ODOMETER), lines, raises=False))


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
