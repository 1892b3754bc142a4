"""What the trace of a transformation says of what it does not know, and what it is asked for."""

import re
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import tracer
from tracer.model.evidence import Iterations
from tracer.model.records import RateRun
from tracer.reporters.text import render


def params() -> Any:
    return {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}


def once(tx: Any) -> None:
    """One jitted step."""
    jax.jit(tx.update)(params(), tx.init(params()), params())


def behind(*transformations: Any) -> Any:
    """What decides is not what returns the updates."""
    guarded = optax.apply_if_finite(optax.sgd(1.0), 9)
    return optax.chain(guarded, *transformations)


def of_two_models(*kinds: Callable[[Any], Any]) -> Any:
    """A program's own: what comes of the first half is not what comes of the second."""
    halves = [kind(optax.sgd(1.0)) for kind in kinds]

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        made = [h.update(updates[k], s) for h, k, s in zip(halves, "wb", state, strict=True)]
        return dict(zip("wb", [each for each, _ in made], strict=True)), tuple(s for _, s in made)

    def init(params: Any) -> Any:
        return tuple(half.init(params[key]) for half, key in zip(halves, "wb", strict=True))

    return optax.GradientTransformation(init, update)


def in_its_own_state() -> Any:
    """The state of the program's own has another inside."""
    guarded = optax.apply_if_finite(optax.sgd(1.0), 9)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        updates, inner = guarded.update(updates, state["inner"], params)
        return updates, {"inner": inner}

    return optax.GradientTransformation(lambda p: {"inner": guarded.init(p)}, update)


def apply_if_finite(inner: Any) -> Any:
    return optax.apply_if_finite(inner, 9)


def plain(inner: Any) -> Any:
    return inner


PARTS = optax.clip(1.0), optax.apply_if_finite(optax.sgd(1.0), 9)


@pytest.mark.parametrize(
    ("tx", "per_step"),
    [
        (in_its_own_state(), [2, 0, 2]),
        (behind(optax.scale(0.5)), [2, 0, 2]),
        (behind(optax.add_decayed_weights(0.1)), [2, 2, 2]),
        (optax.named_chain(*zip("zb", PARTS, strict=True)), [2, 0, 2]),
        (optax.inject_hyperparams(lambda r: optax.chain(optax.scale(r), *PARTS))(1.0), [2, 0, 2]),
    ],
)
def test_updates_that_are_none_wherever_that_is_decided(tx: Any, per_step: list[int]) -> None:
    tx = tracer.wrap(tx)
    weights = jax.tree.map(jnp.ones_like, params())
    state = tx.init(weights)
    for factor in (1.0, np.nan, 1.0):
        gradients = jax.tree.map(lambda each: each * factor, weights)  # noqa: B023
        _, state = jax.jit(tx.update)(gradients, state, weights)
    trace = tracer.trace_of(tx)
    assert [trace.updates(step=step) for step in (1, 2, 3)] == per_step


@pytest.mark.parametrize(
    ("tx", "said"),
    [
        (optax.conditionally_mask(optax.sgd(1.0), lambda n: n % 2 == 0), "conditionally_mask dis"),
        (behind(optax.apply_every(2)), "apply_if_finite discards"),
        (of_two_models(apply_if_finite, apply_if_finite), "apply_if_finite discards"),
        (
            optax.partition(
                {"w": optax.MultiSteps(optax.sgd(1.0), 2), "b": optax.sgd(1.0)},
                {"w": "w", "b": "b"},
            ),
            "MultiSteps discards",
        ),
        (of_two_models(plain, apply_if_finite), "are not all 0"),
    ],
)
def test_what_the_state_does_not_say(tx: Any, said: str) -> None:
    tx = tracer.wrap(tx)
    jax.jit(tx.update)(
        jax.tree.map(lambda each: each + np.nan, params()), tx.init(params()), params()
    )
    trace = tracer.trace_of(tx)
    assert not trace.complete
    assert said in trace.notes[0]


