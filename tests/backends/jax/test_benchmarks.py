"""The benchmarks of JAX and optax start, and what is the same each time holds."""

import sys
from typing import Any

import jax
import jax.numpy as jnp
import keras
import pytest
from backends.jax.keras_on_jax import Odometer
from support.scripts import output_of

import tracer
from tracer.backends.jax.programs import ProgramBlock


def figures(name: str) -> list[list[int]]:
    """The numbers of each row that a benchmark prints of JAX with `--quick`."""
    lines = output_of(f"benchmarks/{name}.py", "--quick", "jax").splitlines()[2:]
    rows = [line.split("|")[2:-1] for line in lines if line.startswith("|")]
    return [[int(cell) for cell in row] for row in rows]


@pytest.mark.sweep
def test_what_the_benchmark_counts() -> None:
    pytest.importorskip("optax")  # which another process imports
    assert figures("instructions") == [[2, 16, 16]] * 3 + [[40, 320, 320]] * 3


@pytest.mark.sweep
def test_what_effects_hold() -> None:
    """The old weights of a state that is donated."""
    ((weights, held),) = figures("effects")
    assert weights <= held < 1.1 * weights


def calls_in_a_step(monkeypatch: pytest.MonkeyPatch, variables: int, *, effects: bool) -> int:
    """How many functions are called to report a step like those before."""
    held = [keras.Variable(jnp.zeros(2)) for _ in range(variables)]
    optimizer: Any = tracer.wrap(Odometer(), effects=effects)
    optimizer.build(held)
    counts: list[int] = []
    ran = ProgramBlock.ran

    def counting(self: ProgramBlock, numbers: Any) -> None:
        calls = 0

        def see(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(see)
        try:
            ran(self, numbers)
        finally:
            sys.setprofile(None)
        counts.append(calls)

    monkeypatch.setattr(ProgramBlock, "ran", counting)
    step = jax.jit(lambda slots, values: optimizer.stateless_apply(slots, values, values)[::-1])
    state = [e.value for e in optimizer.variables], [jnp.zeros(2) for _ in held]
    for _ in range(4):
        state = step(*state)
    assert tracer.trace_of(optimizer).updates() == 4 * variables
    monkeypatch.undo()
    return counts[-1]


@pytest.mark.parametrize("effects", [False, True])
def test_a_step_of_many_variables_is_reported_by_as_few_calls(
    monkeypatch: pytest.MonkeyPatch, effects: bool
) -> None:
    few, many = (calls_in_a_step(monkeypatch, n, effects=effects) for n in (2, 40))
    assert 0 < many <= few + 1
