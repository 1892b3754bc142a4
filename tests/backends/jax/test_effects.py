"""What steps of Keras on JAX did to the variables: against odometers, and their bytes in NumPy."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from backends.jax.keras_on_jax import Loop, Odometer, X, Y, model
from jax import lax
from support.by_bytes import ByBytes
from support.jax_ways import two_devices

import tracer

NAN = float("nan")
GRADIENTS = [1.0, 0.0, 1e-30, 0.5, float("inf"), 1.0, 0.0, NAN, NAN, 0.0]


def weights_of(variables: list[Any]) -> list[Any]:
    return [np.array(each.value) for each in variables]


DTYPES = ("float32", "bfloat16", "float16", "float32", "complex64", "float8_e4m3fn")


class Plain(keras.optimizers.Optimizer):  # type: ignore[misc]
    """Subtracts the gradient, of whatever type."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"learning_rate": 1.0, "name": "plain", **kwargs})

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        wide = jnp.complex64 if jnp.iscomplexobj(gradient) else jnp.float32
        now = jnp.asarray(variable.value).astype(wide) - gradient.astype(wide)
        self.assign(variable, now.astype(jnp.result_type(variable.value)))


class Weights:
    """Variables of many types and shapes, with an optimizer and what steps it."""

    def __init__(self, optimizer: Any) -> None:
        shapes = [(3, 2), (), (4,), (0,), (2,), (2, 2)]
        self.optimizer = optimizer
        self.variables = [
            keras.Variable(jnp.full(shape, 2.0).astype(dtype), dtype=dtype, name=f"w{number}")
            for number, (dtype, shape) in enumerate(zip(DTYPES, shapes, strict=True))
        ]
        optimizer.build(self.variables)
        self.values = [each.value for each in self.variables]
        self.of_optimizer = [each.value for each in optimizer.variables]

    def gradients(self, amount: Any) -> list[Any]:
        return [jnp.full(each.shape, amount).astype(each.dtype) for each in self.values]

    def step(self, values: Any, of_optimizer: Any, amount: Any) -> Any:
        return self.optimizer.stateless_apply(of_optimizer, self.gradients(amount), values)

    def compare(self, run: Callable[..., Any]) -> None:
        """Make steps by `run`, one at a time, and compare them with NumPy."""
        paths = [each.path for each in self.variables]
        truth = ByBytes(lambda: dict(zip(paths, self.values, strict=True)))
        for amount in GRADIENTS:
            before = truth.now()
            self.values, self.of_optimizer = run(self.values, self.of_optimizer, amount)
            truth.stepped(before)
        trace = tracer.trace_of(self.optimizer)
        assert trace.complete, trace.notes
        assert truth.unchanged and truth.not_finite
        truth.agrees_with(trace)


def by_turns(weights: Weights) -> Callable[..., Any]:
    compiled, steps = jax.jit(weights.step), itertools.cycle([weights.step, None, None])
    return lambda *state: (next(steps) or compiled)(*state)