def test_a_state_of_which_the_step_took_the_arrays() -> None:
    """The state before is gone when the step has ended, and nobody can compare it."""
    accumulating = optax.MultiSteps(optax.sgd(1.0), 2)
    donating = jax.jit(accumulating.update, donate_argnums=1)
    tx = tracer.wrap(optax.GradientTransformation(accumulating.init, donating))
    state = tx.init(params())
    for _ in range(4):
        _, state = tx.update(params(), state, params())
    trace = tracer.trace_of(tx)
    assert trace.steps == 4 and not trace.complete
    assert trace.notes[0].startswith("MultiSteps discards")


@pytest.mark.parametrize("around", [lambda update: update, jax.jit])
@pytest.mark.parametrize(
    "tx", [optax.MultiSteps(optax.sgd(1.0), 4), optax.chain(optax.sgd(1.0), optax.apply_every(4))]
)
def test_nan_in_a_step_that_accumulates(tx: Any, around: Any) -> None:
    """0 times NaN is NaN: a step that should update nothing makes the weights NaN."""
    tx = tracer.wrap(tx)
    update, state, weights, moved = around(tx.update), tx.init(params()), params(), 0
    for number in (1.0, 1.0, np.nan, 1.0, 1.0):
        gradients = jax.tree.map(lambda each: each + number, params())  # noqa: B023
        updates, state = update(gradients, state, weights)
        before, weights = weights["w"], optax.apply_updates(weights, updates)
        moved += bool(np.all(np.asarray(before) != np.asarray(weights["w"])))
    trace = tracer.trace_of(tx)
    assert trace.complete
    assert trace.count("updates", by="variable") == {("b",): moved, ("w",): moved}
    assert moved >= 2


def test_what_is_no_pair_is_passed_on() -> None:
    tx = tracer.wrap(optax.GradientTransformation(lambda p: (), lambda u, s, p=None: (u, s, 1)))
    assert len(tx.update(params(), (), params())) == 3
    trace = tracer.trace_of(tx)
    assert trace.steps == 1 and trace.updates() == 0 and not trace.complete
    assert "did not return updates and a state" in trace.notes[0]


@pytest.mark.parametrize("between", [lambda tx: tx, lambda tx: optax.apply_if_finite(tx, 3)])
def test_what_a_multi_steps_around_it_throws_away(between: Any) -> None:
    """What is wrapped is inside: it is called each time, and the result is mostly thrown away."""
    inner = tracer.wrap(optax.sgd(1.0))
    once(optax.MultiSteps(between(inner), 4))
    trace = tracer.trace_of(inner)
    assert (trace.updates(), trace.complete) == (2, False)
    assert trace.notes[0].startswith("MultiSteps around it discards")


def test_a_gradient_that_is_none() -> None:
    tx = tracer.wrap(optax.sgd(1.0))
    for _ in range(2):
        tx.update({"w": jnp.ones((4, 2)), "b": None}, tx.init(params()), params())
    trace = tracer.trace_of(tx)
    assert trace.count("updates", by="variable") == {("w",): 2}
    assert trace.count("requests", by=("variable", "kind")) == {("b", "none"): 2, ("w", "dense"): 2}
    assert [each.code for each in trace.findings()] == ["no-gradient"]


def test_parameters_that_are_more_than_the_gradients() -> None:
    """`lookahead` gives updates for two of each."""
    tx = tracer.wrap(optax.lookahead(optax.sgd(1.0), 2, 0.5))
    synced = optax.LookaheadParams.init_synced(params())
    tx.update(params(), tx.init(synced), synced)
    trace = tracer.trace_of(tx)
    assert trace.count("updates", by="variable") == {
        (name,): 1 for name in ("fast/b", "fast/w", "slow/b", "slow/w")
    }
    assert not trace.findings()


def test_arguments_by_their_own_names() -> None:
    def update(grads: Any, memory: Any, weights: Any = None) -> Any:
        return grads, memory

    tx = tracer.wrap(optax.GradientTransformation(lambda params: (), update))
    tx.update(weights=params(), memory=(), grads=params())
    trace = tracer.trace_of(tx)
    assert trace.count("updates", by="variable") == {("b",): 1, ("w",): 1}
    assert trace.count("requests", by="kind") == {("dense",): 2}
    tx.update(grads={"w": jnp.zeros((4, 2))}, memory=())
    trace = tracer.trace_of(tx)
    assert trace.count("updates", by="variable") == {("b",): 1, ("w",): 2}
    assert trace.count("requests", by="kind") == {("dense",): 3}


