"""One of two processes that train with optax: `optax_processes.py RANK PORT FOLDER`.

Each has two devices. Every case is a training of its own, traced into a folder of its own, or not
traced where there is no FOLDER (`-`). Each process prints JSON: how often the weights of its first
device moved in each case, and all bits of what Adam trained over both processes.
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax  # noqa: E402

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402
from jax.sharding import Mesh, NamedSharding, PartitionSpec  # noqa: E402

import tracer  # noqa: E402

DATA, ALL = PartitionSpec("data"), PartitionSpec()
MESH = Mesh(np.array(jax.devices()), ("data",))
CROSSED = Mesh(np.array(jax.devices()).reshape(2, 2).T.ravel(), ("data",))
BACKWARDS = Mesh(np.array(jax.devices())[::-1], ("data",))
HERE = Mesh(np.array(jax.local_devices()), ("data",))


def over(mesh: Any, spec: Any, shape: tuple[int, ...] = (4,), seed: int | None = None) -> Any:
    """An array over the devices of a mesh: zeros, or random numbers."""
    random = np.zeros(shape) if seed is None else np.random.default_rng(seed).normal(size=shape)
    values = random.astype("float32")
    sharding = NamedSharding(mesh, spec)
    return jax.make_array_from_callback(shape, sharding, lambda index: values[index])


def wrap(case: str, tx: Any) -> Any:
    """The transformation, traced if there is a folder for it."""
    traced[case] = tx if folder == "-" else tracer.wrap(tx)
    return traced[case]


def steps(case: str, weights: Any, jit: Callable[..., Any], times: int = 5) -> Any:
    """How often the weights moved that a function, jitted in some way, moves by 1 in each step."""
    tx = wrap(case, optax.sgd(1.0))
    return moved(jit(move(tx)), weights, times)


def move(tx: Any) -> Callable[[Any], Any]:
    """A step that adds 1 to the weights."""
    return lambda w: optax.apply_updates(w, tx.update(-jnp.ones_like(w), tx.init(w))[0])


def moved(step: Any, weights: Any, times: int) -> float:
    for _ in range(times):
        weights = step(weights)
    return float(np.ravel(weights.addressable_data(0))[0])


def mapped(mesh: Any) -> Callable[[Any], Any]:
    return lambda step: jax.jit(jax.shard_map(step, mesh=mesh, in_specs=DATA, out_specs=DATA))


def twice(step: Any) -> Any:
    return jax.jit(lambda w: jax.lax.scan(lambda c, _: (step(c), None), w, None, length=2)[0])


def with_cond(step: Any) -> Any:
    return jax.jit(lambda w: jax.lax.cond(w.sum() < 12, step, lambda w: w, w))


def last_never() -> list[float]:
    """How often the weights of each device move, if the last device of all takes no step."""
    step = move(wrap("last_never", optax.sgd(1.0)))

    def local(w: Any) -> Any:
        return jax.lax.cond(jax.lax.axis_index("data") < 3, step, lambda w: w, w)

    jitted, w = mapped(MESH)(local), over(MESH, DATA)
    for _ in range(4):
        w = jitted(w)
    return [float(each.data[0]) for each in w.addressable_shards]


def accumulated_on_one() -> float:
    """Each second step of six is kept, in a `shard_map` over one device of each process alone."""
    tx = wrap("accumulated_on_one", optax.MultiSteps(optax.sgd(1.0), 2))
    mesh = Mesh(np.array(jax.local_devices()[:1]), ("data",))

    def step(w: Any, state: Any) -> Any:
        updates, state = tx.update(-jnp.ones_like(w), state, w)
        return optax.apply_updates(w, updates), state

    both = (ALL, ALL)
    jitted = jax.jit(jax.shard_map(step, mesh=mesh, in_specs=both, out_specs=both))
    w, state = jnp.zeros(4), tx.init(jnp.zeros(4))
    for _ in range(6):
        w, state = jitted(w, state)
    return float(w[0])


def alone_then_together() -> float:
    """The second process takes 3 steps alone, then both take 5 in one program."""
    step = jax.jit(move(wrap("alone_then_together", optax.sgd(1.0))))
    alone = moved(step, jnp.zeros(4), 3) if rank else 0.0
    return alone + moved(step, over(MESH, DATA), 5)


def reordered() -> float:
    """Three steps, and two more over the same devices in another order."""
    step = jax.jit(move(wrap("reordered", optax.sgd(1.0))))
    return moved(step, over(MESH, DATA), 3) + moved(step, over(BACKWARDS, DATA), 2)


def adam() -> str:
    """The bits of weights that are split both ways, whose arrays are given away in each step."""
    tx = wrap("adam", optax.chain(optax.clip_by_global_norm(1.0), optax.adam(0.1)))
    mesh = Mesh(np.array(jax.devices()).reshape(2, 2), ("data", "model"))
    split = {"kernel": PartitionSpec("data", "model"), "bias": PartitionSpec("model")}
    params = {
        "kernel": over(mesh, split["kernel"], (8, 6), seed=1),
        "bias": over(mesh, split["bias"], (6,), seed=2),
    }
    x = over(mesh, PartitionSpec("data"), (16, 8), seed=3)

    def loss(params: Any, x: Any) -> Any:
        return ((jnp.tanh(x @ params["kernel"] + params["bias"]) - 1) ** 2).mean()

    def step(params: Any, state: Any, x: Any) -> Any:
        updates, state = tx.update(jax.grad(loss)(params, x), state, params)
        return optax.apply_updates(params, updates), state

    jitted, state = jax.jit(step, donate_argnums=(0, 1)), jax.jit(tx.init)(params)
    for _ in range(20):
        params, state = jitted(params, state, x)
    kernel, bias = params["kernel"], params["bias"]
    assert kernel.addressable_data(0).shape == (4, 3) and bias.addressable_data(0).shape == (3,)
    shards = [
        each.data
        for tree in (params, state)
        for leaf in jax.tree.leaves(tree)
        for each in leaf.addressable_shards
    ]
    return hashlib.sha256(b"".join(np.asarray(each).tobytes() for each in shards)).hexdigest()


traced: dict[str, Any] = {}
print(
    json.dumps(
        {
            "alone_then_together": alone_then_together(),
            "split": steps("split", over(MESH, DATA), jax.jit),
            "copied": steps("copied", over(MESH, ALL), jax.jit),
            "crossed": steps("crossed", over(CROSSED, DATA), jax.jit),
            "scanned": steps("scanned", over(MESH, DATA), twice),
            "branch": steps("branch", over(MESH, DATA), with_cond),
            "shard_map": steps("shard_map", over(MESH, DATA), mapped(MESH)),
            "pmap": steps("pmap", jnp.zeros((2, 4)), jax.pmap),
            "here": steps("here", over(HERE, DATA), jax.jit, 5 + rank),
            "here_in_shard_map": steps("here_in_shard_map", over(HERE, DATA), mapped(HERE)),
            "on_one_device": steps("on_one_device", jnp.zeros(4), jax.jit),
            "eager": steps("eager", over(MESH, DATA), lambda step: step),
            "last_never": last_never(),
            "accumulated_on_one": accumulated_on_one(),
            "reordered": reordered(),
            "adam": adam(),
        }
    )
)
if folder != "-":
    for case, tx in traced.items():
        (Path(folder) / case).mkdir(exist_ok=True)
        tracer.trace_of(tx).save(f"{folder}/{case}/{rank}.json")
