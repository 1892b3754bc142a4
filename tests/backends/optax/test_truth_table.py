"""optax, however it is run: each count against parameters and states that count by themselves.

The odometer is a transformation whose updates are 1 for each element, and whose state counts its
calls in the program. The parameters begin at 0, so what they hold after `apply_updates` is how
often they were updated. Which steps update is arithmetic.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax
from support.findings_of import bad
from support.jax_ways import WAYS, Way, stacked, summed
from support.ran import Ran, check, programs_in
from support.saved import assert_each_block_is_saved

import tracer

LEAVES = 3


class Counted(NamedTuple):
    """The state of an odometer."""

    calls: Any


def odometer() -> Any:
    """A transformation that counts by itself."""

    def init(params: Any) -> Counted:
        return Counted(jnp.zeros((), jnp.int32))

    def update(updates: Any, state: Counted, params: Any = None) -> Any:
        return jax.tree.map(jnp.ones_like, updates), Counted(state.calls + 1)

    return optax.GradientTransformation(init, update)


def zeros() -> Any:
    return {"a": {"kernel": jnp.zeros((2, 3)), "bias": jnp.zeros(3)}, "scale": jnp.zeros(())}


class Loop:
    """A training loop: parameters, the state, and gradients that are all as in the first one."""

    def __init__(self, tx: Any) -> None:
        self.tx = tx
        self.state = (zeros(), tx.init(zeros()))
        self.batch = (jnp.ones(2),)

    def step(self, state: Any, gradient: Any = 1.0) -> Any:
        params, of_tx = state
        value = jnp.ravel(gradient)[0]
        gradients = jax.tree.map(lambda each: jnp.full_like(each, value), params)
        updates, of_tx = self.tx.update(gradients, of_tx, params)
        return optax.apply_updates(params, updates), of_tx

    def run(self, gradients: Any) -> None:
        """A jitted step for each of these."""
        step = jax.jit(self.step, donate_argnums=0)
        for gradient in gradients:
            self.state = step(self.state, gradient)


def ran(tx: Any, params: Any, per_step: list[int], copies: int = 1) -> Ran:
    """What ran, where the parameters are these in the end."""
    weights = {
        jax.tree_util.keystr(path, simple=True, separator="/"): float(np.ravel(each)[0])
        for path, each in jax.tree_util.tree_flatten_with_path(params)[0]
    }
    return Ran(tx, per_step, weights, copies)


def looped(
    run: Callable[[Loop], Any], per_step: list[int], copies: int = 1, inner: Any = None
) -> Ran:
    loop = Loop(tracer.wrap(odometer() if inner is None else inner))
    params, _ = run(loop) or loop.state
    return ran(loop.tx, params, per_step, copies)


def in_a_loop(way: Way) -> Ran:
    return looped(way.run, way.per_step(LEAVES), way.copies)


def members_with_their_gradients() -> Ran:
    """Only the gradients differ by member, and the op of a step is passed none of them."""
    return looped(partial(ensemble, [0.0, 1.0, 2.0]), [9] * 4)


def ensemble(gradients: list[float], loop: Loop) -> Any:
    state, step = stacked(loop.state, 3), jax.jit(jax.vmap(loop.step))
    for _ in range(4):
        state = step(state, jnp.array(gradients))
    return summed(state, 3)


def gradient_through_it() -> Ran:
    """As in meta-learning: the loss is that after three steps; the last step is taken without."""

    def run(loop: Loop) -> None:
        def loss(rate: Any, state: Any) -> Any:
            for _ in range(3):
                state = loop.step(state, rate)
            return sum(jax.tree.leaves(jax.tree.map(jnp.sum, state[0]))), state

        for _ in range(2):
            _, loop.state = jax.jit(jax.grad(loss, has_aux=True))(1.0, loop.state)

    return looped(run, [3] * 6)


BAD = [1.0, np.nan, np.nan, 1.0, np.inf, 1.0, 1.0]


def multi_steps() -> Ran:
    """Of 10 steps every 4th is kept; optax computes the update in each of them."""
    run = looped(
        lambda loop: loop.run([1.0] * 10),
        [0, 0, 0, 3, 0, 0, 0, 3, 0, 0],
        inner=optax.MultiSteps(odometer(), 4),
    )
    return run._replace(discarded=8 * 3)


def multi_steps_that_skip() -> Ran:
    """Steps that are not finite are as if they had not been: nothing is computed in them."""
    tx = optax.MultiSteps(odometer(), 2, should_skip_update_fn=optax.transforms.skip_not_finite)
    run = looped(lambda loop: loop.run(BAD), [0, 0, 0, 3, 0, 0, 3], inner=tx)
    return run._replace(discarded=2 * 3)


def apply_if_finite() -> Ran:
    """Three of seven steps are left out, and the last one of two in a row is not."""
    return looped(
        lambda loop: loop.run(BAD),
        [3, 0, 3, 3, 0, 3, 3],
        inner=optax.apply_if_finite(odometer(), 1),
    )


def inside_apply_if_finite() -> Ran:
    """The branch with the inner transformation does not run: for it these are no steps at all."""
    inner = tracer.wrap(odometer())
    loop = Loop(optax.apply_if_finite(inner, 5))
    loop.run(BAD)
    assert int(loop.state[1].inner_state.calls) == 4
    return ran(inner, loop.state[0], [3] * 4)


def apply_every() -> Ran:
    """It gives the sum of three updates at once, which is one update."""
    run = looped(
        lambda loop: loop.run([1.0] * 8),
        [0, 0, 3, 0, 0, 3, 0, 0],
        inner=optax.chain(odometer(), optax.apply_every(3)),
    )
    return run._replace(weights={name: number / 3 for name, number in run.weights.items()})


def jitted(tx: Any) -> Any:
    return optax.GradientTransformation(tx.init, jax.jit(tx.update))


def one_in_each_step(inner: Any) -> Any:
    """A transformation of the program's own, with the state of another: it adds to 0."""

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        updates, state = inner.update(updates, state, params)
        return jax.tree.map(lambda each: jnp.maximum(each, 1.0), updates), state

    return optax.GradientTransformation(inner.init, update)


