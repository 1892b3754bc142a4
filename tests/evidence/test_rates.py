"""Learning rates and weight decay of Keras, in programs and in eager mode."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from support.findings_of import bad
from support.libraries import keras2, keras3, library_of, needs_keras3, optimizer_of

import tracer
from tracer.evidence.rates import MOST, with_value
from tracer.model.evidence import Iterations
from tracer.model.phrases import sentences_on
from tracer.model.records import RateRun
from tracer.model.trace import summaries_of


def runs_of(trace: Any, what: str) -> list[tuple[int, int, float]]:
    (rate,) = [each for each in trace.data.rates if each.what == what]
    return [(each.first, each.count, round(each.last, 4)) for each in rate.runs]


def said(trace: Any) -> str:
    return " ".join(sentences_on(summaries_of(trace)[0]))


def training(optimizer: Any = None) -> tuple[Any, Callable[..., None]]:
    """A traced optimizer, SGD of Keras 3 if none is given, and what makes a step for each rate."""
    optimizer = optimizer or keras3.optimizers.SGD(0.5)
    weight = tf.Variable([1.0, 2.0])
    if hasattr(optimizer, "build"):
        optimizer.build([weight])

    def step(*rates: Any) -> None:
        for rate in rates or [None]:
            if rate is not None:
                optimizer.learning_rate = rate
            optimizer.apply_gradients([(tf.ones(2), weight)])

    return tracer.wrap(optimizer), step


@pytest.mark.parametrize("excluded", ["names", "variables"])
@pytest.mark.parametrize("kind", ["keras2", "keras3"])
def test_a_callback_that_sets_the_rate(kind: str, excluded: str) -> None:
    library = library_of(kind)
    layers = [library.layers.Dense(2), library.layers.LayerNormalization(), library.layers.Dense(1)]
    model = library.Sequential(layers)
    model.build((None, 3))
    optimizer = library.optimizers.AdamW(0.1, weight_decay=0.01)
    if excluded == "names":
        optimizer.exclude_from_weight_decay(var_names=["bias"])
    else:
        optimizer.exclude_from_weight_decay(var_list=[layers[0].bias, layers[2].bias])
    model.compile(tracer.wrap(optimizer), "mse")
    schedule = library.callbacks.LearningRateScheduler(lambda epoch: 0.1 / 2**epoch)
    x, y = np.ones((8, 3)), np.ones((8, 1))
    model.fit(x, y, batch_size=2, epochs=3, verbose=0, callbacks=[schedule])
    trace = tracer.trace_of(optimizer)
    assert runs_of(trace, "rate") == [(1, 12, 0.025)]
    assert runs_of(trace, "decay") == [(1, 12, 0.01)]
    text = (
        "Learning rate 0.1 -> 0.025 (3 values); weight decay 0.01 on 4 of 6 variables, 2 of them "
    )
    assert said(trace).startswith(f"{text}one-dimensional (")
    assert not bad(trace)


@pytest.mark.parametrize("where", ["before", "around", "later", "branch", "loop", "nowhere"])
@pytest.mark.parametrize("library", [keras2, keras3])
def test_a_rate_that_the_graph_of_a_step_assigns_is_not_read(library: Any, where: str) -> None:
    """Between the calls of its function it need not be what the steps used."""
    optimizer, apply = training(library.optimizers.SGD(0.5))
    rate = optimizer.learning_rate

    @tf.function  # type: ignore[untyped-decorator]
    def inner() -> None:
        apply()

    @tf.function  # type: ignore[untyped-decorator]
    def step(number: Any) -> None:
        if where == "before":
            rate.assign(0.5 / number)
            apply()
        elif where in ("around", "later"):
            rate.assign(0.25)
            inner()
            rate.assign(0.5)
        elif where == "branch":
            if number > 1.0:
                rate.assign(0.25)
            apply()
        elif where == "loop":
            for _ in tf.range(2):
                rate.assign(0.5 * rate)
                apply()
        else:
            if number > 1.0:
                apply()
            inner()

    if where == "later":
        inner()  # traced before the function around it
    for number in range(3):
        step(tf.constant(number + 1.0))
    text = "0.5, read 3 times" if where == "nowhere" else "by assignments in a function"
    trace = tracer.trace_of(optimizer)
    assert (said(trace), trace.data.rates[0].variables) == (f"Learning rate {text}.", (0,))


def test_a_rate_is_only_read_beside_a_step_of_the_program_that_may_set_another() -> None:
    class Halved(keras3.optimizers.SGD):  # type: ignore[misc]
        def apply_gradients(self, *given: Any) -> None:
            self.learning_rate.assign(0.25)
            super().apply_gradients(*given)
            self.learning_rate.assign(0.5)

    optimizer, step = training(Halved(0.5))
    step()
    assert said(tracer.trace_of(optimizer)) == "Learning rate 0.5, read once."


@pytest.mark.parametrize("library", [keras2, keras3])
def test_the_rate_is_that_of_the_optimizer_inside(library: Any) -> None:
    """Keras 3 makes what is around it with 0."""
    optimizer, step = training(
        library.mixed_precision.LossScaleOptimizer(library.optimizers.SGD(0.5))
    )
    step()
    assert runs_of(tracer.trace_of(optimizer), "rate") == [(1, 1, 0.5)]


@needs_keras3
def test_reading_the_weight_decay_leaves_nothing_in_the_optimizer() -> None:
    """Keras 3 keeps whether each variable decays, once it is asked."""
    plain = keras3.optimizers.SGD(0.5)
    plain.build([tf.Variable([1.0])])
    optimizer, step = training()
    step()
    assert tracer.trace_of(optimizer).data.rates
    assert vars(optimizer).keys() == vars(plain).keys()


@needs_keras3
def test_the_rates_of_several_optimizers_inside_are_not_said() -> None:
    class Two(keras3.optimizers.Optimizer):  # type: ignore[misc]
        def __init__(self, first: Any, second: Any) -> None:
            super().__init__(0.0)
            self.first, self.second = first, second

        def apply(self, grads: Any, trainable_variables: Any = None) -> None:
            self.first.apply(grads[:1], trainable_variables[:1])
            self.second.apply(grads[1:], trainable_variables[1:])

    weights = [tf.Variable([1.0]) for _ in range(3)]
    optimizer = tracer.wrap(Two(keras3.optimizers.SGD(0.5), keras3.optimizers.SGD(0.25)))
    optimizer.apply([tf.ones(1)] * 3, weights)
    trace = tracer.trace_of(optimizer)
    assert (trace.updates(), trace.data.rates) == (3, ())


def test_a_step_that_another_call_makes_has_the_rate_of_that_call() -> None:
    optimizer, step = training()

    def every_other(number: Any) -> None:
        if number % 2 == 0:
            step()

    function = tf.function(every_other)
    for number in range(6):
        optimizer.learning_rate.assign(0.5 / (number + 1))
        function(tf.constant(number))
    (rate,) = tracer.trace_of(optimizer).data.rates
    (run,) = rate.runs
    assert (run.first, run.count, run.values) == (1, 3, 3)
    assert (run.value, round(run.last, 4)) == (0.5, 0.1)


def test_a_rate_that_is_read_now_and_then_is_said_to_have_at_least_so_many_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once in three steps here, from the second on."""
    optimizer, step = training()
    now = [0.0]
    monkeypatch.setattr("tracer.evidence.rates.perf_counter", lambda: now[0])

    def run(throttle: Any, do: Any) -> None:
        do()
        throttle.due = now[0] + 3 if now[0] else 0.0

    monkeypatch.setattr("tracer.evidence.rates.Throttle.run", run)
    for number in range(14):
        now[0] = float(number)
        step(0.5 if number < 9 else 0.5 / number)
    assert said(tracer.trace_of(optimizer)) == "Learning rate 0.5 -> 0.0385 (at least 3 values)."


