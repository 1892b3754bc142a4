"""How many instructions of the processor tracing adds to a step, on each framework.

    python benchmarks/instructions.py                    # about 10 minutes; needs valgrind
    python benchmarks/instructions.py --quick torch      # only whether all updates are counted
    python benchmarks/instructions.py --check            # fails if tracing adds 10 % more
    python benchmarks/instructions.py --store            # stores the figures for later checks

Each framework that is installed has a process of its own, under `valgrind --tool=callgrind`, with
one thread. So the figures are nearly the same each time, however busy the machine is. What the
tracer does only in the first steps is over before the count begins.
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import bench

import tracer

SIZES = (2, 40)
"""How many variables of 8 x 8 there are."""

WARM, COUNTED = 320, 64
"""How many steps come first, and how many are counted. The tracer looks at its counters in one of
64 steps, and at the gradients of PyTorch in each of the first 300."""


STORED = Path(__file__).with_suffix(".json")
"""The instructions that tracing added to each work, for each of `SIZES`, when they were stored."""

ALARM = 1.1
"""How many times the stored instructions tracing may add."""


class Work(NamedTuple):
    """A step that trains all variables."""

    name: str
    variables: int
    step: Callable[[], object]
    optimizer: Any


Wrap = Callable[[Any], Any]


def of_tensorflow(wrap: Wrap, number: int) -> Iterator[Work]:
    """A train function with its gradients, and eager steps of gradients that are there."""
    import keras
    import tensorflow as tf
    import tf_keras
    from tensorflow.python.eager import context

    def variables() -> list[Any]:
        return [keras.Variable(tf.zeros((8, 8))) for _ in range(number)]

    trained, optimizer = variables(), wrap(keras.optimizers.SGD(0.01))

    @tf.function(autograph=False)  # type: ignore[untyped-decorator]
    def train_step() -> None:
        with tf.GradientTape() as tape:
            loss = tf.add_n([tf.reduce_sum(each.value) for each in trained])
        gradients = tape.gradient(loss, [each.value for each in trained])
        optimizer.apply_gradients(zip(gradients, trained, strict=True))

    def in_turn() -> None:  # one op after the other, on this thread
        with context.function_executor_type("SINGLE_THREADED_EXECUTOR"):
            train_step()

    yield Work("Keras on TensorFlow, `tf.function`", number, in_turn, optimizer)
    eager = wrap(keras.optimizers.SGD(0.01))
    pairs = [(tf.ones((8, 8)), each) for each in variables()]
    yield Work(
        "Keras on TensorFlow, eager", number, lambda: eager.apply_gradients(list(pairs)), eager
    )
    legacy = wrap(tf_keras.optimizers.legacy.SGD(0.01))
    own = [(gradient, tf.Variable(tf.zeros((8, 8)))) for gradient, _ in pairs]
    yield Work(
        "`tf_keras` legacy, eager", number, lambda: legacy.apply_gradients(list(own)), legacy
    )


def of_jax(wrap: Wrap, number: int) -> Iterator[Work]:
    """A jitted step of Keras, one of optax, and one of optax without `jax.jit`."""
    import jax
    import jax.numpy as jnp
    import keras
    import optax

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    gradients = [jnp.ones((8, 8)) for _ in range(number)]

    def work(name: str, optimizer: Any, step: Callable[..., Any], *state: Any) -> Work:
        held = [state]

        def again() -> None:
            held[0] = jax.block_until_ready(step(*held[0]))

        return Work(name, number, again, optimizer)

    adam = wrap(keras.optimizers.Adam(0.001))
    variables = [keras.Variable(each) for each in gradients]
    adam.build(variables)

    def keras_step(weights: Any, slots: Any) -> Any:
        return adam.stateless_apply(slots, gradients, weights)

    slots = [each.value for each in adam.variables]
    yield work("Keras on JAX, `jax.jit`", adam, jax.jit(keras_step), gradients, slots)
    for name, compiled in (("optax, `jax.jit`", jax.jit), ("optax, eager", lambda step: step)):
        yield optax_work(name, wrap(optax.adam(0.001)), compiled, gradients, work)


def optax_work(name: str, tx: Any, compiled: Wrap, gradients: Any, work: Any) -> Work:
    """A step of a transformation."""
    import optax

    def step(params: Any, state: Any) -> Any:
        updates, state = tx.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    made: Work = work(name, tx, compiled(step), gradients, tx.init(gradients))
    return made


def of_torch(wrap: Wrap, number: int) -> Iterator[Work]:
    """A step of gradients that are there, and one with their backward pass."""
    import torch

    torch.set_num_threads(1)

    def optimizer() -> Any:
        return wrap(torch.optim.SGD([torch.nn.Parameter(torch.zeros(8, 8)) for _ in range(number)]))

    alone, trained = optimizer(), optimizer()
    for each in alone.param_groups[0]["params"]:
        each.grad = torch.ones_like(each)
    yield Work("`torch.optim`, the step alone", number, alone.step, alone)
    parameters = trained.param_groups[0]["params"]

    def train_step() -> None:
        trained.zero_grad()
        torch.stack([each.sum() for each in parameters]).sum().backward()
        trained.step()

    yield Work("`torch.optim`, with the backward pass", number, train_step, trained)


def of_keras_torch(wrap: Wrap, number: int) -> Iterator[Work]:
    """An eager step of Keras's SGD, which updates all variables by one call."""
    import keras
    import torch

    torch.set_num_threads(1)
    variables = [keras.Variable(torch.zeros(8, 8)) for _ in range(number)]
    gradients = [torch.ones(8, 8) for _ in variables]
    optimizer = wrap(keras.optimizers.SGD(0.01))

    def step() -> None:
        with torch.no_grad():
            optimizer.apply(gradients, variables)

    yield Work("Keras on PyTorch, eager", number, step, optimizer)