@pytest.mark.parametrize("one", [np.zeros(3), 0.0, np.float64(1)], ids=["array", "float", "scalar"])
def test_numbers_and_arrays_of_numpy_are_the_leaves_that_come_of_them(one: Any) -> None:
    """After the first step they are arrays of JAX, with fewer bits."""
    tx = tracer.wrap(optax.sgd(1.0))
    tree = {"w": one}
    for _ in range(3):
        updates, _ = tx.update({"w": jnp.ones_like(jnp.asarray(tree["w"]))}, tx.init(tree), tree)
        tree = optax.apply_updates(tree, updates)
    trace = tracer.trace_of(tx)
    assert trace.count("updates", by="variable") == {("w",): 3}
    assert [each.dtype for each in trace.variables] == ["float32"]


def cast(updates: Any, params: Any) -> Any:
    return jax.tree.map(lambda each: each.astype(jnp.float32), updates)


LEAVES: list[tuple[Any, Any, list[str]]] = [
    (optax.scale(1.0), {"a/b": jnp.ones(2), "a": {"b": jnp.ones(2)}}, ["a/b", "a/b#2"]),
    (optax.stateless(cast), {"w": jnp.ones(2, jnp.bfloat16)}, ["w"]),
]


@pytest.mark.parametrize(("tx", "gradients", "names"), LEAVES)
def test_leaves_are_known_by_their_paths(tx: Any, gradients: Any, names: list[str]) -> None:
    tx = tracer.wrap(tx)
    for _ in range(3):
        tx.update(gradients, tx.init({}))
    trace = tracer.trace_of(tx)
    assert trace.complete and not trace.findings()
    assert trace.count("updates", by="variable") == {(name,): 3 for name in names}


def judged(tx: Any, assertion: Any, says: str, *trees: Any) -> None:
    """A step with each of these trees, in a block that passes, or that fails and says so."""
    with pytest.raises(AssertionError, match=says) if says else nullcontext(), assertion:
        for tree in trees:
            tx.update(tree, tx.init(tree), tree)


def test_assertions() -> None:
    labels = {"w": "train", "b": "freeze"}
    inner = tracer.wrap(optax.sgd(1.0))
    tx = tracer.wrap(optax.partition({"train": inner, "freeze": optax.set_to_zero()}, labels))
    judged(tx, tracer.assert_updates(tx, dense=1, per_step=True), "", params())
    judged(tx, tracer.assert_never_updated("b"), "", params())
    judged(tx, tracer.assert_all_updated({"w": params()["w"]}), "", params())
    why = "never updated: set to zero"
    judged(tx, tracer.assert_all_updated(params(), optimizer=tx), why, params())
    with pytest.raises(tracer.UnsupportedOptimizer, match="train with the result of"):
        tracer.assert_updates(optax.sgd(1.0), dense=1).__enter__()


def test_a_leaf_that_is_set_to_zero_in_some_steps_or_in_all() -> None:
    """As in phases of fine-tuning: nothing is wrong with it, and the report says why."""
    frozen: set[str] = set()
    inner = {"train": optax.sgd(1.0), "freeze": optax.set_to_zero()}
    tx = tracer.wrap(
        optax.partition(inner, lambda tree: {k: "freeze" if k in frozen else "train" for k in tree})
    )
    for names in ("b", "wb"):
        for _ in range(10):
            tx.update(params(), tx.init(params()), params())
        frozen |= set(names)
    trace = tracer.trace_of(tx)
    assert trace.count("updates", by="variable") == {("w",): 20, ("b",): 10}
    assert "set to zero in 10 steps" in render(trace) and not trace.findings()
    with tracer.record() as recording:
        tx.update(params(), tx.init(params()), params())
    trace = recording.trace()
    assert "0 updates in 1 step (set to zero)" in trace.answer()
    assert render(trace).count("never updated: set to zero") == 2
    assert all(each.severity == "info" for each in trace.findings())


class Pair(NamedTuple):
    w: Any
    b: Any


