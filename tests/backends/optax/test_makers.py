"""What the public functions of optax make while anything is recorded is counted, unwrapped."""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from optax._src.alias import adam as private_adam

import tracer
from tracer.backends.optax.makers import Maker
from tracer.core import patches

pytest_plugins = ["pytester"]

PARAMS = {"w": jnp.arange(6.0).reshape(2, 3) / 7, "b": jnp.zeros(3)}
STEPS = 5


def gradients(params: Any) -> Any:
    return jax.grad(lambda p: ((jnp.ones((4, 2)) @ p["w"] + p["b"] - 1.0) ** 2).mean())(params)


def trained(tx: Any, params: Any = PARAMS) -> Any:
    @jax.jit
    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(gradients(params), state, params)
        return optax.apply_updates(params, updates), state

    state = tx.init(params)
    for _ in range(STEPS):
        params, state = step(params, state)
    return params, state


def in_a_train_state(tx: Any) -> Any:
    flax = pytest.importorskip("flax.training.train_state")
    state = flax.TrainState.create(apply_fn=None, params=PARAMS, tx=tx)
    step = jax.jit(lambda state: state.apply_gradients(grads=gradients(state.params)))
    for _ in range(STEPS):
        state = step(state)
    return state.params, state.opt_state, step._cache_size()


def in_nnx(tx: Any) -> Any:
    nnx = pytest.importorskip("flax.nnx")
    model = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    @nnx.jit
    def step(model: Any, optimizer: Any) -> None:
        optimizer.update(model, nnx.grad(lambda m: (m(jnp.ones((4, 2))) ** 2).mean())(model))

    for _ in range(STEPS):
        step(model, optimizer)
    return jax.tree.leaves(nnx.state((model, optimizer)))


def partitioned() -> Any:
    parts = {"slow": optax.sgd(0.1), "fast": optax.chain(optax.clip(1.0), optax.adam(0.1))}
    return optax.partition(parts, {"w": "slow", "b": "fast"})


def injected() -> Any:
    return optax.inject_hyperparams(lambda rate: optax.chain(optax.clip(1.0), optax.adam(rate)))(
        0.1
    )


PROGRAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "adam": (lambda: trained(optax.adam(0.1)), "adam"),
    "partial": (lambda: trained(optax.nadamw(0.1)), "nadamw"),
    "contrib": (lambda: trained(optax.contrib.muon(0.1)), "muon"),
    "chain": (lambda: trained(optax.chain(optax.clip(1.0), optax.adam(0.1))), "chain"),
    "partition": (lambda: trained(partitioned()), "partition"),
    "masked": (lambda: trained(optax.masked(optax.sgd(0.1), {"w": True, "b": False})), "masked"),
    "injected": (lambda: trained(optax.inject_hyperparams(optax.adam)(0.1)), "adam"),
    "injected of a function": (lambda: trained(injected()), "inject_hyperparams"),
    "finite": (lambda: trained(optax.apply_if_finite(optax.adam(0.1), 3)), "apply_if_finite"),
    "extra args": (
        lambda: trained(optax.with_extra_args_support(optax.adam(0.1))),
        "adam",
    ),
    "train state": (lambda: in_a_train_state(optax.adamw(0.1)), "adamw"),
    "nnx": (lambda: in_nnx(optax.adam(0.1)), "adam"),
    "wrapped": (lambda: trained(tracer.wrap(optax.adam(0.1))), "adam"),
    "wrapped part": (
        lambda: trained(optax.chain(optax.clip(1.0), tracer.wrap(optax.adam(0.1)))),
        "adam",
    ),
    "wrapped around": (
        lambda: trained(tracer.wrap(optax.GradientTransformation(*optax.adam(0.1)))),
        "adam",
    ),
}


OFTEN = PROGRAMS.keys() - {"chain", "contrib", "extra args", "finite", "injected of a function"}
"""The others say, once a week, what these say and what the truth table records."""


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[] if n in OFTEN else pytest.mark.sweep) for n in PROGRAMS]
)
def test_each_is_counted_once_and_gives_the_same_bits(name: str) -> None:
    train, maker = PROGRAMS[name]
    plain = train()
    with tracer.record() as recording:
        traced = train()
    trace = recording.trace()
    assert trace.complete, trace.notes
    (optimizer,) = trace.optimizers
    assert optimizer.name == maker
    assert optimizer.made.rpartition(":")[0].endswith("test_makers.py")
    assert (trace.steps, trace.updates()) == (STEPS, 2 * STEPS)
    assert jax.tree.structure(plain) == jax.tree.structure(traced)
    for one, other in zip(jax.tree.leaves(plain), jax.tree.leaves(traced), strict=True):
        assert np.asarray(one).tobytes() == np.asarray(other).tobytes()


def test_a_line_numbers_its_transformations_as_it_makes_them() -> None:
    """Whatever the order of their first updates is, and if one makes none."""
    with tracer.record() as recording:
        made = [optax.sgd(0.1) for _ in range(3)]
        for tx in made[:0:-1]:
            tx.update(jnp.ones(2), tx.init(jnp.ones(2)))
    numbers = sorted(each.made_as for each in recording.trace().optimizers)
    assert numbers == [(1, 3), (2, 3), (3, 3)]


