"""What tracing costs a training step on a GPU: PyTorch, and JAX with optax.

    python benchmarks/gpu.py            # about 5 minutes on a GPU
    python benchmarks/gpu.py --quick    # only whether all steps are counted, on a CPU too

A model of equal layers is trained without the tracer, with it, and with effects, in turn. The
processor waits for the GPU once in 20 steps, as a training loop does now and then: so work of the
tracer costs nothing while the GPU is busy anyway. *Again* is the plain loop a second time, which
shows the noise. Each framework has a process of its own.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any, NamedTuple

import bench
from instructions import installed

import tracer

ROUNDS, STEPS, WARM = 24, 20, 310
"""The tracer looks at the gradients of PyTorch in each of the first 300 steps."""

ARMS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda optimizer: optimizer,
    "again": lambda optimizer: optimizer,
    "traced": tracer.wrap,
    "effects": partial(tracer.wrap, effects=True),
}


class Size(NamedTuple):
    """A model, and what it is trained with."""

    layers: int
    width: int
    batch: int


SIZES = {"small": Size(4, 64, 64), "large": Size(8, 1024, 1024)}


class Loop(NamedTuple):
    """A training loop: a step, and what waits until the GPU has made all of them."""

    step: Callable[[], object]
    wait: Callable[[], object]
    optimizer: Any

    def steps(self, number: int) -> None:
        """Make so many steps."""
        for _ in range(number):
            self.step()
        self.wait()


def of_torch(size: Size, wrap: Callable[[Any], Any], kind: str) -> Loop:
    """Steps of AdamW: eager, fused, compiled into CUDA graphs, or with a loss scale."""
    import torch

    where = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    layers = [torch.nn.Linear(size.width, size.width) for _ in range(size.layers)]
    model = torch.nn.Sequential(*layers).to(where)
    optimizer = wrap(torch.optim.AdamW(model.parameters(), 1e-4, fused=kind == "fused"))
    batch = torch.randn(size.batch, size.width, device=where)
    scaler = torch.amp.GradScaler(where, enabled=kind == "float16")
    half = torch.autocast(where, torch.float16) if kind == "float16" else nullcontext()

    def step() -> None:
        optimizer.zero_grad()
        with half:
            loss = model(batch).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()

    if kind == "reduce-overhead":
        step = torch.compile(step, mode=kind)
    return Loop(step, torch.cuda.synchronize if where == "cuda" else lambda: None, optimizer)


def of_jax(size: Size, wrap: Callable[[Any], Any], kind: str) -> Loop:
    """Steps of `optax.adamw` in one program, one by one or ten in a loop of the program."""
    import jax
    import jax.numpy as jnp
    import optax

    optimizer = wrap(optax.adamw(1e-4))
    shape = size.width, size.width
    keys = jax.random.split(jax.random.key(0), size.layers)
    params: Any = [jax.random.normal(key, shape) / size.width**0.5 for key in keys]
    batch = jax.random.normal(jax.random.key(1), (size.batch, size.width))

    def loss(params: Any) -> Any:
        value = batch
        for each in params:
            value = value @ each
        return jnp.square(value).mean()

    def step(state: Any, _: Any = None) -> Any:
        params, of_optimizer = state
        updates, of_optimizer = optimizer.update(jax.grad(loss)(params), of_optimizer, params)
        return (optax.apply_updates(params, updates), of_optimizer), None

    whole = step if kind == "jit" else lambda state: jax.lax.scan(step, state, length=10)
    compiled = jax.jit(whole, donate_argnums=0)
    held = [(params, optimizer.init(params))]

    def again() -> None:
        held[0], _ = compiled(held[0])

    return Loop(again, lambda: jax.block_until_ready(held[0]), optimizer)


KINDS: dict[str, tuple[Callable[[Size, Any, str], Loop], tuple[str, ...]]] = {
    "torch": (of_torch, ("eager", "fused", "float16", "reduce-overhead")),
    "jax": (of_jax, ("jit", "scan of 10")),
}


def inside(name: str, quick: bool) -> Iterator[list[str]]:
    """The rows of one framework."""
    make, kinds = KINDS[name]
    sizes = {next(iter(SIZES)): Size(2, 8, 8)} if quick else SIZES
    for of, size in sizes.items():
        for kind in kinds:
            if figures := (_quick if quick else _timed)(make, size, kind):
                yield [f"{name}, {kind}", of, *figures]


def _timed(make: Callable[..., Loop], size: Size, kind: str) -> list[str]:
    """The figures of a row; none if two untraced loops differ as much."""
    names = [arm for arm in ARMS if arm != "effects" or make is of_torch]  # optax has none
    loops = {arm: make(size, ARMS[arm], kind) for arm in names}
    steps = STEPS // 10 if kind == "scan of 10" else STEPS
    for each in loops.values():
        each.steps(WARM)
    arms = {arm: bench.timed(partial(each.steps, steps), 1) for arm, each in loops.items()}
    taken = bench.interleaved(arms, ROUNDS)
    plain = bench.spread(each / STEPS for each in taken["plain"])
    again, traced, *effects = (
        bench.spread(1e6 * (a - b) / STEPS for a, b in zip(taken[arm], taken["plain"], strict=True))
        for arm in names[1:]
    )
    if traced.low <= again.high:
        return []
    more = [each.text(0) for each in (traced, *effects)]
    return [f"{1e6 * plain.median:,.0f}", *more, *[""] * (2 - len(more))]


def _quick(make: Callable[..., Loop], size: Size, kind: str) -> list[str]:
    loop = make(size, ARMS["traced"], kind)
    loop.steps(10)
    trace = tracer.trace_of(loop.optimizer)
    return [f"{trace.steps}", "yes" if trace.complete else "; ".join(trace.notes)]


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """What is added to a step; with `quick` how many steps are counted."""
    if arguments.inside:
        for row in inside(arguments.inside, arguments.quick):
            print(json.dumps(row), flush=True)
        sys.exit()
    header = [
        _device(),
        "model",
        "us a step",
        "traced, us more",
        "with effects, us more",
    ]
    if arguments.quick:
        header = ["", "model", "steps", "complete"]
    rows: list[list[str]] = []
    for name in arguments.frameworks or KINDS:
        if installed(name):
            command = [sys.executable, __file__, "--inside", name, *["--quick"] * arguments.quick]
            env = {**os.environ, "KERAS_BACKEND": name, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
            printed = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True).stdout
            rows += map(json.loads, printed.splitlines())
    yield bench.table(header, rows)


def _device() -> str:
    """The name of the GPU; empty without one."""
    if shutil.which("nvidia-smi") is None:
        return ""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout.strip()


def options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("frameworks", nargs="*", help=f"of {', '.join(KINDS)}; without it all")
    parser.add_argument("--inside", help=argparse.SUPPRESS)


if __name__ == "__main__":
    bench.run(__doc__, tables, options)
