"""Programs compiled before the optimizer was wrapped: counted from then on, or noted."""

import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import pytest
from backends.jax.keras_on_jax import Loop, Odometer, X, Y, model
from jax import lax

import tracer


def fit(trained: Any, epochs: int = 1) -> None:
    trained.fit(X[:32], Y[:32], batch_size=4, epochs=epochs, verbose=0)


def weight_of(trained: Any) -> float:
    return float(trained.trainable_variables[0].numpy()[0, 0])


def test_a_model_that_was_fitted_is_traced_again() -> None:
    optimizer = Odometer()
    trained = model(optimizer)
    fit(trained)
    before = weight_of(trained)
    tracer.wrap(optimizer)
    fit(trained, epochs=2)
    trace = tracer.trace_of(optimizer)
    assert trace.steps == weight_of(trained) - before == 16
    assert trace.updates() == 16 * 4
    assert trace.complete
    assert trace.notes == (
        "odometer: train_step, traced before the optimizer was wrapped, is traced again at the "
        "next call",
    )


def in_a_far_loop(step: Any) -> Any:
    """Its body holds the step by a default, and JAX holds the body weakly."""

    def body(_: Any, state: Any, step: Any = lambda state: step(state)) -> Any:
        return step(state)

    return lambda state: lax.fori_loop(0, 1, body, state)


def in_a_vmap(step: Any) -> Any:
    """JAX never calls the compiled function itself."""
    mapped = jax.vmap(jax.jit(step))

    def run(state: Any) -> Any:
        states = jax.tree.map(lambda leaf: jnp.stack([leaf]), state)
        return jax.tree.map(lambda leaf: leaf[0], mapped(states))

    return run


def with_its_own_derivative(step: Any) -> Any:
    own = jax.custom_vjp(step)
    own.defvjp(lambda state: (own(state), None), lambda _, cotangent: (cotangent,))
    return jax.jit(lambda state: own(state))


def by_a_keyword(step: Any) -> Any:
    def run(state: Any, *, step: Any = step) -> Any:
        return step(state)

    return jax.jit(run)


def in_a_class(step: Any) -> Any:
    class Own:
        steps = (step,)

    return jax.jit(lambda state: Own.steps[0](state))


def called(step: Any, state: Any) -> Any:
    return step(state)


AROUND: dict[str, Callable[[Any], Any]] = {
    "inner function": lambda step: jax.jit(partial(called, jax.jit(step))),
    "scan": lambda step: jax.jit(
        lambda state: lax.scan(lambda s, _: (step(s), None), state, None, length=1)[0]
    ),
    "branch without jit": lambda step: lambda state: lax.switch(1, [lambda s: s, step], state),
    "far loop": in_a_far_loop,
    "vmap": in_a_vmap,
    "checkpoint": jax.checkpoint,
    "its own derivative": with_its_own_derivative,
    "keyword": by_a_keyword,
    "class": in_a_class,
    "deque": lambda step: jax.jit(lambda state, steps=deque([step]): steps[0](state)),
    "Partial": lambda step: jax.jit(jax.tree_util.Partial(partial(called, step))),
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_what_a_program_is_made_of_is_traced_again_too(around: Any) -> None:
    """JAX keeps what it traced of the body of a loop, whatever is around it."""
    optimizer = Odometer()
    loop = Loop(optimizer)

    def step(state: Any) -> Any:
        return loop.step(state, X[:8], Y[:8])

    steps, state = around(step), loop.state
    for number in range(5):
        if number == 2:
            tracer.wrap(optimizer)
        state = steps(state)
    assert float(state[0][0][0, 0]) == 5
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (3, 3 * 4, True)
    assert "traced again" in trace.notes[0]


def test_what_keeps_its_program_is_said_to_run_uncounted() -> None:
    optimizer = Odometer()
    trained = model(optimizer)
    fit(trained)
    tracer.wrap(optimizer, retrace=False)
    fit(trained)
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.complete) == (0, False)
    assert any("train_step was traced before" in note for note in trace.notes)
    assert any("is 8 steps ahead" in note for note in trace.notes)


def test_a_program_that_was_compiled_ahead_and_one_that_counts() -> None:
    """What the second one reports of the optimizer's own count shows what the first one did."""
    optimizer = Odometer()
    loop = Loop(optimizer)
    ahead = jax.jit(loop.step).lower(loop.state, X[:8], Y[:8]).compile()
    tracer.wrap(optimizer)
    counting = jax.jit(lambda *given: loop.step(*given))
    state = loop.state
    for step in (counting, ahead, ahead, ahead, counting, counting):
        state = step(state, X[:8], Y[:8])
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, float(state[0][0][0, 0])) == (3, 6)
    assert not trace.complete
    assert trace.notes[0].startswith("odometer: its step count is 3 steps ahead")


def test_a_loaded_model_ran_no_steps(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "optax", raising=False)  # else it may be what ran: a note
    optimizer = Odometer()
    trained = model(optimizer)
    fit(trained)
    trained.save(tmp_path / "model.keras")
    with tracer.record() as recording:
        loaded = keras.models.load_model(
            tmp_path / "model.keras", custom_objects={"Odometer": Odometer}
        )
        assert int(loaded.optimizer.iterations.numpy()) == 8
        assert recording.trace().complete, recording.trace().notes
        fit(loaded)
    trace = recording.trace()
    assert (trace.steps, trace.complete) == (8, True)


def test_a_recording_begins_and_ends() -> None:
    optimizer = Odometer()
    trained = model(optimizer)
    fit(trained)
    for epochs in (2, 1):
        with tracer.record() as recording:
            fit(trained, epochs)
        fit(trained)
        trace = recording.trace()
        assert (trace.steps, trace.updates(), trace.complete) == (8 * epochs, 32 * epochs, True)


def test_eager_steps_between_two_blocks() -> None:
    """They made the trace of the second block incomplete."""
    eager, other = model(Odometer(), run_eagerly=True), model(Odometer())
    for _ in range(3):
        with tracer.assert_updates(eager.optimizer, total=8 * 4):
            fit(eager)
        with tracer.assert_updates(other.optimizer, total=0):
            fit(eager)


@pytest.mark.parametrize("fits", [False, True])
def test_wrapped_again_after_it_was_traced_anew_without_the_tracer(fits: bool) -> None:
    optimizer = tracer.wrap(Odometer())
    loop = Loop(optimizer)
    step = jax.jit(loop.step)
    for number in range(6):
        if number == 2:
            tracer.unwrap(optimizer, retrace=True)
        if number == 4:
            tracer.wrap(optimizer)
        if fits:
            loop.model.train_on_batch(X[:8], Y[:8])
        else:
            loop.state = step(loop.state, X[:8], Y[:8])
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (4, 4 * 4, True)
