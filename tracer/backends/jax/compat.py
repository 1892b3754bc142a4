"""The private names of JAX 0.10 to 0.12 that other modules use, each guarded.

`jax/_src` changes between versions. If a name is missing, importing this module raises
`UnsupportedOptimizer` with that name, so that nothing is miscounted silently.

Python does not see calls of a jitted function that has a program. But while a step is traced, JAX's
trace has the outermost function and each of its arguments: see `arguments_of`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from types import FrameType
from typing import Any

import jax
from jax.interpreters import ad, batching, mlir, partial_eval

from tracer.core.call_paths import frames_from
from tracer.errors import UnsupportedOptimizer

try:
    from jax._src import (
        ad_checkpoint as _checkpoint,
        callback as _callback,
        core,
        sharding_impls,
    )
    from jax._src.interpreters import partial_eval as _partial_eval
    from jax._src.interpreters.partial_eval import DynamicJaxprTrace
    from jax.extend.core import Primitive

    _trace_context = core.trace_ctx
    _EvalTrace = core.EvalTrace
    _emit, _sharding_of = _callback.emit_python_callback, _callback._callback_op_sharding
    _traced: list[Any] = [_partial_eval.trace_to_jaxpr]
    if hasattr(_checkpoint, "_trace_to_jaxpr"):
        _traced.append(_checkpoint._trace_to_jaxpr)
except (ImportError, AttributeError) as error:
    raise UnsupportedOptimizer(
        f"cannot count in JAX {jax.__version__}: {error}; tracer knows JAX 0.10 to 0.12"
    ) from error

__all__ = ["Primitive", "ad", "batching", "mlir", "partial_eval"]


def _with_parents(trace: Any) -> Iterator[core.Trace]:
    """A trace of JAX and those around it, innermost first."""
    while trace is not None:
        yield trace
        trace = getattr(trace, "parent_trace", None)


def current_trace() -> DynamicJaxprTrace | None:
    """The program being traced on this thread; None in eager mode.

    Inside `jax.grad` or `jax.vmap`, it is the program around them, which runs their work.
    """
    traces = [*_with_parents(_trace_context.trace)]
    programs = (each for each in traces if isinstance(each, _EvalTrace | DynamicJaxprTrace))
    found = next(programs, traces[-1])
    return None if isinstance(found, _EvalTrace) else found


def is_plain() -> bool:
    """True if calls run now, and once: outside any program, `vmap` and `grad`."""
    return isinstance(_trace_context.trace, _EvalTrace)


def is_for_some_members() -> bool:
    """True if JAX batches a branch or a loop that some members of the batch do not take.

    It then runs for all members. `_cond_batching_rule` knows it, which calls the rules of ops in
    the branch, and `_while_lowering`.
    """
    rules = (*calls_of("_cond_batching_rule"), *calls_of("_while_lowering"))
    return any("in_batched" in each.f_locals or each.f_locals.get("batched") for each in rules)


def calls_of(function: str) -> Iterator[FrameType]:
    """The frames of this thread that execute functions of this name."""
    return (each for each in frames_from(sys._getframe(1)) if each.f_code.co_name == function)


def is_mapped_eagerly() -> bool:
    """True inside a `shard_map` that is not compiled, which drops ops without results."""
    return type(current_trace()).__name__ == "ShardMapTrace"


def axis_names() -> tuple[Hashable, ...]:
    """The named axes of the enclosing `pmap`, `shard_map` and `vmap(axis_name=...)`."""
    unnamed = None, getattr(core, "no_axis_name", None)
    return tuple(each for each in _trace_context.axis_env.axis_names() if each not in unnamed)


def why_not(context: mlir.LoweringRuleContext) -> str:
    """Why the program being lowered cannot call Python, and so is not counted; empty if it can."""
    axes, why = context.module_context.axis_context, ""
    if getattr(context.module_context.lowering_parameters, "for_export", False):
        why = "was exported (jax.export), and an exported program calls no Python"
    elif isinstance(axes, sharding_impls.SPMDAxisContext) and (
        set(axes.manual_axes) != set(axes.mesh.axis_names)
    ):
        why = "is in a shard_map over only some axes of a mesh, where XLA calls no Python"
    return why and f"a step {why}: it is not counted"


def may_be_split(context: mlir.LoweringRuleContext) -> bool:
    """True if XLA may partition the program being lowered over devices of several processes.

    Then it calls Python only on the first device (see `call_python`). Which devices a program gets
    is unknown: JAX lowers it once for all that are as many.
    """
    axes = context.module_context.axis_context
    split = isinstance(axes, sharding_impls.ShardingContext) and axes.num_devices > 1
    return split and jax.process_count() > 1


def call_python(
    context: mlir.LoweringRuleContext, function: Callable[..., object], operand: object
) -> Any:
    """Lower a call of `function` with an array, without results, that XLA must not drop.

    If XLA partitions a program over devices (GSPMD), the first device calls it; in a `pmap` or a
    `shard_map`, each device does.
    """
    context = context.replace(avals_in=context.avals_in[:1])
    result, _, _ = _emit(
        context,
        function,
        None,
        [operand],
        context.avals_in,
        context.avals_out,
        has_side_effect=True,
        sharding=_sharding_of(context.module_context.axis_context, None, context.avals_out),
        returns_token=False,
    )
    return result


def traced_functions() -> Counter[Callable[..., object]]:
    """The functions with traces in JAX's caches, each with the number of traces.

    They are bodies of `jit`, loops, branches and `checkpoint`. Tracing an outer function again
    reuses the trace of an inner function that is still the same.
    """
    functions = Counter(key[0]() for cache in _traced for key in list(cache.cache_keys()))
    del functions[None]  # functions that are gone meanwhile
    return functions


def forget(function: object) -> None:
    """Have JAX trace a function again at its next call."""
    for cache in _traced:
        cache.evict_weakref(function)


def function_name(graph: DynamicJaxprTrace) -> str:
    """The name of the function being traced; `program` if JAX does not tell."""
    return str(_known_of(graph, "func_src_info") or "program").partition(" at ")[0]


def _known_of(trace: object, what: str) -> Any:
    """An item of JAX's debug info about a program being traced; None if missing."""
    about = getattr(getattr(trace, "frame", None), "debug_info", None)
    return getattr(about, what, None)


