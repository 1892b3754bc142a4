"""One of two processes that train with optax: `optax_processes.py RANK PORT FOLDER`.

The second one takes 3 steps alone, then both take 5 steps in one program that XLA splits over them.
Each process prints how often its weights moved.
"""

import sys

rank, port, folder = int(sys.argv[1]), sys.argv[2], sys.argv[3]

import jax  # noqa: E402

jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"127.0.0.1:{port}", 2, rank)

import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import optax  # noqa: E402

import tracer  # noqa: E402

tx = tracer.wrap(optax.sgd(1.0))
step = jax.jit(lambda w: optax.apply_updates(w, tx.update(-jnp.ones_like(w), tx.init(w))[0]))
moved = 0.0
if rank:
    alone = jnp.zeros(4)
    for _ in range(3):
        alone = step(alone)
    moved += float(alone[0])
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("data",))
halves = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
together = jax.make_array_from_callback((4,), halves, lambda _: np.zeros(1, "float32"))
for _ in range(5):
    together = step(together)
moved += float(np.asarray(together.addressable_data(0))[0])
tracer.trace_of(tx).save(f"{folder}/{rank}.json")
print(moved)