WAYS: dict[str, Callable[[Weights], Callable[..., Any]]] = {
    "in eager mode": lambda weights: weights.step,
    "by turns": by_turns,
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_weights_of_many_types(way: Any) -> None:
    """Bits are compared, so a NaN that stays is unchanged."""
    weights = Weights(tracer.wrap(Plain(), effects=True))
    weights.compare(way(weights))


def test_in_a_scope_of_the_program() -> None:
    """A program that keeps the state by itself: the values are those of its scope."""
    weights = Weights(tracer.wrap(Plain(), effects=True))
    variables, own = weights.variables, list(weights.optimizer.variables)

    @jax.jit
    def step(values: Any, of_optimizer: Any, amount: Any) -> Any:
        state = [*zip(variables, values, strict=True), *zip(own, of_optimizer, strict=True)]
        with keras.StatelessScope(state_mapping=state) as scope:
            weights.optimizer.apply(weights.gradients(amount), variables)
        return tuple([scope.get_current_value(e) for e in each] for each in (variables, own))

    weights.compare(step)


@pytest.mark.parametrize(
    "options",
    [
        {"weight_decay": 0.1},
        {"use_ema": True, "ema_overwrite_frequency": 3},
        {"clipnorm": 1.0},
        {"gradient_accumulation_steps": 2},
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_happens_outside_of_the_apply_methods(options: Any) -> None:
    """Weight decay and averages change weights of which the gradient is 0: the step is compared."""
    weights = Weights(tracer.wrap(Odometer()))
    variables = [keras.Variable(np.ones((3,), "float32"), name=name) for name in ("a", "b")]
    weights.variables, weights.optimizer = (
        variables,
        tracer.wrap(keras.optimizers.SGD(1.0, **options), effects=True),
    )
    weights.optimizer.build(variables)
    weights.values = [each.value for each in variables]
    weights.of_optimizer = [each.value for each in weights.optimizer.variables]
    gradients = weights.gradients
    weights.gradients = lambda amount: [gradients(amount)[0], jnp.zeros(3)]  # type: ignore[method-assign]
    weights.compare(jax.jit(weights.step))


@pytest.mark.long
def test_a_loop_in_one_program() -> None:
    """Each turn of a loop is a step of its own, and a branch that is not taken is none."""
    weights = Weights(tracer.wrap(Plain(), effects=True))
    amounts = np.array(GRADIENTS, "float32")
    taken = np.arange(len(GRADIENTS)) % 3 != 1

    @jax.jit
    def epoch(values: Any, of_optimizer: Any) -> Any:
        def body(state: Any, given: Any) -> Any:
            amount, wanted = given

            def train() -> Any:
                return tuple(weights.step(state[0], state[1], amount))

            after = lax.cond(wanted, train, lambda: state)
            return after, after[0]

        return lax.scan(body, (values, of_optimizer), (amounts, taken))

    _, history = epoch(weights.values, weights.of_optimizer)
    values = {each.path: each.value for each in weights.variables}
    truth = ByBytes(lambda: values)
    for number, wanted in enumerate(taken):
        before = truth.now()
        values = dict(zip(values, (each[number] for each in history), strict=True))
        if wanted:
            truth.stepped(before)
    truth.agrees_with(tracer.trace_of(weights.optimizer))


@pytest.mark.long
def test_members_of_a_batch() -> None:
    """Unchanged if it is so in all members, not finite if it is so in one."""
    loop = Loop(tracer.wrap(keras.optimizers.SGD(0.5), effects=True))
    state = jax.tree.map(lambda each: jnp.stack([each] * 3), loop.state)
    step = jax.jit(jax.vmap(loop.step, in_axes=(0, 0, None)))
    paths = [each.path for each in loop.model.trainable_variables]
    truth = ByBytes(lambda: dict(zip(paths, state[0], strict=True)))
    zeros = np.zeros((8, 1), "float32")
    for number in range(5):
        x = np.stack([X[:8]] * 3)
        if number == 3:
            x[1] = NAN
        before = truth.now()
        state = step(state, x, zeros if number < 2 else Y[:8])  # they begin at 0: no error
        truth.stepped(before)
    assert {each for _, each in truth.not_finite} == {4, 5}
    assert {each for _, each in truth.unchanged} >= {1, 2}
    truth.agrees_with(tracer.trace_of(loop.optimizer))


@pytest.mark.long
def test_devices_that_do_not_the_same() -> None:
    """Each device of a `pmap` is a replica, with effects of its own."""
    two_devices()
    loop = Loop(tracer.wrap(Odometer(), effects=True))
    state = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    state[0][0] = state[0][0].at[1].set(NAN)
    step = jax.pmap(loop.step, axis_name="data")
    for _ in range(3):
        state = step(state, X[:16].reshape(2, 8, 4), Y[:16].reshape(2, 8, 1))
    trace = tracer.trace_of(loop.optimizer)
    kernel = loop.model.trainable_variables[0].path
    assert trace.count("not_finite", by=("variable", "replica")) == {(kernel, 1): 3}
    assert trace.count("unchanged", by=("variable", "replica")) == {(kernel, 1): 3}
    assert set(trace.count("compared", by=("variable", "replica")).values()) == {3}


# It changes nothing.


def jaxpr_of(prepare: Callable[[Any], Any]) -> str:
    loop = Loop(prepare(keras.optimizers.Adam(0.1)))
    return str(jax.make_jaxpr(loop.step)(loop.state, X[:8], Y[:8]))


def test_without_it_nothing_is_added() -> None:
    """The program is that of an untraced optimizer, and the one op that counts."""
    plain = jaxpr_of(lambda optimizer: optimizer).count("\n")
    traced = jaxpr_of(tracer.wrap)
    again = jaxpr_of(lambda optimizer: tracer.wrap(tracer.wrap(optimizer)))
    with_effects = jaxpr_of(lambda optimizer: tracer.wrap(optimizer, effects=True))
    added = [each for each in traced.splitlines() if "tracer_count" in each]
    # The op with its lines, its row of five numbers, and the bits of the learning rate.
    assert len(added) == 1 and traced.count("\n") - plain <= 10
    assert traced.count("bitcast") == 1 and "is_finite" not in traced
    assert traced.count("\n") == again.count("\n") < with_effects.count("\n")
    assert with_effects.count("tracer_count") == 1


@pytest.mark.long
def test_recorded_for_a_while() -> None:
    """What is compiled is traced again when effects are asked for, and they stay on."""
    optimizer = tracer.wrap(Odometer())
    trained = model(optimizer)

    def epoch() -> None:
        trained.fit(X[:16], Y[:16], batch_size=8, verbose=0)

    epoch()
    with tracer.record(effects=True) as recording:
        epoch()
    epoch()
    trace = recording.trace()
    assert trace.complete, trace.notes
    assert trace.count("compared", by=("step",)) == {(1,): 4, (2,): 4}
    whole = tracer.trace_of(optimizer)
    assert whole.complete, whole.notes
    assert whole.count("compared", by=("step",)) == {(step,): 4 for step in range(3, 7)}
    assert not whole.count("unchanged", by=())
    assert float(trained.trainable_variables[0].numpy()[0, 0]) == 6


def test_a_variable_whose_array_the_step_gave_away() -> None:
    """The old value is gone when the step has ended: counts stay, and nothing fails."""
    subtract = jax.jit(lambda value, gradient: value - gradient, donate_argnums=0)

    class Donating(Plain):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            variable._value = subtract(variable._value, gradient)

    optimizer = tracer.wrap(Donating(), effects=True)
    variable = keras.Variable(np.ones(3, "float32"), name="w")
    optimizer.build([variable])
    for _ in range(2):
        optimizer.apply([jnp.ones(3)], [variable])
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == trace.steps == 2 and trace.complete
    assert any("was donated" in note for note in trace.notes)
    assert variable.numpy().tolist() == [-1.0] * 3


def test_what_was_compiled_ahead_is_said() -> None:
    loop = Loop(tracer.wrap(Odometer()))
    step = jax.jit(loop.step).lower(loop.state, X[:8], Y[:8]).compile()
    tracer.wrap(loop.optimizer, effects=True)
    for _ in range(3):
        loop.state = step(loop.state, X[:8], Y[:8])
    trace = tracer.trace_of(loop.optimizer)
    assert trace.steps == 3 and trace.complete
    assert any("effects are unknown for 3 steps" in note for note in trace.notes)