def test_what_was_made_and_never_called_has_a_row_but_its_parts_have_none() -> None:
    """Also if only `init` was called, and if it is gone. Inner blocks list what they used."""
    factory = optax.inject_hyperparams(lambda rate: optax.chain(optax.clip(1.0), optax.adam(rate)))
    with tracer.record() as recording:
        trained(optax.sgd(0.1))
        for tx in (optax.inject_hyperparams(optax.sgd)(0.1), optax.MultiSteps(factory(0.1), 2)):
            tx.init(PARAMS)
        optax.chain(optax.clip(1.0), optax.masked(optax.adamw(0.1), {"w": True, "b": False}))
        with tracer.record() as inner:
            trained(partitioned())
        assert [each.name for each in inner.trace().optimizers] == ["partition"]
    trace = recording.trace()
    updated = trace.count("updates", by="optimizer")
    names = ["sgd", "partition", "sgd#2", "MultiSteps", "chain"]
    assert [each.name for each in trace.optimizers] == names
    assert updated == {(name,): 2 * STEPS for name in names[:2]}
    assert all(each.made for each in trace.optimizers) and trace.complete


class Own(optax.MultiSteps):  # type: ignore[misc]
    pass


@pytest.mark.parametrize(
    ("kind", "around"),
    [(optax.MultiSteps, lambda tx: tx.gradient_transformation()), (Own, lambda tx: tx)],
)
def test_multi_steps_and_a_class_derived_of_it(kind: Any, around: Any) -> None:
    with tracer.record() as recording:
        tx = kind(optax.adam(0.1), 2)
        assert isinstance(tx, optax.MultiSteps) and type(tx) is kind
        trained(around(tx))
    trace = recording.trace()
    assert [each.name for each in trace.optimizers] == [kind.__name__]
    assert trace.updates() == STEPS // 2 * 2


def test_the_namespaces_are_as_they_were() -> None:
    homes = (optax, optax.contrib, optax.transforms, optax.MultiSteps)
    before = [dict(vars(each)) for each in homes]
    with tracer.record(), tracer.record():
        assert isinstance(vars(optax)["adam"], Maker)
    assert [dict(vars(each)) for each in homes] == before
    assert not any(isinstance(each, Maker) for home in before for each in home.values())
    assert not any(patch.until == "recorded" for patch in patches.patches)


def test_a_maker_is_as_the_function_that_it_stands_for() -> None:
    original = optax.adam
    text = repr(inspect.signature(original))
    with tracer.record():
        maker = optax.adam
        assert maker is optax.adam and optax.chain is optax.transforms.chain
        assert maker == original and hash(maker) == hash(original) and {original: 1}[maker] == 1
        assert inspect.isfunction(maker) and inspect.unwrap(maker) is original
        assert repr(inspect.signature(maker)) == text
        assert (maker.__name__, maker.__doc__) == (original.__name__, original.__doc__)
        assert inspect.getsource(maker) == inspect.getsource(original)
        assert copy.copy(maker) is copy.deepcopy(maker) is maker
        pickled = pickle.dumps(maker)
        assert b"tracer" not in pickled and pickle.loads(pickled) is original
        partial = pickle.loads(pickle.dumps(optax.nadam))
        assert partial.keywords == optax.nadam.keywords
        made = maker(0.1)
        assert optax.clip(1.0).init is optax.identity().init  # all that keep no state share one
    assert type(made) is type(original(0.1))
    plain = maker(0.1)  # whoever keeps it has the function
    assert inspect.isfunction(plain.update) and type(plain.update) is type(original)


def test_what_was_made_in_one_block_is_counted_in_the_next() -> None:
    with tracer.record() as first:
        tx = optax.adam(0.1)
        update = jax.jit(tx.update)
        update(PARAMS, tx.init(PARAMS))
    update(PARAMS, tx.init(PARAMS))
    with tracer.record() as second:
        update(PARAMS, tx.init(PARAMS))
        update(PARAMS, tx.init(PARAMS))
    assert (first.trace().steps, second.trace().steps) == (1, 2)
    assert second.trace().complete, second.trace().notes


def test_what_is_not_seen_is_said() -> None:
    made_before = optax.adam(0.1)
    by_hand = optax.GradientTransformation(lambda params: (), lambda g, s, p=None: (g, s))
    with tracer.record() as recording:
        for tx in (made_before, by_hand, private_adam(0.1)):
            trained(tx)
    trace = recording.trace()
    assert not trace.optimizers and not trace.complete
    assert "made by hand" in trace.notes[0]


SUITE = """
import jax.numpy as jnp
import optax
import pytest

@pytest.fixture
def in_fixture():
    return optax.sgd(0.1)

@pytest.mark.optimizer_updates(dense=1)
def test_training(in_fixture):
    in_fixture.update(jnp.ones(2), in_fixture.init(jnp.ones(2)))
"""


def test_what_fixtures_of_tests_make(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    pytester.runpytest_subprocess().assert_outcomes(passed=1)