def test_what_may_have_changed_since_it_was_read_is_not_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was read in four steps, and then no more."""
    monkeypatch.setattr("tracer.core.collectors.Throttle.at_once", 4)
    monkeypatch.setattr("tracer.core.collectors.Throttle.rest", 1e12)
    optimizer, step = training()
    known = []
    for number, rate in ((8, 0.5), (2, 0.25), (1, 0.5)):
        step(*[rate] * number)
        known += runs_of(tracer.trace_of(optimizer), "rate")
    assert known == [(1, 8, 0.5), (1, 4, 0.5), (1, 11, 0.5)]  # the last change is not seen


@pytest.mark.parametrize(
    ("readings", "turn", "values"),
    [
        ((1.0, 2.0, 3.0, 2.0, 1.0, 1.0, 1.0), 3.0, 5),
        ((0.0, 0.5, 1.0), None, 3),
        ((1.0, 0.25, 0.5), 0.25, 3),
        ((1.0, 0.25, 0.5, 0.75), 0.25, 4),
        ((0.1, 0.01, 0.8, 0.7, 0.6), 0.8, 5),
        ((1.0,), None, 1),
    ],
)
def test_a_run_has_the_ends_of_a_rate_and_where_it_turned(
    readings: Sequence[float], turn: float | None, values: int
) -> None:
    run: RateRun | None = None
    for step, value in enumerate(readings, start=1):
        run = with_value(run, step, value)
    assert run == RateRun(1, 1, readings[0], readings[-1], values, turn)


def test_each_of_many_blocks_has_a_run_of_its_own() -> None:
    """The last ones are kept."""
    optimizer, step = training()
    for block in range(MOST + 10):
        with tracer.record():
            step(1.0 / 2 ** (block % 4))
    (rate,) = tracer.trace_of(optimizer).data.rates
    assert rate.runs == tuple(
        RateRun(block + 1, 1, 1.0 / 2 ** (block % 4), 1.0 / 2 ** (block % 4))
        for block in range(10, MOST + 10)
    )


def test_a_rate_that_is_not_finite_is_said(tmp_path: Path) -> None:
    optimizer, step = training()
    step(0.5, 0.5, np.nan, 0.5, np.inf)
    tracer.trace_of(optimizer).save(tmp_path / "run.json")
    trace = tracer.load(tmp_path / "run.json")
    found = {
        each.not_finite: [(run.first, run.count) for run in each.runs] for each in trace.data.rates
    }
    assert found == {"": [(1, 2), (4, 1)], "nan": [(3, 1)], "inf": [(5, 1)]}
    text = "Learning rate 0.5 in 3 steps; learning rate nan in 1 step; learning rate inf in 1 step."
    assert said(trace) == text


@pytest.mark.parametrize("before", [(0.5, 0.25), (0.5, 0.5)])
@pytest.mark.parametrize("library", [keras2, keras3])
def test_a_rate_that_moves_in_a_block(library: Any, before: tuple[float, ...]) -> None:
    _, step = training(library.optimizers.SGD(0.5, weight_decay=0.0))
    step(*before)
    with tracer.record() as recording:
        step(0.2, 0.1)
    assert runs_of(recording.trace(), "rate") == [(1, 2, 0.1)]
    assert {each.what for each in recording.trace().data.rates} == {"rate"}  # a decay of 0 is none


@pytest.mark.parametrize("traced", [False, True])
def test_a_schedule_is_named_and_never_called(traced: bool) -> None:
    class Halving(keras3.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
        calls = 0

        def __call__(self, step: Any) -> Any:
            self.calls += 1
            return 0.5 / 2.0 ** (tf.cast(step, tf.float32) // 10)

    schedule = Halving()
    optimizer, step = training(keras3.optimizers.SGD(schedule))
    calls = schedule.calls
    step = tf.function(step) if traced else step
    for _ in range(4):
        step()
    assert schedule.calls == calls + (1 if traced else 4)
    trace = tracer.trace_of(optimizer)
    assert said(trace) == "Learning rate by Halving."
    (rate,) = trace.data.rates
    assert (rate.schedule, rate.runs) == ("Halving", ())


def test_a_schedule_that_replaces_a_number_ends_what_is_known() -> None:
    optimizer, step = training()
    schedule = keras3.optimizers.schedules.CosineDecay(0.25, 40)
    step(0.5, 0.5, 0.5, schedule, schedule)
    assert runs_of(tracer.trace_of(optimizer), "rate") == [(1, 3, 0.5)]


@pytest.mark.parametrize("kind", ["legacy", "keras2", "keras3"])
def test_a_schedule_of_keras_is_said_with_its_steps(kind: str) -> None:
    """SGD with a gradient of 1 moves the weight by the rate; a count of 9 was restored."""
    schedules = library_of(kind).optimizers.schedules
    weight = tf.Variable([1.0, 2.0])
    for made, text in (
        (schedules.CosineDecay(0.5, 40), "CosineDecay"),
        (schedules.PiecewiseConstantDecay([10, 20], [0.5, 0.25, 0.0]), "PiecewiseConstantDecay"),
    ):
        optimizer = tracer.wrap(optimizer_of(kind, "SGD", made))
        optimizer.iterations.assign(9)
        moves = []
        for _ in range(4):
            before = weight.numpy()[0]
            optimizer.apply_gradients([(tf.ones(2), weight)])
            moves.append(before - weight.numpy()[0])
        trace = tracer.trace_of(optimizer)
        (rate,) = trace.data.rates
        (run,) = rate.runs
        assert rate.schedule == text
        assert (run.first, run.count) == (1, 4)
        np.testing.assert_allclose([run.value, run.last], [moves[0], moves[-1]], rtol=1e-5)
        assert Iterations(9, 13) in trace.optimizers[0].evidence
        optimizer.iterations.assign(2)  # its own count cannot tell what the last step used
        assert tracer.trace_of(optimizer).data.rates[0].runs == ()


def test_legacy_decay_leaves_no_rate_that_the_steps_did_not_use() -> None:
    optimizer, step = training(keras2.optimizers.legacy.SGD(0.5, decay=0.5))
    step()
    step()
    assert not tracer.trace_of(optimizer).data.rates


def test_a_rate_of_a_graph_of_tensorflow_1() -> None:
    """A number is a constant of the graph, also of an optimizer that is gone; a tensor is named."""
    v1 = tf.compat.v1
    with tracer.record() as recording, tf.Graph().as_default(), v1.Session() as session:
        weight = v1.get_variable("weight", initializer=1.0)
        count = v1.get_variable("count", initializer=0, trainable=False)
        decay = v1.train.exponential_decay(0.25, count, 1, 0.5)
        made = v1.train.GradientDescentOptimizer, v1.train.AdamOptimizer
        ops = [
            make(rate).minimize(weight**2) for make, rate in zip(made, (0.25, decay), strict=True)
        ]
        session.run(v1.global_variables_initializer())
        for _ in range(3):
            session.run(ops)
        rates = recording.trace().data.rates
    number = next(each for each in rates if each.runs)
    assert (number.runs, number.looks) == ((RateRun(1, 3, 0.25, 0.25),), 0)  # in all steps
    assert [each.schedule for each in rates if not each.runs] == ["the tensor ExponentialDecay"]
