"""The JAX primitive `count`: each execution calls Python once, with the numbers of that execution.

It declares no JAX *effect*. `jax.debug.callback` and `io_callback` declare one, and any effect
disables the C++ fast path of `jax.jit`: about 30 us for each array passed in or out (`pjit.py`,
`_get_fastpath_data`). Instead

- a rule for dead code marks it as used, although it has no results (`dce_rules`);
- it is lowered to a call with a side effect, which XLA neither drops nor merges with an equal one;
- under `vmap` one call gets a row of numbers for each member;
- under `jax.checkpoint` it counts the first computation, not the recomputation;
- where JAX splits a differentiated loop, the trace has a note (`custom_partial_eval_rules`).

In loops and branches it runs as often as they do. XLA calls Python on a thread of its own, which
holds the GIL; the callback must not call JAX.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tracer.backends.jax import compat

ALL_MEMBERS = (
    "a step under vmap is in a branch or a loop that only some members take: vmap runs it for "
    "all members, so it is counted for all"
)
DIFFERENTIATED = "a step in a differentiated loop is not counted: differentiate each step"
RECOMPUTED = (
    "a step is in a function that jax.checkpoint computes again: the first run is counted, "
    "although JAX may have dropped it if only the gradient is used"
)
SPLIT = (
    "a step is in a program over several devices, which may be those of several processes: only "
    "the process with the first device counts it"
)

Arrays = Sequence[jax.Array]

_count = compat.Primitive("tracer_count")
_count.multiple_results = True


def count(
    counted: Any, *numbers: jax.typing.ArrayLike, auxiliary: Sequence[jax.Array] = ()
) -> None:
    """Call `counted.ran` with a row of these integers at each execution.

    The row is one array, because each argument of a call costs as much as the call; a number may be
    an array of several. `counted.doubt` gets the reason why executions may differ from the reports.
    In eager mode, an execution is now, after waiting for the numbers; else whenever the traced
    program runs. The `auxiliary` arrays make a `vmap` visible, so the number of members is known.
    They are not passed to Python, and XLA's program does not use them, so it is compiled the same
    way.
    """
    row = jnp.concatenate([jnp.ravel(jnp.asarray(number, jnp.int32)) for number in numbers])
    _count.bind(row, *auxiliary, counted=counted)


def _abstract(*operands: object, **parameters: object) -> Sequence[object]:
    return []


def _used(*arguments: Any) -> tuple[list[bool], jax.extend.core.JaxprEqn]:
    """Mark the op as used; JAX 0.12 passes one argument more, before the equation."""
    equation = arguments[-1]
    return [True] * len(equation.invars), equation


def _differentiate(
    primals: Arrays, tangents: Arrays, **parameters: object
) -> tuple[Arrays, Arrays]:
    return _count.bind(*primals, **parameters), []


def _transpose(cotangents: Arrays, *operands: object, **parameters: object) -> list[None]:
    """Count nothing: a transposed program (`jax.linear_transpose`) runs no step."""
    return [None] * len(operands)


def _batch(
    operands: Arrays, dimensions: Sequence[int | None], *, counted: Any
) -> tuple[Arrays, Arrays]:
    """Count one execution for each member of the batch, all in one call with a row for each."""
    if compat.is_for_some_members():
        counted.doubt(ALL_MEMBERS)
    size = next(
        operand.shape[dimension]
        for operand, dimension in zip(operands, dimensions, strict=True)
        if dimension is not None
    )
    row, dimension = operands[0], dimensions[0]
    if dimension is None:
        rows = jnp.broadcast_to(row, (size, *row.shape))
    else:
        rows = jnp.moveaxis(row, dimension, 0)
    _count.bind(rows, *operands[1:], counted=counted)
    return [], []


def _once(
    saveable: Callable[..., object],
    unknown: Sequence[bool],
    instantiated: Sequence[bool],
    equation: jax.extend.core.JaxprEqn,
) -> tuple[object, ...]:
    """Count the first computation only, not the recomputation by `jax.checkpoint`.

    JAX silently drops the first computation where only the gradient of a loop, a branch or a jitted
    function is used.
    """
    equation.params["counted"].doubt(RECOMPUTED)
    if not any(unknown):
        return equation, None, [], [], []
    left = [v for v, there in zip(equation.invars, instantiated, strict=True) if not there]
    return None, equation, [], [], left


def _split(trace: Any, *tracers: Any, **parameters: Any) -> object:
    """Count what JAX computes early; it drops ops without results that stay for later."""
    if not all(each.pval.is_known() for each in tracers):
        parameters["counted"].doubt(DIFFERENTIATED)
    return trace.default_process_primitive(_count, tracers, parameters)


def _run(row: jax.Array, *auxiliary: jax.Array, counted: Any) -> Arrays:
    """Call Python directly in eager mode."""
    counted.ran(np.asarray(row))
    return []


def _lower(context: Any, *operands: object, counted: Any) -> Any:
    if why := compat.why_not(context):
        counted.doubt(why)
        return []
    if compat.may_be_split(context):
        counted.doubt(SPLIT)
    if compat.is_for_some_members():
        counted.doubt(ALL_MEMBERS)
    platform = context.module_context.platforms[0]
    if platform not in ("cpu", "cuda"):
        counted.doubt(f"counting on {platform} is not tested: check the counts by other means")

    def ran(row: object) -> tuple[()]:
        counted.ran(row)
        return ()

    return compat.call_python(context, ran, operands[0])


_count.def_impl(_run)
_count.def_abstract_eval(_abstract)
compat.ad.primitive_jvps[_count] = _differentiate
compat.ad.primitive_transposes[_count] = _transpose
compat.batching.primitive_batchers[_count] = _batch
compat.partial_eval.dce_rules[_count] = _used
compat.partial_eval.partial_eval_jaxpr_custom_rules[_count] = _once
compat.partial_eval.custom_partial_eval_rules[_count] = _split
compat.mlir.register_lowering(_count, _lower, cacheable=False)