def around_multi_steps() -> Ran:
    """What `MultiSteps` throws away is nothing to what is around it."""
    inner = optax.MultiSteps(odometer(), 4)
    return looped(lambda loop: loop.run([1.0] * 8), [3] * 8, inner=one_in_each_step(inner))


def both() -> Ran:
    """Accumulation inside of a guard: steps that are not finite do not count for the group."""
    tx = optax.chain(optax.identity(), optax.apply_if_finite(optax.MultiSteps(odometer(), 2), 9))
    run = looped(lambda loop: loop.run(BAD), [0, 0, 0, 3, 0, 0, 3], inner=tx)
    return run._replace(discarded=2 * 3)


def ensemble_with_apply_if_finite() -> Ran:
    """The second member's gradients are never finite."""
    inner = optax.apply_if_finite(odometer(), 9)
    return looped(partial(ensemble, [1.0, np.nan, 1.0]), [6] * 4, inner=inner)


def partition() -> Ran:
    """Each of two inner transformations has its leaves, and this one has two of them."""
    inner = tracer.wrap(odometer())
    labels = {"a": {"kernel": "train", "bias": "train"}, "scale": "freeze"}
    loop = Loop(optax.partition({"train": inner, "freeze": optax.set_to_zero()}, labels))
    loop.run([1.0] * 5)
    assert float(loop.state[0]["scale"]) == 0
    return ran(inner, loop.state[0], [2] * 5)


TRAIN = {"a": {"kernel": True, "bias": True}, "scale": False}
FROZEN = jax.tree.map(lambda train: not train, TRAIN)


def parts(last: Any = None) -> Any:
    """A partition that freezes the leaf `scale`, with labels or a function that returns them."""
    labels = jax.tree.map(lambda train: "train" if train else "freeze", TRAIN)
    return optax.partition({"train": odometer(), "freeze": optax.set_to_zero()}, last or labels)


def parts_for(learning_rate: float) -> Any:
    return optax.chain(optax.scale(learning_rate), parts())


FREEZING: dict[str, Callable[[], Any]] = {
    "partition": parts,
    "partition by a function": lambda: parts(
        lambda tree: {"a": dict.fromkeys(tree["a"], "train"), "scale": "freeze"}
    ),
    "masked": lambda: optax.chain(odometer(), optax.masked(optax.set_to_zero(), lambda _: FROZEN)),
    "freeze": lambda: optax.chain(odometer(), optax.freeze(FROZEN)),
    "selective_transform": lambda: optax.selective_transform(odometer(), freeze_mask=FROZEN),
    "named_chain": lambda: optax.named_chain(
        ("train", odometer()), ("freeze", optax.freeze(FROZEN))
    ),
    "inject_hyperparams": lambda: optax.inject_hyperparams(parts_for)(learning_rate=1.0),
    "masked before a part with the other mask": lambda: optax.chain(
        optax.masked(optax.set_to_zero(), FROZEN), optax.masked(odometer(), TRAIN)
    ),
}


def frozen(make: Callable[[], Any]) -> Ran:
    """One of three leaves is set to zero, which is no update."""

    def run(loop: Loop) -> None:
        for _ in range(3):
            loop.state = loop.step(loop.state)

    return looped(run, [2] * 3, inner=make())


PROGRAMS: dict[str, Callable[[], Ran]] = programs_in(globals())
PROGRAMS |= {f"frozen by {name}": partial(frozen, make) for name, make in FREEZING.items()}
PROGRAMS |= {name: partial(in_a_loop, way) for name, way in WAYS.items()}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_counts_are_those_of_the_parameters(program: Callable[[], Ran]) -> None:
    run = program()
    trace = tracer.trace_of(run.optimizer)
    check(trace, run)
    assert not bad(trace)