@pytest.mark.parametrize(
    "tree", [Pair(jnp.ones(2), jnp.ones(3)), [jnp.ones(2), None], jnp.ones(2), {"w": np.ones(2)}]
)
def test_assertions_with_any_tree(tree: Any) -> None:
    tx = tracer.wrap(optax.MultiSteps(optax.sgd(1.0), 2))
    judged(tx, tracer.assert_all_updated(tree, optimizer=tx), "got 0 for", tree)
    tx = tracer.wrap(optax.sgd(1.0))
    judged(tx, tracer.assert_all_updated(tree, optimizer=tx), "", tree)


@pytest.mark.parametrize(
    "part",
    [
        lambda tree: tree["hidden"],
        lambda tree: jax.tree.leaves(tree["hidden"]),
        lambda tree: np.asarray(tree["hidden"]["w"]),
        lambda tree: {"renamed": tree["hidden"]},
        lambda tree: {**tree, "out": "out"},
    ],
)
@pytest.mark.parametrize("assertion", [tracer.assert_never_updated, tracer.assert_all_updated])
def test_arrays_without_their_path(assertion: Any, part: Any) -> None:
    """All leaves are updated, so one assertion is false; neither can know it."""
    tx = tracer.wrap(optax.sgd(1.0))
    tree = {"hidden": params(), "out": jnp.ones(3)}
    judged(tx, assertion(part(tree), optimizer=tx), r"no variable ('hidden'|.*: give the)", tree)
    judged(tx, tracer.assert_never_updated({"frozen": jnp.ones(9)}), "", tree)  # of no such shape


def test_trees_with_equal_paths_and_other_shapes() -> None:
    """A generator and a discriminator."""
    one, other = params(), {"w": jnp.zeros((7, 1)), "b": jnp.zeros(1)}
    tx = tracer.wrap(optax.sgd(1.0))
    judged(tx, tracer.assert_never_updated(other, optimizer=tx), "", one)
    judged(tx, tracer.assert_all_updated(other, optimizer=tx), "got 0 for 2 of 2", one)
    judged(tx, tracer.assert_never_updated(other, optimizer=tx), "expected 0, got 2", one, other)


@pytest.mark.parametrize(
    ("wrong", "of_both"),
    [
        (tracer.assert_never_updated, "of b, b#2, w"),
        (tracer.assert_all_updated, "got 0 for 2 of 4 variables"),
    ],
)
def test_leaves_of_two_transformations_with_equal_paths(wrong: Any, of_both: str) -> None:
    """One accumulates and the other updates: neither assertion holds for both."""
    with pytest.raises(AssertionError, match=of_both), wrong(params()):
        for tx in (tracer.wrap(optax.MultiSteps(optax.sgd(1.0), 5)), tracer.wrap(optax.sgd(1.0))):
            tx.update(params(), tx.init(params()), params())


def test_parameters_of_which_each_member_has_its_own() -> None:
    tx = tracer.wrap(optax.sgd(1.0))
    stacked = jax.tree.map(lambda each: jnp.stack([each] * 3), params())
    with tracer.assert_all_updated(stacked, optimizer=tx):
        jax.vmap(lambda tree: tx.update(tree, tx.init(tree))[0])(stacked)


class Layer(NamedTuple):
    """As a model of Equinox has them: arrays, functions and numbers."""

    weight: Any
    activation: Any
    size: Any


def test_a_model_with_functions_and_arrays() -> None:
    model = {"layer": Layer(jnp.ones((2, 3)), jax.nn.relu, 3)}
    arrays = {"layer": Layer(jnp.ones((2, 3)), None, None)}
    tx = tracer.wrap(optax.sgd(1.0))
    updated = "layer/weight: expected 0, got 1"
    judged(tx, tracer.assert_never_updated(model, optimizer=tx), updated, arrays)
    judged(tx, tracer.assert_all_updated(model, optimizer=tx), "", arrays)


def test_modules_of_flax() -> None:
    nnx = pytest.importorskip("flax.nnx")
    layers = [nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Linear(3, 1, rngs=nnx.Rngs(1))]
    model = nnx.Sequential(*layers)
    tx = tracer.wrap(optax.sgd(1.0))
    optimizer = nnx.Optimizer(model, tx, wrt=nnx.Param)

    def train() -> None:
        optimizer.update(model, nnx.grad(lambda model: model(jnp.ones((4, 2))).sum())(model))

    with tracer.assert_all_updated(model, optimizer=tx):
        train()
    for given in (layers[0], layers[0].kernel, nnx.state(layers[0]), model):
        with pytest.raises(AssertionError), tracer.assert_never_updated(given, optimizer=tx):
            train()


