"""Which step it was, where programs do more than one thing."""

import gc
import sys
import threading
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from backends.jax.keras_on_jax import Loop, Odometer, X, Y, model
from jax import lax
from support.patience import wait_until

import tracer
from tracer.backends.jax.programs import ProgramBlock
from tracer.core.registry import recorder_of


def not_finite(where: bool) -> Any:
    return np.full_like(X[:8], np.inf) if where else X[:8]


def test_steps_in_a_row_of_one_program_keep_their_parts() -> None:
    """XLA promises no order between the parts of one step and the end of the one before."""
    optimizer = tracer.wrap(keras.optimizers.LossScaleOptimizer(Odometer()))
    loop = Loop(optimizer)
    inner = jax.jit(loop.step)  # traced once, called four times

    @jax.jit
    def four(state: Any, xs: Any) -> Any:
        for x in xs:
            state = inner(state, x, Y[:8])
        return state

    bad = [False, True, False, False, True, True, False, False]
    for first in (0, 4):
        loop.state = four(loop.state, [not_finite(each) for each in bad[first : first + 4]])
    trace = tracer.trace_of(optimizer)
    assert [trace.updates(step=number) for number in range(1, 9)] == [0 if b else 4 for b in bad]
    assert trace.complete


@pytest.mark.parametrize("made", [lambda step: step, jax.jit], ids=["traced twice", "traced once"])
def test_states_that_step_by_themselves_in_one_program(made: Any) -> None:
    """Both begin with the same count of steps, and update in branches of their own."""
    optimizer = tracer.wrap(keras.optimizers.LossScaleOptimizer(Odometer()))
    loop = Loop(optimizer)
    inner = made(loop.step)

    @jax.jit
    def both(one: Any, two: Any, x: Any) -> Any:
        return inner(one, x, Y[:8]), inner(two, X[:8], Y[:8])

    one = two = loop.state
    for bad in (False, True, False, False):
        one, two = both(one, two, not_finite(bad))
    assert [float(state[0][0][0, 0]) for state in (one, two)] == [3, 4]
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates()) == (8, 7 * 4)
    assert sorted(trace.updates(step=number) for number in range(1, 9)) == [0] + [4] * 7
    assert trace.complete and "updated-twice" not in {each.code for each in trace.findings()}


def test_an_update_outside_of_every_step() -> None:
    optimizer = tracer.wrap(Odometer())
    variable = model(optimizer).trainable_variables[0]
    optimizer.build([variable])

    @jax.jit
    def update(value: Any) -> Any:
        with keras.StatelessScope(state_mapping=[(variable, value)]) as scope:
            optimizer.update_step(value, variable, 1.0)
        return scope.get_current_value(variable)

    value = variable.value
    for _ in range(3):
        value = update(value)
    trace = tracer.trace_of(optimizer)
    assert float(value[0, 0]) == trace.updates() == 3
    assert trace.steps == 0
    assert trace.data.blocks[-1].outside


def test_a_reading_waits_for_what_runs() -> None:
    loop = Loop(tracer.wrap(Odometer()))

    @jax.jit
    def long(state: Any) -> Any:
        return lax.fori_loop(0, 2000, lambda _, s: loop.step(s, X[:8], Y[:8]), state)

    loop.state = long(loop.state)
    assert tracer.trace_of(loop.optimizer).updates() == 2000 * 4