FRAMEWORKS: dict[str, tuple[Callable[[Wrap, int], Iterator[Work]], tuple[str, ...]]] = {
    "tensorflow": (of_tensorflow, ("tensorflow", "keras", "tf_keras")),
    "jax": (of_jax, ("jax", "keras", "optax")),
    "torch": (of_torch, ("torch",)),
    "keras_torch": (of_keras_torch, ("torch", "keras")),
}
"""The works of each framework, and the packages that they need."""


def installed(name: str) -> bool:
    """True if there is all that the works of this framework need."""
    return all(importlib.util.find_spec(each) for each in FRAMEWORKS[name][1])


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """A row for each work; with `quick` of the updates that were counted."""
    if arguments.inside:
        (inside if arguments.quick else under_valgrind)(arguments.inside)
        sys.exit()
    names = [name for name in arguments.frameworks or FRAMEWORKS if installed(name)]
    rows: list[list[str]]
    if arguments.quick:
        header = ["a step", "variables", "counted", "updates"]
        printed = (_process(name, "--quick").communicate()[0] for name in names)
        rows = [line.split(" | ") for each in printed for line in each.splitlines()]
    else:
        header = ["a step", *(each for n in SIZES for each in (f"with {n} variables", "added"))]
        figures: dict[str, list[str]] = {}
        for work, *counts in (row for name in names for row in counted(name)):
            figures.setdefault(work, []).extend(counts)
        rows = [[work, *counts] for work, counts in figures.items()]
        stored = json.loads(STORED.read_text()) if STORED.exists() else {}
        added = {work: [int(n.replace(",", "")) for n in counts[1::2]] for work, *counts in rows}
        if arguments.store:
            STORED.write_text(json.dumps(stored | added, indent=1) + "\n")
        slower = [*more_than_stored(added, stored)] if arguments.check else []
    yield bench.table(header, rows)
    if not arguments.quick and slower:
        raise SystemExit("\n".join(slower))


def more_than_stored(
    added: Mapping[str, Sequence[int]], stored: Mapping[str, Sequence[int]]
) -> Iterator[str]:
    """Yield a line for each work to which tracing adds more instructions than `ALARM` allows.

    >>> [*more_than_stored({"a step": [109, 111]}, {"a step": [100, 100]})]
    ['a step, 40 variables: 111 instructions added, stored are 100']
    """
    for work, counts in added.items():
        for number, count, before in zip(SIZES, counts, stored.get(work, counts), strict=True):
            if count > ALARM * before:
                what = f"{work}, {number} variables"
                yield f"{what}: {count:,} instructions added, stored are {before:,}"


def _process(name: str, *options: str, before: Sequence[str] = ()) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*before, sys.executable, __file__, "--inside", name, *options],
        env={**os.environ, "KERAS_BACKEND": name.rpartition("_")[2]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL if before else None,
        text=True,
    )


def inside(name: str) -> None:
    """Print what is counted in some steps of each work, and what arithmetic says."""
    for number in SIZES:
        for work in FRAMEWORKS[name][0](tracer.wrap, number):
            for _ in range(8):
                work.step()
            print(
                work.name, number, tracer.trace_of(work.optimizer).updates(), 8 * number, sep=" | "
            )


def under_valgrind(name: str) -> None:
    """Run each work, untraced and traced, and wait for a line before and after what is counted."""
    for number in SIZES:
        arms = [FRAMEWORKS[name][0](wrap, number) for wrap in (lambda it: it, tracer.wrap)]
        for pair in zip(*arms, strict=True):
            for work in pair:
                for _ in range(WARM):
                    work.step()
                print("ready", flush=True)
                sys.stdin.readline()
                for _ in range(COUNTED):
                    work.step()
                print("done", work.name, sep=" | ", flush=True)
                sys.stdin.readline()


def counted(name: str) -> Iterator[list[str]]:
    """The rows of a framework: the instructions of a step, and those that tracing adds."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "callgrind.out"
        valgrind = ["valgrind", "-q", "--tool=callgrind", "--instr-atstart=no"]
        process = _process(name, before=[*valgrind, f"--callgrind-out-file={out}"])
        assert process.stdin is not None
        assert process.stdout is not None
        counts: list[int] = []
        for line in process.stdout:
            what, *about = line.strip().split(" | ")
            if what == "ready":
                _control(process.pid, "--instr=on")
            elif what == "done":
                _control(process.pid, "--dump")
                _control(process.pid, "--instr=off")
                dump = Path(f"{out}.{len(counts) + 1}").read_text()
                (total,) = (each for each in dump.splitlines() if each.startswith("totals:"))
                counts.append(round(int(total.split()[1]) / COUNTED))
                if len(counts) % 2 == 0:
                    plain, traced = counts[-2:]
                    yield [*about, f"{plain:,}", f"{traced - plain:,}"]
            else:
                continue
            process.stdin.write("\n")
            process.stdin.flush()
        if process.wait():
            raise RuntimeError("valgrind failed: is it installed?")


def _control(pid: int, what: str) -> None:
    command = ["callgrind_control", what, str(pid)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=", ".join(FRAMEWORKS))
    parser.add_argument("--check", action="store_true", help="fail if tracing adds 10 %% more")
    parser.add_argument("--store", action="store_true", help="store the figures")
    parser.add_argument("--inside", help=argparse.SUPPRESS)


if __name__ == "__main__":
    bench.run(__doc__, tables, _options)
