"""The benchmarks: their exact figures hold, and each script starts and prints its table."""

from pathlib import Path

import files
import pytest
import tensorflow as tf
import tf_keras
from support.scripts import output_of

import tracer
from tracer.model import tracefile

OPS_OF_A_BLOCK = 37


def printed(name: str, *arguments: str) -> list[list[str]]:
    """The rows of all tables that a benchmark prints, without their headers."""
    page = output_of(f"benchmarks/{name}.py", *arguments)
    assert f"Printed by `python benchmarks/{name}.py" in page
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("|")
    ]
    heads = [place - 1 for place, row in enumerate(rows) if set("".join(row)) <= {"-", ":"}]
    assert heads, page
    return [row for place, row in enumerate(rows) if {place, place - 1}.isdisjoint(heads)]


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


def graph_of(count: int, replicas: int = 1, *, traced: bool = True) -> tuple[int, int]:
    """The ops of a train function with so many variables, and the captured bytes."""
    strategy = tf.distribute.get_strategy()
    if replicas > 1:
        devices = [f"cpu:{index}" for index in range(replicas)]
        strategy = tf.distribute.MirroredStrategy(devices, tf.distribute.ReductionToOneDevice())
    with strategy.scope():
        variables = [tf.Variable([1.0, 2.0]) for _ in range(count)]
        optimizer = tf_keras.optimizers.legacy.SGD(0.01)
    if traced:
        tracer.wrap(optimizer)

    @tf.function  # type: ignore[untyped-decorator]
    def train_step() -> None:
        pairs = [(tf.ones(2), variable) for variable in variables]
        strategy.run(lambda: optimizer.apply_gradients(pairs))

    concrete = train_step.get_concrete_function()
    definition = concrete.graph.as_graph_def()
    ops = len(definition.node) + sum(len(each.node_def) for each in definition.library.function)
    handles = [each._handle_data for each in concrete.captured_inputs if each.dtype == tf.resource]
    captured = [part for data in handles if data for part in data.shape_and_type]
    sizes = (
        tf.TensorShape(p.shape).num_elements() * tf.dtypes.as_dtype(p.dtype).size for p in captured
    )
    return ops, sum(sizes)


@pytest.mark.sweep
def test_a_graph_has_one_counter_on_each_replica_for_any_number_of_variables() -> None:
    def added(count: int, replicas: int = 1) -> tuple[int, int]:
        plain, traced = (graph_of(count, replicas, traced=each) for each in (False, True))
        return traced[0] - plain[0], traced[1] - plain[1]

    ops, size = added(4)
    assert 0 < ops <= OPS_OF_A_BLOCK
    assert size < 300_000
    assert added(100) == (ops, size)
    assert added(4, replicas=2) == (2 * ops, 2 * size)


@pytest.mark.sweep
def test_every_update_is_counted() -> None:
    rows = printed("instructions", "--quick", "tensorflow")
    assert len(rows) == 6
    assert all(0 < number(counted) == number(updates) for *_, counted, updates in rows)


@pytest.mark.sweep
def test_each_step_of_the_benchmark_for_a_gpu_is_counted() -> None:
    for name, _, made, complete in printed("gpu", "--quick"):
        assert (number(made), complete) == (100 if "scan of 10" in name else 10, "yes")


# Files, without TensorFlow and without another process.


def test_a_file_grows_with_the_changes_and_not_with_the_steps(tmp_path: Path) -> None:
    def size(steps: int, skips: bool) -> int:
        tracefile.save(files.trace(steps, skips=skips), tmp_path / "trace.json")
        return (tmp_path / "trace.json").stat().st_size

    assert size(10**8, False) - size(10**3, False) < 100  # longer numbers
    assert 0 < size(10**6, True) - size(10**4, True) < 25 * 10**4  # bytes for each run