def outermost(trace: DynamicJaxprTrace) -> DynamicJaxprTrace:
    """The outermost program around `trace`; `trace` itself if JAX does not tell."""
    return [trace, *(t for t in _with_parents(trace) if isinstance(t, DynamicJaxprTrace))][-1]


def arguments_of(trace: DynamicJaxprTrace) -> dict[str, str]:
    """The arrays that a program is traced for: `{"state['a']": "float32[2, 3]"}`.

    A Python number, which JAX traces as an array, is `float32[] of Python`. An array on a mesh of
    devices has another type: `float32[2] over data=4`.
    """
    names = _known_of(trace, "arg_names") or ()
    found: dict[str, str] = {}
    for number, variable in enumerate(getattr(getattr(trace, "frame", None), "invars", ())):
        name = names[number] if number < len(names) and names[number] else f"argument {number}"
        aval = variable.aval
        sizes = ", ".join(map(str, getattr(aval, "shape", ())))
        weak = " of Python" if getattr(aval, "weak_type", False) else ""
        axes = dict(getattr(getattr(getattr(aval, "sharding", None), "mesh", None), "shape", {}))
        over = " over " * bool(axes) + ", ".join(f"{axis}={size}" for axis, size in axes.items())
        found[name] = f"{getattr(aval, 'dtype', aval)}[{sizes}]{weak}{over}"
    return found


def caller_of_jax(frame: FrameType) -> FrameType | None:
    """The frame that called JAX, outside its outermost frame around `frame`; None without one."""
    frames = [*frames_from(frame)]
    of_jax = [each for each in frames if each.f_globals.get("__name__", "").startswith("jax.")]
    return of_jax[-1].f_back if of_jax else None


def is_called_by_program() -> bool:
    """True if a running JAX program calls Python on this thread."""
    return any(True for _ in calls_of("_wrapped_callback"))
