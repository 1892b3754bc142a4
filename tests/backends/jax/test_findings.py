"""What is found of programs for Keras on JAX; `twins/on_keras.py` has those for any backend."""

from typing import Any

import jax
import keras
import pytest
from backends.jax.keras_on_jax import Loop, Odometer, X, Y
from twins.on_keras import model

import tracer
from tracer.findings.rule import Finding
from tracer.model.evidence import Iterations
from tracer.model.records import RateRun

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Keras says some of it, too


class Trained:
    """A loop of the program's own, and what is found of it."""

    def __init__(self) -> None:
        self.optimizer = tracer.wrap(Odometer())
        self.loop = Loop(self.optimizer)

    def run(self, step: Any, batch: int = 8) -> None:
        """One call of a jitted step, waited for."""
        self.loop.state = step(self.loop.state, X[:batch], Y[:batch])
        jax.block_until_ready(self.loop.state)

    @property
    def findings(self) -> list[Finding]:
        """What is found by now."""
        return tracer.trace_of(self.optimizer).findings()


@pytest.mark.parametrize("scale", [False, True])
def test_the_rate_and_the_decay_of_the_steps_in_a_program(scale: bool) -> None:
    """Each step reports its rate; the program sets another one for the second epoch."""
    optimizer = keras.optimizers.AdamW(0.5, weight_decay=0.125)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    around = keras.mixed_precision.LossScaleOptimizer(optimizer) if scale else optimizer
    trained = Loop(tracer.wrap(around)).model
    change = keras.callbacks.LearningRateScheduler(lambda epoch: 0.5 / (1 + epoch))
    for epochs in (2, 1):
        with tracer.record() as recording:
            trained.fit(X[:16], Y[:16], batch_size=8, epochs=epochs, verbose=0, callbacks=[change])
        rates = {each.what: each for each in recording.trace().data.rates}
        last = 0.5 / epochs
        assert rates["rate"].runs == (RateRun(1, 2 * epochs, 0.5, last, epochs),)
        assert rates["decay"].runs == (RateRun(1, 2 * epochs, 0.125, 0.125),)
        names = [each.name.rpartition("/")[2] for each in recording.trace().variables]
        assert [names[each] for each in rates["decay"].variables] == ["kernel", "kernel"]
    (rate, _) = tracer.trace_of(around).data.rates
    assert rate.runs == (RateRun(1, 4, 0.5, 0.25, 2), RateRun(5, 2, 0.5, 0.5)) and not rate.looks


def test_the_first_and_the_last_rate_of_a_schedule() -> None:
    """They are unknown in a loop of one's own, where the count is in the state."""
    optimizer = keras.optimizers.SGD(keras.optimizers.schedules.PolynomialDecay(0.5, 4, 0.0))
    loop = Loop(tracer.wrap(optimizer))
    loop.step(loop.state, X[:8], Y[:8])
    (rate,) = tracer.trace_of(optimizer).data.rates
    assert (rate.schedule, rate.runs) == ("PolynomialDecay", ())
    loop.model.fit(X[:16], Y[:16], batch_size=4, verbose=0)
    (rate,) = tracer.trace_of(optimizer).data.rates
    assert (rate.schedule, rate.runs) == ("PolynomialDecay", (RateRun(1, 5, 0.5, 0.125, 2),))


def test_a_state_that_is_dropped() -> None:
    trained = Trained()
    step, state = jax.jit(trained.loop.step), trained.loop.state
    for _ in range(6):
        trained.run(step)
        trained.loop.state = (trained.loop.state[0], state[1])
    assert float(trained.loop.state[0][0][0, 0]) == 6  # the weights go on
    (finding,) = trained.findings
    assert (finding.code, finding.severity) == ("optimizer-renewed", "warning")
    assert "started from zero in each of 6 steps" in finding.text
    assert Iterations(0, 1) in tracer.trace_of(trained.optimizer).optimizers[0].evidence


def test_a_batch_of_another_size_each_time() -> None:
    """Also where arrays that stay as they are follow the batch."""
    trained = Trained()

    @jax.jit
    def step(x: Any, y: Any, state: Any) -> Any:
        return trained.loop.step(state, x, y)

    for batch in range(3, 9):
        trained.run(lambda state, x, y: step(x, y, state), batch)
    (finding,) = trained.findings
    assert (finding.code, finding.severity, finding.step) == ("retraced", "warning", 2)
    assert "step was traced again 5 times, first after step 1 or so" in finding.text
    assert "when x: float32[3, 4] became float32[4, 4]; y: float32[3, 1] became" in finding.text
    assert "by the call in tests/backends/jax/test_findings.py" in finding.text.replace("\\", "/")
    trace = tracer.trace_of(trained.optimizer)
    assert [each.tracings for each in trace.graphs] == [1] * 6
    details = [each.detail for each in trace.graphs]
    assert details[1] == "x: float32[3, 4] -> float32[4, 4]; y: float32[3, 1] -> float32[4, 1]"
    assert not details[0]


def test_a_smaller_last_batch_is_good_to_know() -> None:
    optimizer = tracer.wrap(Odometer())
    trained = model(optimizer)
    trained.fit(X[:10, :3], Y[:10], batch_size=4, epochs=2, verbose=0)
    (finding,) = tracer.trace_of(optimizer).findings()
    assert (finding.code, finding.severity) == ("retraced", "info")
    assert "train_step was traced again after" in finding.text


def test_a_number_of_python_in_place_of_an_array() -> None:
    trained = Trained()

    @jax.jit
    def step(state: Any, x: Any, y: Any, rate: Any) -> Any:
        return trained.loop.step(state, x * rate, y)

    for rate in (1.0, jax.numpy.float32(1.0)):
        trained.run(lambda *given: step(*given, rate))  # noqa: B023
    detail = tracer.trace_of(trained.optimizer).graphs[1].detail
    assert detail == "rate: float32[] of Python -> float32[]"


def test_branches_of_an_eager_step_are_fine() -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(tracer.wrap(Odometer()), initial_scale=4.0)
    tracer.wrap(optimizer)
    eager = model(optimizer)
    eager.compile(optimizer, "mse", jit_compile=False)
    eager.fit(X[:, :3], Y, batch_size=8, verbose=0)
    assert not tracer.trace_of(optimizer).findings()
