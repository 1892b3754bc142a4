"""What is made of optax while anything is recorded is counted, unwrapped."""

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
from support.findings_of import bad

import tracer
from tracer.core import patches

pytest_plugins = ["pytester"]

RANDOM = np.random.default_rng(3)
X = jnp.array(RANDOM.normal(size=(16, 9)).astype("float32"))
PARAMS = {
    "w": jnp.array(RANDOM.normal(size=(9, 9)).astype("float32")),
    "b": jnp.array(RANDOM.normal(size=9).astype("float32")),
}
STEPS = 6


def gradients(params: Any) -> Any:
    def loss(params: Any) -> Any:
        hidden = jnp.tanh(X @ params["w"] + params["b"])
        return (jnp.tanh(hidden @ params["w"]) ** 2).mean()

    return jax.grad(loss)(params)


def trained(tx: Any, scanned: bool = False) -> Any:
    def step(carried: Any, _: Any) -> Any:
        params, state = carried
        updates, state = tx.update(gradients(params), state, params)
        return (optax.apply_updates(params, updates), state), None

    carried = PARAMS, tx.init(PARAMS)
    if scanned:
        return jax.jit(lambda carried: jax.lax.scan(step, carried, None, STEPS)[0])(carried)
    jitted = jax.jit(lambda carried: step(carried, None)[0])
    for _ in range(STEPS):
        carried = jitted(carried)
    return carried


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


def scheduled() -> Any:
    rate = optax.warmup_cosine_decay_schedule(0.01, 0.05, 2, STEPS)
    adamw = optax.adamw(rate, mask={"w": True, "b": False})
    return optax.chain(optax.clip_by_global_norm(1.0), adamw)


def by_hand(inner: Any) -> Any:
    def update(updates: Any, state: Any, params: Any = None) -> Any:
        return inner.update(updates, state, params)

    return optax.GradientTransformation(inner.init, update)


class Held:
    """Holds a transformation, and updates by it."""

    def __init__(self, tx: Any) -> None:
        self.tx = tx

    def update(self, *given: Any) -> Any:
        return self.tx.update(*given)


def in_an_object(tx: Any) -> Any:
    return optax.GradientTransformation(tx.init, Held(tx).update)


adam = optax.adam


PROGRAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "adam": (lambda: trained(optax.adam(0.1)), "adam"),
    "partial": (lambda: trained(optax.nadamw(0.1)), "adamw"),
    "contrib": (lambda: trained(optax.contrib.muon(0.1)), "muon"),
    "chain": (lambda: trained(optax.chain(optax.clip(1.0), optax.adam(0.1))), "chain"),
    "scheduled": (lambda: trained(scheduled()), "chain"),
    "partition": (lambda: trained(partitioned()), "partition"),
    "masked": (lambda: trained(optax.masked(optax.sgd(0.1), {"w": True, "b": False})), "masked"),
    "injected": (lambda: trained(optax.inject_hyperparams(optax.adam)(0.1)), "adam"),
    "finite": (lambda: trained(optax.apply_if_finite(optax.adam(0.1), 3)), "apply_if_finite"),
    "by hand": (lambda: trained(by_hand(optax.adam(0.1))), "by_hand"),
    "imported earlier": (lambda: trained(optax.chain(optax.identity(), adam(0.1))), "chain"),
    "train state": (lambda: in_a_train_state(optax.adamw(0.1)), "adamw"),
    "nnx": (lambda: in_nnx(optax.adam(0.1)), "adam"),
    "wrapped": (lambda: trained(tracer.wrap(optax.adam(0.1))), "adam"),
    "wrapped, in a scan": (lambda: trained(tracer.wrap(optax.adam(0.1)), scanned=True), "adam"),
    "wrapped, each third kept": (
        lambda: trained(tracer.wrap(optax.MultiSteps(optax.adam(0.1), 3)), scanned=True),
        "MultiSteps",
    ),
    "wrapped, if finite": (
        lambda: trained(tracer.wrap(optax.apply_if_finite(optax.adam(0.1), 3))),
        "apply_if_finite",
    ),
    "wrapped part": (
        lambda: trained(optax.chain(optax.clip(1.0), tracer.wrap(optax.adam(0.1)))),
        "adam",
    ),
    "wrapped around": (lambda: trained(by_hand(tracer.wrap(optax.adam(0.1)))), "adam"),
    "wrapped in an object": (lambda: trained(in_an_object(tracer.wrap(optax.adam(0.1)))), "adam"),
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.sweep] * (n in ("chain", "finite"))) for n in PROGRAMS],
)
def test_each_is_counted_once_and_gives_the_same_bits(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, maker = PROGRAMS[name]
    with monkeypatch.context() as untraced:
        untraced.setattr(tracer, "wrap", lambda tx: tx)
        plain = train()
    with tracer.record() as recording:
        traced = train()
    trace = recording.trace()
    assert trace.complete, trace.notes
    (optimizer,) = trace.optimizers
    assert optimizer.name == maker
    assert optimizer.made.rpartition(":")[0].endswith("test_makers.py")
    kept = STEPS // 3 if "third" in name else STEPS
    assert (trace.steps, trace.updates()) == (STEPS, 2 * kept)
    assert not bad(trace)
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
    assert [made for _, made in numbers] == [numbers[-1][0]] * 3  # with those of the parts


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


def test_the_classes_are_as_they_were() -> None:
    homes = optax.GradientTransformation, optax.MultiSteps
    before = [(kind.__new__, kind.__init__, inspect.signature(kind)) for kind in homes]
    with tracer.record(), tracer.record():
        assert homes[0].__new__ is not before[0][0]
        assert [inspect.signature(kind) for kind in homes] == [known for *_, known in before]
        made = optax.GradientTransformationExtraArgs(update=max, init=min)
        assert type(made) is optax.GradientTransformationExtraArgs
        assert made == (min, max) and pickle.loads(pickle.dumps(made)).update is max
        assert optax.clip(1.0).init is optax.identity().init  # all that keep no state share one
    assert [(kind.__new__, kind.__init__, inspect.signature(kind)) for kind in homes] == before
    assert inspect.isfunction(optax.adam(0.1).update)
    assert not any(patch.until == "recorded" for patch in patches.patches)


def test_a_tree_with_a_transformation_is_made_again_as_it_was() -> None:
    """As Equinox does in each step: leaves are compared by identity, or are None in one half."""
    earlier = optax.sgd(0.1)
    with tracer.record() as recording:
        for tx in (earlier, optax.sgd(0.1)):
            leaves, structure = jax.tree.flatten({"tx": tx})
            assert structure.unflatten([None, None])["tx"] == (None, None)
            assert structure.unflatten(leaves) == structure.unflatten(leaves)
            assert jax.tree.unflatten(structure, leaves)["tx"].update is copy.copy(tx).update
            assert copy.copy(tx).update is tx.update
        assert optax.GradientTransformation(min, max) == optax.GradientTransformation(min, max)
    assert [each.class_name for each in recording.trace().optimizers] == ["optax.sgd"]


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


def test_what_was_made_earlier_is_not_seen() -> None:
    earlier = optax.adam(0.1)
    with tracer.record() as recording:
        trained(earlier)
    trace = recording.trace()
    assert not trace.optimizers and not trace.complete
    assert "made during the recording" in trace.notes[0]


def negate(updates: Any, state: Any, params: Any = None) -> Any:
    return jax.tree.map(jnp.negative, updates), state


class Scaled:
    """An `update` with an attribute, that leaves no room for another one."""

    __slots__ = ("by",)

    def __init__(self) -> None:
        self.by = 3.0

    def __call__(self, updates: Any, state: Any, params: Any = None) -> Any:
        return jax.tree.map(lambda each: each * self.by, updates), state


class Derived(optax.GradientTransformation):  # type: ignore[misc]
    def update(self, updates: Any, state: Any, params: Any = None) -> Any:
        return negate(updates, state, params)


@pytest.mark.parametrize(
    "make",
    [
        lambda: optax.GradientTransformation(tuple, negate),
        lambda: optax.GradientTransformation(tuple, Scaled()),
        lambda: Derived(tuple, negate),
    ],
)
def test_an_update_that_something_else_may_have_is_left_alone(make: Callable[[], Any]) -> None:
    """An object lost its attributes, a shared function was one optimizer, a class counted none."""
    with tracer.record() as recording:
        tx = make()
        if type(tx.update) is Scaled:
            tx.update.by = -1.0
        assert tx.update({"w": jnp.ones(2)}, ())[0]["w"].tolist() == [-1, -1]
    trace = recording.trace()
    assert (trace.steps, trace.complete) == (0, False)
    assert "tracer.wrap(tx)" in trace.notes[0]


def test_wrapped_transformations_of_one_function_are_two() -> None:
    with tracer.record():
        first, second, third = (optax.GradientTransformation(tuple, negate) for _ in "abc")
        first, second = tracer.wrap(first), tracer.wrap(second)
        for tx in (first, second, second, third):
            tx.update({"w": jnp.ones(2)}, ())
    assert [tracer.trace_of(tx).steps for tx in (first, second)] == [1, 2]


def test_what_is_unwrapped_in_a_block_is_counted_as_before_it_was_wrapped() -> None:
    """What it is made of was counted."""
    with tracer.record() as recording:
        tx = tracer.unwrap(tracer.wrap(optax.sgd(0.1)))
        trained(tx)
    trace = recording.trace()
    assert [each.name for each in trace.optimizers] == ["sgd"]
    assert (trace.steps, trace.updates(), trace.complete) == (STEPS, 2 * STEPS, True)


SUITE = """
import jax.numpy as jnp
import optax
import pytest
import tracer

@pytest.fixture(params=[lambda tx: tx, tracer.wrap])
def in_fixture(request):
    return request.param(optax.sgd(0.1))

@pytest.mark.optimizer_updates(dense=1)
def test_training(in_fixture):
    in_fixture.update(jnp.ones(2), in_fixture.init(jnp.ones(2)))
"""


def test_what_fixtures_of_tests_make(pytester: pytest.Pytester) -> None:
    """It is made before the recording of the test, so the program must wrap it."""
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1, failed=1)
    assert "use tx = tracer.wrap(tx)" in " ".join(result.stdout.str().split())