@pytest.mark.parametrize("make", FREEZING.values(), ids=FREEZING)
def test_a_frozen_leaf_is_not_updated_in_a_recording(make: Callable[[], Any]) -> None:
    """In a program, and all its parts are observed, because the makers of optax are replaced."""
    with tracer.record() as recording:
        loop = Loop(make())
        loop.run([1.0] * 3)
    assert [float(jnp.ravel(each)[0]) for each in jax.tree.leaves(loop.state[0])] == [3, 3, 0]
    updated = recording.trace().count("updates", by="variable")
    assert updated == {("a/bias",): 3, ("a/kernel",): 3}


@pytest.mark.parametrize(
    "tx",
    [
        optax.chain(parts(), odometer()),
        optax.chain(jitted(parts()), optax.scale(1.0)),
        optax.apply_if_finite(parts(), 3),
        optax.MultiSteps(parts(), 1),
        one_in_each_step(parts()),
    ],
)
def test_a_frozen_leaf_that_another_part_may_change(tx: Any) -> None:
    loop = Loop(tracer.wrap(tx))
    loop.run([1.0] * 2)
    trace = tracer.trace_of(loop.tx)
    assert (trace.updates(), trace.complete) == (6, False)
    assert trace.notes[0].startswith("a transformation around set_to_zero may change")


def ones_of_zeros() -> Any:
    """An odometer of the program's own, with a helper that its closure does not show."""

    def update(updates: Any, state: Counted, params: Any = None) -> Any:
        made, _ = HELPER.update(updates, optax.EmptyState())
        return jax.tree.map(lambda zero: zero + 1, made), Counted(state.calls + 1)

    return optax.GradientTransformation(odometer().init, update)


HELPER = optax.set_to_zero()


def test_set_to_zero_as_a_helper() -> None:
    """What it made is not what is returned, so only the frozen leaf is not updated."""
    tx = optax.chain(ones_of_zeros(), optax.freeze(FROZEN))
    loop = Loop(tracer.wrap(tx))
    loop.run([1.0] * 3)
    assert [float(jnp.ravel(each)[0]) for each in jax.tree.leaves(loop.state[0])] == [3, 3, 0]
    trace = tracer.trace_of(loop.tx)
    assert trace.count("updates", by="variable") == {("a/bias",): 3, ("a/kernel",): 3}
    assert not trace.complete
    assert trace.notes[0].startswith("a transformation around set_to_zero may change")


def test_each_block_over_a_program_of_an_earlier_block_is_saved() -> None:
    loop = Loop(tracer.wrap(odometer()))
    step = jax.jit(loop.step)

    def train() -> None:
        loop.state = step(loop.state)

    assert_each_block_is_saved(loop.tx, train, LEAVES, wrap=True)
    assert {float(np.ravel(leaf)[0]) for leaf in jax.tree.leaves(loop.state[0])} == {4.0}


@pytest.mark.parametrize("depends", [True, False])
def test_a_step_in_a_loop_that_is_differentiated(depends: bool) -> None:
    """JAX computes early what does not depend on the loop: it makes that step once."""
    tx = tracer.wrap(optax.sgd(1.0))
    state = tx.init(jnp.zeros(3))

    def body(params: Any, _: Any) -> Any:
        gradient = params if depends else jnp.ones(3)
        return params * jax.jit(lambda g: tx.update(g, state)[0])(gradient), None

    def loss(params: Any) -> Any:
        return lax.scan(body, params, None, length=5)[0].sum()

    jax.jit(jax.value_and_grad(loss))(jnp.ones(3))
    trace = tracer.trace_of(tx)
    assert (trace.steps, trace.complete) == ((0, False) if depends else (1, True))
    assert [note[:32] for note in trace.notes] == ["a step in a differentiated loop "] * depends


@pytest.mark.parametrize("runs", [True, False])
@pytest.mark.parametrize("length", [0, 3])
def test_the_programs_of_a_step_in_a_loop_or_a_branch(length: int, runs: bool) -> None:
    loop, traced = Loop(tracer.wrap(odometer())), []

    def program(state: Any, taken: Any, _: Any) -> Any:
        traced.append(1)
        if length:
            return lax.scan(lambda s, _: (loop.step(s), None), state, None, length * runs)[0]
        return lax.cond(taken, lambda s: loop.step(s), lambda s: s, state)

    for size in (1, 1, 2):
        loop.state = jax.jit(program)(loop.state, runs, jnp.ones(size))
    said = "2 programs" if runs else "2 programs, which never ran"
    trace = tracer.trace_of(loop.tx)
    assert len(traced) == 2 and trace.steps == 3 * max(1, length) * runs
    assert trace.answer().endswith(f"while tracing {said}.")