@pytest.mark.parametrize("given", [optax.adam, optax.adam(1.0).update, (1, 2)])
def test_what_is_no_transformation(given: Any) -> None:
    with pytest.raises(tracer.UnsupportedOptimizer):
        tracer.wrap(given)


def test_effects_are_not_known() -> None:
    tx = tracer.wrap(optax.sgd(1.0), effects=True)
    once(tx)
    trace = tracer.trace_of(tx)
    assert trace.complete and not trace.data.effects and trace.updates() == 2
    (note,) = trace.notes
    assert note.startswith("effects are unknown with optax")
    with pytest.raises(tracer.UnknownName, match="nothing was compared: effects are unknown"):
        trace.count("unchanged", by="variable")


def test_steps_that_a_schedule_accumulates_were_not_merely_skipped() -> None:
    tx = tracer.wrap(optax.MultiSteps(optax.sgd(1.0), lambda step: jnp.where(step < 1, 1, 4)))
    state, given = tx.init(params()), jax.tree.map(jnp.ones_like, params())
    for _ in range(5):
        _, state = jax.jit(tx.update)(given, state, params())
    trace = tracer.trace_of(tx)
    assert [trace.updates(step=step) for step in range(1, 6)] == [2, 0, 0, 0, 2]
    assert re.search(r"\n2-4 +0 +0 +0   accumulated\n", render(trace))
    assert "3 of the steps updated nothing (accumulated);" in trace.answer()


def test_each_decay_is_said_with_the_number_of_its_parameters() -> None:
    halves = [
        optax.add_decayed_weights(rate, {"w": rate > 0.1, "b": rate < 0.1}) for rate in (0.5, 0.01)
    ]
    tx = tracer.wrap(optax.chain(*halves, optax.sgd(1.0)))
    once(tx)
    said = (
        "Learning rate 1 in all steps; weight decay 0.5 on 1 of 2 parameters; weight decay 0.01 on "
        "1 of 2 parameters."
    )
    assert said in " ".join(render(tracer.trace_of(tx)).split())


COSINE = "cosine_decay_schedule"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda schedule: optax.MultiSteps(optax.adam(schedule), 2), COSINE),
        (lambda schedule: optax.inject_hyperparams(optax.adam)(schedule), COSINE),
        (
            lambda schedule: optax.partition(
                {"w": optax.adam(0.25), "b": optax.sgd(schedule)}, {"w": "w", "b": "b"}
            ),
            f"0.25 and {COSINE}",
        ),
        (lambda schedule: optax.sgd(lambda step: schedule(step)), "a lambda"),
    ],
)
def test_a_schedule_is_named(make: Callable[[Any], Any], said: str) -> None:
    tx = tracer.wrap(make(optax.cosine_decay_schedule(0.5, 40)))
    once(tx)
    (rate,) = tracer.trace_of(tx).data.rates
    assert rate.schedule == said
    assert f"Learning rate by {rate.schedule[:30]}" in " ".join(render(tracer.trace_of(tx)).split())


@pytest.mark.parametrize("inject", [True, False])
def test_the_rate_of_a_schedule_in_a_second_block(inject: bool) -> None:
    """One of the program that `inject_hyperparams` calls, and one of optax, which is named."""
    schedule = (lambda step: 1 - step / 16) if inject else optax.linear_schedule(1.0, 0.0, 16)
    make = optax.inject_hyperparams(optax.sgd) if inject else optax.sgd
    tx = tracer.wrap(make(schedule))
    update, state = jax.jit(tx.update), tx.init(params())
    for first, steps in ((1, 3), (0.8125, 4)):
        with tracer.record() as recording:
            for _ in range(steps):
                _, state = update(params(), state, params())
        (rate,) = recording.trace().data.rates
        if inject or first == 1:
            (run,) = rate.runs
            assert (run.count, run.value, run.last) == (steps, first, first - (steps - 1) / 16)
        else:
            assert (rate.runs, rate.schedule) == ((), "polynomial_schedule")


