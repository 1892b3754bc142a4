"""Where the ops of a counter run on a machine with a GPU, by the kernels that TensorFlow has.

No GPU is needed: the list of kernels says which inputs and outputs an op has in the host's memory.
What an op computes on the GPU and another takes from the host is copied, and the host waits for it.
"""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import tensorflow as tf
from tensorflow.python.framework import kernels

from tracer.backends.tensorflow import compat, effects, ledger as ledgers

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"

if all(each.device_type != "GPU" for each in kernels.get_registered_kernels_for_op("Sum").kernel):
    pytest.skip("this TensorFlow was built without kernels for a GPU", allow_module_level=True)


def in_host_memory(op: Any) -> set[str]:
    """The names of the inputs and outputs that the op's kernel on a GPU has on the host."""
    found = kernels.get_registered_kernels_for_op(op.type).kernel
    for kernel in sorted(found, key=lambda each: each.device_type != "GPU"):
        allowed = {each.name: each.allowed_values.list.type for each in kernel.constraint}
        if kernel.device_type in ("GPU", "DEFAULT") and all(
            op.get_attr(name).as_datatype_enum in types for name, types in allowed.items()
        ):
            return set(kernel.host_memory_arg)
    raise AssertionError(f"{op.type} has no kernel for a GPU")


def names_of(arguments: Any, op: Any) -> list[str]:
    """The name in the op's definition of each of its inputs or outputs."""
    return [
        each.name
        for each in arguments
        for _ in range(op.get_attr(each.number_attr) if each.number_attr else 1)
    ]


def on_host(op: Any, arguments: Any) -> list[bool]:
    names = names_of(arguments, op)
    if "CPU" in op.device or op.type == "Placeholder":
        return [True] * len(names)
    host = in_host_memory(op)
    return [name in host for name in names]


def waited_for(graph: Any) -> Iterator[str]:
    """What is copied from the GPU to the host each time that this graph runs."""
    for op in graph.get_operations():
        takes = on_host(op, op.op_def.input_arg)
        for tensor, host in zip(op.inputs, takes, strict=True):
            made = on_host(tensor.op, tensor.op.op_def.output_arg)[tensor.value_index]
            if host and not made:
                yield f"{tensor.op.type} -> {op.type}"


@pytest.fixture
def graph(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The graph of a step with effects, as it is built for a GPU."""
    variable = tf.Variable(tf.zeros((2, 2)))
    make_variable = compat.make_variable
    monkeypatch.setattr(compat, "make_variable", lambda initial, _: make_variable(initial, "CPU:0"))
    ledger = ledgers.Ledger(GPU, 0)

    @tf.function(autograph=False)
    def step() -> None:
        graph = tf.compat.v1.get_default_graph()
        enclosing = ledger.enclosing_step(graph, lambda: ledger.alone, lambda: True)
        with tf.device(GPU):
            stamp = ledger.begin_step(enclosing)
            own = SimpleNamespace(handle=variable.handle, dtype=variable.dtype, device=GPU)
            held = [effects.Held(0, 0, own, effects.value_of(own))]
            row = effects.row_of(stamp, effects.answers(held))
            ledger.auxiliary(lambda row: None, int(row.shape[0])).write(row)
        ledger.count("block", graph, stamp)

    return step.get_concrete_function().graph


def test_no_step_waits_for_what_the_gpu_computes(graph: Any) -> None:
    assert len(list(graph.get_operations())) > 40
    assert list(waited_for(graph)) == []


def test_what_a_function_is_called_with_is_in_the_memory_of_the_host() -> None:
    """Else it would be copied from the GPU before each step."""
    with tf.device("/cpu:1"):  # as a GPU: another device than that of the host
        assert compat.constant(5).device.endswith("CPU:0")


@pytest.mark.parametrize("compiled", [False, True])
def test_a_gpu_takes_the_same_numbers(compiled: bool) -> None:
    """The ops that stand there for a GPU, on the CPU; XLA ignores the device of an op."""
    clock = ledgers.DeviceClock("CPU:0")
    clock.device = GPU

    @tf.function(autograph=False, jit_compile=compiled)
    def take(numbers: Any) -> Any:
        with tf.device("/device:CPU:1" if compiled else None):
            delta = tf.cast(numbers, tf.uint64)
        return clock.take_in_graph(delta)

    taken = [int(take(tf.constant(numbers))) for numbers in (1, 0, 1, 1, 0)]
    assert taken == [256, 512, 512, 768, 1024]
    assert clock.begun() == 3
