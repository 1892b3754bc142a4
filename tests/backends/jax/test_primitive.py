"""The counting primitive in what JAX can do with a function: as often as the arithmetic says.

The truth is a weight that `update` moves by exactly 1; no optimizer has a part in it. What people
mostly do is in `support/jax_ways.py`, and this what is rare.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from tracer.backends.jax import primitive


class Counted:
    """What the primitive reports, call by call."""

    def __init__(self) -> None:
        self.reports: list[list[list[int]]] = []
        self.doubts: set[str] = set()

    def ran(self, numbers: Any) -> None:
        self.reports.append(np.reshape(numbers, (-1, numbers.shape[-1])).tolist())

    def doubt(self, reason: str) -> None:
        self.doubts.add(reason)

    @property
    def total(self) -> int:
        return sum(map(len, self.reports))


@pytest.fixture
def counted() -> Counted:
    return Counted()


Update = Callable[[Any], Any]


@pytest.fixture
def update(counted: Counted) -> Update:
    """One update of a weight, which it moves by 1."""

    def update(weight: Any) -> Any:
        primitive.count(counted, weight.reshape(-1)[0])
        return weight + 1.0

    return update


def weight(*shape: int) -> Any:
    return jnp.zeros(shape or (3,))


def times(function: Any, count: int, start: Any) -> float:
    """How far the weights moved, all of their first elements together."""
    for _ in range(count):
        start = function(start)
    return float(np.sum(np.asarray(start).reshape(-1, 3)[:, 0]))


def without_jit(update: Update) -> float:
    with jax.disable_jit():
        return times(jax.jit(update), 10, weight())


def cached_inner_function(update: Update) -> float:
    inner = jax.jit(update)
    return times(jax.jit(lambda w: inner(inner(inner(w)))), 4, weight())


def equal_twice(update: Update) -> float:
    """Equal work on equal values, which a compiler may do once."""
    compiled, w, v = jax.jit(lambda w, v: (update(w), update(v))), weight(), weight()
    for _ in range(4):
        w, v = compiled(w, v)
    return float(w[0] + v[0])


def vmap_of_vmap(update: Update) -> float:
    return times(jax.jit(jax.vmap(jax.vmap(update))), 5, weight(2, 4, 3))


def grad(update: Update) -> float:
    def loss(w: Any) -> Any:
        new = update(update(w))
        return (new**2).sum(), new

    derived = jax.jit(jax.grad(loss, has_aux=True))
    return sum(float(derived(weight())[1][0]) for _ in range(4))


def remat(update: Update) -> float:
    def loss(w: Any) -> Any:
        new = jax.checkpoint(update)(jax.checkpoint(update)(w))
        return (new**3).sum(), new

    derived = jax.jit(jax.grad(loss, has_aux=True))
    return sum(float(derived(weight())[1][0]) for _ in range(4))


PROGRAMS = [
    (without_jit, 10),
    (cached_inner_function, 12),
    (equal_twice, 8),
    (vmap_of_vmap, 40),
    (grad, 8),
    (remat, 8),
]


@pytest.mark.parametrize(
    ("program", "updates"), [pytest.param(*each, id=each[0].__name__) for each in PROGRAMS]
)
def test_each_update_is_reported_once(
    program: Any, updates: int, update: Update, counted: Counted
) -> None:
    assert program(update) == updates
    jax.effects_barrier()
    settle()
    assert counted.total == updates
    assert not counted.doubts - {primitive.RECOMPUTED}


def settle() -> None:
    """Wait for all that was started: what runs for its side effect alone too."""
    for device in jax.devices():
        jax.block_until_ready(jax.device_put(0, device) + 1)


def test_the_numbers_of_each_member_of_a_batch(counted: Counted) -> None:
    def step(count: Any, odd: Any) -> Any:
        primitive.count(counted, 7, count, odd)
        return count + 1

    jax.jit(jax.vmap(step, in_axes=(0, None)))(jnp.array([3, 5]), 1).block_until_ready()
    assert counted.reports == [[[7, 3, 1], [7, 5, 1]]]

    def of_its_own(w: Any) -> Any:
        primitive.count(counted, 7, auxiliary=[w + 1])
        return w + 1

    jax.jit(jax.vmap(jax.vmap(of_its_own)))(weight(2, 3)).block_until_ready()
    assert counted.reports[1:] == [[[7]] * 6]


def branch(step: Update) -> Update:
    return lambda w: lax.cond(w[0] > 1, step, lambda w: w, w)


def loop(step: Update) -> Update:
    return lambda w: lax.while_loop(lambda w: w[0] < 2, step, w)


@pytest.mark.parametrize("around", [branch, loop])
def test_what_members_take_or_not_is_counted_for_all_and_doubted(
    around: Callable[[Update], Update], update: Update, counted: Counted
) -> None:
    jax.jit(around(update))(weight()).block_until_ready()
    assert not counted.doubts
    jax.jit(jax.vmap(around(jax.jit(update))))(weight(4, 3)).block_until_ready()
    assert counted.doubts == {primitive.ALL_MEMBERS}


def in_a_cond(update: Update) -> Update:
    return lambda w: lax.cond(w[0] >= 0, update, lambda w: w, w)


def five_times(step: Update) -> Callable[[Any], Any]:
    """What has the derivative 5 at 1 if each of five steps moves the weight by 1: x ** 5."""

    def power(x: Any) -> Any:
        w, y = weight(), 1.0
        for _ in range(5):
            moved = step(w)
            w, y = moved, y * x * (moved[0] - w[0])
        return y

    return power


def only_the_gradient(f: Any) -> float:
    return float(jax.jit(jax.grad(jax.checkpoint(f)))(1.0))


def value_and_gradient(f: Any) -> float:
    return float(jax.jit(jax.value_and_grad(jax.checkpoint(f)))(1.0)[1])


def value_and_gradient_apart(f: Any) -> float:
    """Ten steps: the value is that of another call."""
    f = jax.checkpoint(f)
    value, gradient = jax.jit(lambda x: (f(x), jax.grad(f)(x)))(1.0)
    return 5 * float(value) + float(gradient)


@pytest.mark.parametrize("around", [in_a_cond, jax.jit, lambda update: update])
@pytest.mark.parametrize(
    ("derivative", "exact"),
    [
        (value_and_gradient, True),
        (only_the_gradient, False),
        (value_and_gradient_apart, False),
    ],
)
def test_what_is_computed_again_is_doubted(
    derivative: Any, exact: bool, around: Any, update: Update, counted: Counted
) -> None:
    """JAX drops the forward pass if nothing but the gradient is used."""
    executed = derivative(five_times(around(update)))
    settle()
    assert counted.doubts == {primitive.RECOMPUTED}
    assert counted.total == executed if exact else counted.total <= executed


def test_what_nothing_uses_is_counted_all_the_same(update: Update, counted: Counted) -> None:
    def dead(w: Any) -> Any:
        update(w)
        return w

    jax.jit(dead)(weight()).block_until_ready()
    settle()
    assert counted.total == 1


def test_an_exported_program_does_without(update: Update, counted: Counted) -> None:
    from jax import export

    exported = export.export(jax.jit(update))(weight())
    assert float(exported.call(weight())[0]) == 1
    (doubt,) = counted.doubts
    assert "was exported (jax.export)" in doubt
    assert counted.total == 0