def test_a_schedule_is_not_called() -> None:
    calls: list[Any] = []

    def schedule(step: Any) -> float:
        calls.append(step)
        return 0.5

    tx = tracer.wrap(optax.sgd(schedule))
    for _ in range(3):
        once(tx)
    tracer.trace_of(tx)
    assert len(calls) == 1  # JAX has traced it once


@pytest.mark.parametrize(
    ("make", "rate"),
    [
        (lambda: optax.MultiSteps(optax.chain(optax.clip(1.0), optax.sgd(0.25, 0.9)), 2), 0.25),
        (lambda: optax.chain(optax.adam(0.5), optax.scale(-0.5)), None),
        (lambda: optax.scale(0.5), None),
        (lambda: optax.adafactor(0.5), None),
        (lambda: optax.sgd(2), 2.0),
        (lambda: optax.sgd(0.0), 0.0),
        (lambda: optax.chain(optax.inject_hyperparams(optax.clip)(1.0), optax.sgd(0.25)), 0.25),
        # A second rate is an array, or in the state.
        (lambda: optax.contrib.mechanize(optax.sgd(0.5)), None),
        (lambda: optax.chain(optax.sgd(0.5), optax.inject_hyperparams(optax.adam)(0.5)), None),
    ],
)
def test_one_number_is_the_rate_in_all_steps(make: Callable[[], Any], rate: float | None) -> None:
    tx = tracer.wrap(make())
    for _ in range(3):
        once(tx)
    rates = [each for each in tracer.trace_of(tx).data.rates if each.what == "rate"]
    known = [] if rate is None else [(RateRun(1, 3, rate, rate),)]
    assert [each.runs for each in rates] == known


LINEAR = optax.linear_schedule(0.5, 0.0, 4)
DROPPED = 6


@pytest.mark.wide(rest="sweep")
@pytest.mark.parametrize("around", [lambda update: update, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("tx", "change", "rate", "iterations"),
    [
        (optax.adam(LINEAR), "none", (0.5, 0.125), (0, 4)),
        (optax.adam(LINEAR), "dropped", (0.5, 0.5), (0, 1)),
        (optax.adam(LINEAR), "begun", (0.25, 0.0), (2, 6)),
        (optax.adam(LINEAR), "candidates", (0.5, 0.25), None),
        (optax.MultiSteps(optax.adam(LINEAR), 2), "none", (0.5, 0.375), None),
        (optax.MultiSteps(optax.sgd(LINEAR), 5), "none", (0.5, 0.5), (0, 0)),
        (optax.apply_if_finite(optax.adam(LINEAR), 9), "none", (0.5, 0.125), (0, 4)),
        (optax.adam(lambda count: 0.5 - count), "none", None, (0, 4)),
        (optax.inject_hyperparams(optax.sgd)(LINEAR), "none", (0.5, 0.125), (0, 4)),
        (optax.inject_hyperparams(optax.sgd)(0.5), "set", (0.5, 0.25), (0, 4)),
    ],
)
def test_the_count_in_the_state_and_the_rates_of_a_schedule(
    tx: Any, change: str, rate: Any, iterations: Any, around: Any
) -> None:
    """`change` is what the program does with the state: it drops it, for example."""
    tx = tracer.wrap(tx)
    update, state, weights = around(tx.update), tx.init(params()), params()
    if change == "begun":
        state = jax.tree.map(lambda leaf: leaf + 2 if leaf.ndim == 0 else leaf, state)
    for number in range(DROPPED if change == "dropped" else 4):
        updates, new = update(jax.tree.map(jnp.ones_like, weights), state, weights)
        weights = optax.apply_updates(weights, updates)
        if change != "dropped" and not (change == "candidates" and number % 2):
            state = new
        if change == "set" and number:
            state.hyperparams["learning_rate"] = jnp.float32(0.25)
    trace = tracer.trace_of(tx)
    found = [run for each in trace.data.rates if each.what == "rate" for run in each.runs]
    ends = [pytest.approx((run.value, run.last)) for run in found]
    assert ends == ([] if rate is None else [rate])
    assert "in the last in all" not in " ".join(render(trace).split())
    assert all((run.first, run.count) == (1, trace.steps) for run in found)
    own = [*{each for each in trace.optimizers[0].evidence if isinstance(each, Iterations)}]
    assert own == ([] if iterations is None else [Iterations(*iterations)])
