"""The parts of JAX that have no public name, each guarded: JAX 0.6 to 0.10.

`jax/_src` moves between versions. What is missing there raises `UnsupportedJax` when this module is
imported, with the name of it, so that nothing is counted wrongly in silence.
"""

import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir, partial_eval

from tracer.errors import UnsupportedOptimizer

try:
    from jax._src import callback as _callback, config as _config, core, sharding_impls
    from jax._src.interpreters.partial_eval import DynamicJaxprTrace
    from jax._src.lib import xla_client
    from jax.extend.core import Primitive

    _trace_context = core.trace_ctx
    _EvalTrace = core.EvalTrace
    _emit = getattr(_callback, "emit_python_callback", None) or mlir.emit_python_callback
except (ImportError, AttributeError) as error:
    raise UnsupportedOptimizer(
        f"cannot count in JAX {jax.__version__}: {error}; tracer knows JAX 0.6 to 0.10"
    ) from error

__all__ = ["Primitive", "ad", "batching", "mlir", "partial_eval"]

_NO_TOKEN = (
    {"returns_token": False} if "returns_token" in inspect.signature(_emit).parameters else {}
)
_UNCACHED = (
    {"cacheable": False}
    if "cacheable" in inspect.signature(mlir.register_lowering).parameters
    else {}
)


def current_trace() -> Any:
    """The program that is being traced on this thread; None in eager mode.

    Below `jax.grad` or `jax.vmap` it is the one around them: what they call runs with it.
    """
    trace: Any = _trace_context.trace
    while not isinstance(trace, _EvalTrace | DynamicJaxprTrace):
        parent = getattr(trace, "parent_trace", None)
        if parent is None:
            break
        trace = parent
    return None if isinstance(trace, _EvalTrace) else trace


def is_plain() -> bool:
    """Whether what is called now is executed now, and once: below no `vmap` or `grad` either."""
    return isinstance(_trace_context.trace, _EvalTrace)


def is_of_outside(value: Any) -> bool:
    """Whether a value is of another program than that which is being traced."""
    return isinstance(value, jax.core.Tracer) and value._trace is not _trace_context.trace


def axis_names() -> tuple[Any, ...]:
    """The named axes around: those of `pmap`, `shard_map` and `vmap(axis_name=...)`."""
    environment = _trace_context.axis_env
    unnamed = getattr(core, "no_axis_name", None)
    return tuple(
        name for name in environment.axis_names() if name is not None and name is not unnamed
    )


def why_not(context: Any) -> str:
    """Why what is being lowered cannot call Python; empty if it can."""
    parameters = context.module_context.lowering_parameters
    if getattr(parameters, "for_export", False):
        return "was exported (jax.export): an exported program calls no Python"
    axes = context.module_context.axis_context
    by_device = isinstance(axes, sharding_impls.SPMDAxisContext)
    if by_device and set(axes.manual_axes) != set(axes.mesh.axis_names):
        return "is in a shard_map over some of the axes of a mesh: XLA calls no Python there"
    return ""


def platforms(context: Any) -> Sequence[str]:
    """What a program is being lowered for: `("cpu",)`."""
    return tuple(context.module_context.platforms)


def call_python(context: Any, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Lower a call of `function` with the operands, which XLA may not drop and gives nothing.

    Where XLA splits a program over devices (GSPMD) it is called on the first of them alone; in a
    `pmap` or a `shard_map`, which say what each device does, on each.
    """
    context = context.replace(avals_in=context.avals_in[: len(operands)])
    result, _, _ = _emit(
        context,
        function,
        None,
        list(operands),
        context.avals_in,
        context.avals_out,
        has_side_effect=True,
        sharding=_where(context),
        **_NO_TOKEN,
    )
    return result


def register_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    """Say how a primitive is lowered, each time anew."""
    mlir.register_lowering(primitive, rule, **_UNCACHED)


def _where(context: Any) -> Any:
    """The sharding of a call of Python, as `debug_callback_lowering` of JAX has it."""
    axes = context.module_context.axis_context
    shardy = _config.use_shardy_partitioner.value
    if isinstance(axes, sharding_impls.SPMDAxisContext):
        if shardy:
            return _callback._get_sdy_array_list_for_callbacks(context.avals_out)
        sharding = xla_client.OpSharding()
        sharding.type = xla_client.OpSharding.Type.MANUAL
        return sharding
    if isinstance(axes, sharding_impls.ShardingContext):
        if shardy:
            first = sharding_impls.SdyArray(
                mesh_shape=(), dim_shardings=(), logical_device_ids=(0,)
            )
            return sharding_impls.SdyArrayList((first,))
        sharding = xla_client.OpSharding()
        sharding.type = xla_client.OpSharding.Type.MAXIMAL
        sharding.tile_assignment_dimensions = [1]
        sharding.tile_assignment_devices = [0]
        return sharding
    return None


def shard_map(function: Callable[..., Any], mesh: Any, everywhere: Any) -> Callable[..., Any]:
    """`function` on each device of a mesh, with arguments and a result that all have alike."""
    make: Any = getattr(jax, "shard_map", None)
    unchecked = {"check_vma": False}
    if make is None:
        from jax.experimental import shard_map as older

        make, unchecked = older.shard_map, {"check_rep": False}
    mapped: Callable[..., Any] = make(
        function, mesh=mesh, in_specs=everywhere, out_specs=everywhere, **unchecked
    )
    return mapped


def function_name(trace: Any) -> str:
    """The name of the function that is being traced; `program` where JAX does not say it."""
    about = getattr(getattr(trace, "frame", None), "debug_info", None)
    described = str(getattr(about, "func_src_info", "") or "")
    return described.partition(" at ")[0] or "program"


def wait_for(array: Any) -> None:
    """Wait until an array is computed; not for one that is gone, or that failed."""
    with suppress(Exception):
        array.block_until_ready()
