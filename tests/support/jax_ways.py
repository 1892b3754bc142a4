"""The ways in which JAX runs the steps of a training loop, for whatever makes the steps.

A `Loop` has a `state`, a tuple that begins with the weights, and `step(state, *batch)`; `batch` is
the data of one step, each array with an axis that can be split over devices.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

P = jax.sharding.PartitionSpec
Loop = Any


class Way(NamedTuple):
    """A way to run."""

    run: Callable[[Loop], Any]
    """Sets the state of the loop, or returns one whose weights are those of all copies."""
    steps: int
    members: int = 1
    """How many updates of each weight a step makes."""
    copies: int = 1
    """How many replicas step."""

    def weights(self, loop: Loop) -> Any:
        """Run it; the weights after it."""
        return (self.run(loop) or loop.state)[0]

    def per_step(self, updates: int) -> list[int]:
        """How many updates each step makes, with so many of one member."""
        return [updates * self.members] * self.steps


WAYS: dict[str, Way] = {}


def way(steps: int, **fields: int) -> Callable[[Callable[[Loop], Any]], Callable[[Loop], Any]]:
    """Add the function below as a way that makes so many steps."""

    def add(run: Callable[[Loop], Any]) -> Callable[[Loop], Any]:
        WAYS[run.__name__] = Way(run, steps, **fields)
        return run

    return add


def each_step(loop: Loop, step: Callable[..., Any], count: int) -> None:
    """Make steps one by one."""
    for _ in range(count):
        loop.state = step(loop.state, *loop.batch)


def summed(state: Any, copies: int) -> Any:
    """The state with the weights of all copies summed, as if they were updates of one."""
    weights, *others = state
    return jax.tree.map(lambda w: np.asarray(w).reshape(copies, -1).sum(0), weights), *others


def stacked(tree: Any, copies: int) -> Any:
    """A copy of each array for each member, or replica."""
    return jax.tree.map(lambda each: jnp.stack([jnp.asarray(each)] * copies), tree)


@way(4)
def eagerly(loop: Loop) -> None:
    each_step(loop, loop.step, 4)


@way(7)
def jitted(loop: Loop) -> None:
    each_step(loop, jax.jit(loop.step, donate_argnums=0), 7)


@way(6)
def first_eagerly_then_jitted(loop: Loop) -> None:
    each_step(loop, loop.step, 2)
    each_step(loop, jax.jit(loop.step), 3)
    each_step(loop, loop.step, 1)


@way(4)
def compiled_ahead(loop: Loop) -> None:
    each_step(loop, jax.jit(loop.step).lower(loop.state, *loop.batch).compile(), 4)


@way(24)
def scan(loop: Loop) -> None:
    def epoch(state: Any, *batch: Any) -> Any:
        return lax.scan(lambda s, _: (loop.step(s, *batch), None), state, None, length=8)[0]

    each_step(loop, jax.jit(epoch), 3)


@way(9)
def cond_in_scan(loop: Loop) -> None:
    """Every third step is taken."""

    def epoch(state: Any, *batch: Any) -> Any:
        def body(state: Any, number: Any) -> Any:
            wanted = number % 3 == 0
            return lax.cond(wanted, lambda s: loop.step(s, *batch), lambda s: s, state), None

        return lax.scan(body, state, jnp.arange(8))[0]

    each_step(loop, jax.jit(epoch), 3)


@way(6)
def switch(loop: Loop) -> None:
    """None, one or two steps in turn."""

    def step(state: Any, number: Any, *batch: Any) -> Any:
        def once(s: Any) -> Any:
            return loop.step(s, *batch)

        return lax.switch(number, [lambda s: s, once, lambda s: once(once(s))], state)

    compiled = jax.jit(step)
    for number in range(6):
        loop.state = compiled(loop.state, number % 3, *loop.batch)


@way(9)
def while_loop(loop: Loop) -> None:
    def steps(state: Any, wanted: Any, *batch: Any) -> Any:
        return lax.while_loop(
            lambda s: s[1] < wanted, lambda s: (loop.step(s[0], *batch), s[1] + 1), (state, 0)
        )[0]

    compiled = jax.jit(steps)
    for wanted in (3, 0, 5, 1):
        loop.state = compiled(loop.state, wanted, *loop.batch)


def _ensemble(around: Callable[[Any], Any], loop: Loop) -> Any:
    """Three members in one program: a step is one step, with three updates of each weight."""
    state = stacked(loop.state, 3)
    step = around(jax.vmap(loop.step, in_axes=(0, *[None] * len(loop.batch))))
    for _ in range(2):
        state = step(state, *loop.batch)
    return summed(state, 3)


WAYS["ensemble"] = Way(partial(_ensemble, jax.jit), 2, members=3)
WAYS["ensemble_eagerly"] = Way(partial(_ensemble, lambda step: step), 2, members=3)


def two_devices() -> Any:
    """The first two devices; the test is skipped on a machine with one GPU."""
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    return np.array(jax.devices()[:2])


@way(5, copies=2)
def pmap(loop: Loop) -> Any:
    two_devices()
    state, batch = stacked(loop.state, 2), stacked(loop.batch, 2)
    step = jax.pmap(loop.step, axis_name="data")
    for _ in range(5):
        state = step(state, *batch)
    return summed(state, 2)


@way(5, copies=2)
def shard_map(loop: Loop) -> Any:
    """Each of two devices has the whole state, and updates it: two updates."""
    mesh = jax.sharding.Mesh(two_devices(), ("data",))
    specs: Any = {"in_specs": (P(), *[P("data")] * len(loop.batch)), "out_specs": P()}
    mapped = jax.shard_map(loop.step, mesh=mesh, check_vma=False, **specs)
    each_step(loop, jax.jit(mapped), 5)
    weights, *others = loop.state
    return jax.tree.map(lambda each: 2 * np.asarray(each), weights), *others


@way(4)
def split_over_devices(loop: Loop) -> None:
    """One program that XLA splits: an update of a weight is one, wherever it is kept."""
    mesh = jax.sharding.Mesh(two_devices(), ("data",))
    loop.state = jax.device_put(loop.state, jax.sharding.NamedSharding(mesh, P()))
    each_step(loop, jax.jit(loop.step), 4)