def test_a_reading_in_a_callback_waits_for_nothing() -> None:
    """On several devices the program would wait for the callback, and that for the program."""
    loop = Loop(tracer.wrap(Odometer()))
    read = []

    def look(_: Any) -> None:
        read.append(tracer.trace_of(loop.optimizer))

    def step(state: Any, x: Any, y: Any) -> Any:
        state = loop.step(state, x, y)
        jax.debug.callback(look, state[0][0][0, 0])
        return state

    copies = jax.tree.map(lambda each: jax.numpy.stack([each] * 2), loop.state)
    compiled = jax.pmap(step, axis_name="data")
    for _ in range(2):
        copies = compiled(copies, X[:16].reshape(2, 8, 4), Y[:16].reshape(2, 8, 1))
    jax.effects_barrier()
    trace = tracer.trace_of(loop.optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (2, 2 * 2 * 4, True)
    assert len(read) == 4
    assert all(each.steps <= 2 and "in a callback" in each.notes[-1] for each in read)


def test_a_program_does_not_wait_for_who_reads() -> None:
    """Who reads holds the lock of the counters, and may wait for an array of the program."""
    loop = Loop(tracer.wrap(Odometer()))
    step = jax.jit(loop.step)
    loop.state = step(loop.state, X[:8], Y[:8])
    recorder = recorder_of(loop.optimizer)
    assert recorder is not None and tracer.trace_of(loop.optimizer).steps == 1

    def train() -> None:
        for _ in range(3):
            loop.state = jax.block_until_ready(step(loop.state, X[:8], Y[:8]))

    thread = threading.Thread(target=train, daemon=True)
    with recorder.blocks.counters.lock:
        thread.start()
        thread.join(30)
        assert not thread.is_alive()
    trace = tracer.trace_of(loop.optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (4, 4 * 4, True)


@pytest.mark.parametrize("around", [jax.jit, lambda step: step])
def test_a_loop_of_ones_own_has_no_findings(around: Any) -> None:
    """The state is not in the variables, and members of a `vmap` update for themselves.

    So an optimizer's own count of steps stays at 0, and each variable has two updates in a step.
    """
    named = {".*a/.*": Odometer(name="first")}
    both = keras.optimizers.MultiOptimizer(keras.optimizers.OptimizerMap(Odometer(), named))
    loop = Loop(tracer.wrap(both))
    step = around(loop.step)
    for _ in range(3):
        loop.state = step(loop.state, X[:8], Y[:8])
    assert not tracer.trace_of(loop.optimizer).findings()
    states = jax.tree.map(lambda each: jax.numpy.stack([each] * 2), loop.state)
    members = around(jax.vmap(loop.step, in_axes=(0, None, None)))
    members(states, X[:8], Y[:8])
    trace = tracer.trace_of(loop.optimizer)
    assert trace.updates(step=4) == 2 * 4
    programs = [("retraced", "info")] * (around is jax.jit)  # with members it is another one
    assert [(each.code, each.severity) for each in trace.findings()] == programs


def test_threads_that_run_one_program() -> None:
    loop = Loop(tracer.wrap(Odometer()))
    step = jax.jit(loop.step)
    step(loop.state, X[:8], Y[:8])

    def run() -> None:
        state = loop.state
        for _ in range(200):
            state = step(state, X[:8], Y[:8])
        jax.block_until_ready(state)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace = tracer.trace_of(loop.optimizer)
    assert (trace.steps, trace.updates()) == (801, 801 * 4)


def test_a_replica_that_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result of one device was read, and nothing holds that of the other one."""
    optimizer = tracer.wrap(Odometer())
    loop = Loop(optimizer)
    ran, goes_on = ProgramBlock.ran, threading.Event()

    def late(program: ProgramBlock, numbers: Any) -> None:
        if numbers[0] == 1:
            assert goes_on.wait(60)
        ran(program, numbers)

    monkeypatch.setattr(ProgramBlock, "ran", late)
    step = jax.pmap(loop.step, axis_name="data")
    state = jax.tree.map(lambda each: jnp.stack([each] * 2), loop.state)
    state = step(state, X[:16].reshape(2, 8, 4), Y[:16].reshape(2, 8, 1))
    first = state[0][0].addressable_shards[0].data
    del loop, state
    assert float(np.ravel(first)[0]) == 1
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 4 and not trace.complete and "some replicas" in trace.notes[0]
    goes_on.set()
    wait_until(lambda: tracer.trace_of(optimizer).complete)
    assert tracer.trace_of(optimizer).updates() == 2 * 4


def test_a_step_that_is_jitted_again_each_time_leaves_nothing_behind() -> None:
    loop = Loop(tracer.wrap(Odometer()))
    with tracer.record() as recording:
        for _ in range(5):
            loop.state = jax.jit(partial(loop.step))(loop.state, X[:8], Y[:8])
        jax.eval_shape(partial(loop.step), loop.state, X[:8], Y[:8])
        before = recording.trace().data
        jax.clear_caches()
        gc.collect()
        assert recording.trace().data == before
        assert not [each for each in gc.get_objects() if type(each) is ProgramBlock]
        loop.state = jax.jit(partial(loop.step))(loop.state, X[:8], Y[:8])
    assert float(loop.state[0][0][0, 0]) == 6
    trace = recording.trace()
    assert (trace.steps, trace.updates(), trace.complete) == (6, 6 * 4, True)
    assert sum(graph.tracings for graph in trace.data.graphs) == 7
    assert sum(graph.idle for graph in trace.data.graphs) == 1


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("every", [None, 2])
def test_a_step_in_a_branch(eager: bool, every: int | None) -> None:
    """A loss scale skips the third of six steps; of the others, each `every`-th is kept."""
    odometer = Odometer(gradient_accumulation_steps=every)
    optimizer = tracer.wrap(keras.optimizers.LossScaleOptimizer(odometer, initial_scale=1.0))
    trained = model(optimizer)
    trained.compile(optimizer, "mse", run_eagerly=eager, jit_compile=not eager)
    x = np.concatenate([X[:8], not_finite(True)[:4], X[:12]])
    trained.fit(x, Y[:24], batch_size=4, shuffle=False, verbose=0)
    trace = tracer.trace_of(optimizer)
    kept = [4, 4, 0, 4, 4, 4] if every is None else [0, 4, 0, 0, 4, 0]
    assert [trace.updates(step=number) for number in range(1, 7)] == kept
    assert float(trained.trainable_variables[0].numpy()[0, 0]) == sum(kept) / 4
    assert sum(trace.count("discarded", by=()).values()) == (0 if every is None else 3 * 4)
    assert trace.complete, trace.notes
    # The step around it is called in each eager step, and the inner one to trace the branch.
    assert trace.calls() == 7 * (6 if eager else 1)
    assert eager or trace.answer().endswith("while tracing 1 program.")


# It changes nothing: see `truth/test_keras.py`, too.


def test_as_many_programs_and_no_effect() -> None:
    """An effect would turn off the fast path of `jax.jit`."""
    counts = []
    for wrapped in (False, True):
        loop = Loop(tracer.wrap(Odometer()) if wrapped else Odometer())
        step = jax.jit(loop.step)
        for x in (X[:8], X[:4], X[8:16]):
            loop.state = step(loop.state, x, Y[: len(x)])
        assert not jax.make_jaxpr(loop.step)(loop.state, X[:8], Y[:8]).effects
        counts.append(step._cache_size())
    assert counts == [2, 2]


def test_the_same_error() -> None:
    errors = []
    for wrapped in (False, True):
        loop = Loop(tracer.wrap(Odometer()) if wrapped else Odometer())
        with pytest.raises(ValueError) as caught:
            loop.optimizer.stateless_apply([], [], [])
        errors.append(str(caught.value))
    assert errors[0] == errors[1]


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
