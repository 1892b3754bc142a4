"""The parts of JAX that have no public name, each guarded: JAX 0.6 to 0.12.

`jax/_src` moves between versions. What is missing there raises `UnsupportedJax` when this module is
imported, with the name of it, so that nothing is counted wrongly in silence.
"""

import inspect
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import FrameType
from typing import Any

import jax
import numpy as np
from jax.interpreters import ad, batching, mlir, partial_eval

from tracer.core.interrupts import suppress_faults
from tracer.errors import UnsupportedOptimizer

try:
    from jax._src import (
        ad_checkpoint as _checkpoint,
        api as _api,
        callback as _callback,
        core,
        pjit as _pjit,
        sharding_impls,
        source_info_util,
    )
    from jax._src.interpreters import partial_eval as _partial_eval, pxla as _pxla
    from jax._src.interpreters.partial_eval import DynamicJaxprTrace
    from jax._src.lax.control_flow import common as _loops, loops as _scans
    from jax._src.mesh import empty_abstract_mesh as _no_mesh, use_abstract_mesh as _use_mesh
    from jax.extend.core import Primitive

    _trace_context = core.trace_ctx
    _EvalTrace = core.EvalTrace
    _sharding_of = _callback._callback_op_sharding
    _hoisting = (
        "_scan_known_hoisting" if hasattr(_scans, "_scan_known_hoisting") else "_scan_partial_eval"
    )
    _emit = getattr(_callback, "emit_python_callback", None) or mlir.emit_python_callback
    if hasattr(jax, "shard_map"):
        _shard_map: Any = partial(jax.shard_map, check_vma=False)
    else:  # in JAX 0.6.0
        from jax.experimental.shard_map import shard_map

        _shard_map = partial(shard_map, check_rep=False)
    _traced: list[Any] = [
        cache
        for module, name in (
            (_partial_eval, "trace_to_jaxpr"),  # all of them since JAX 0.10
            (_loops, "_initial_style_jaxpr"),
            (_loops, "_initial_style_open_jaxpr"),
            (_checkpoint, "_trace_to_jaxpr"),
        )
        if hasattr(cache := getattr(module, name, None), "cache_keys")
    ]
    _traced_by: list[Any] = [  # before JAX 0.10, and 0.8
        cache
        for module, name in ((_pjit, "_create_pjit_jaxpr"), (_pxla, "parallel_callable"))
        if hasattr(cache := getattr(module, name, None), "evict_function")
    ]
    if not _traced or not (_traced_by or hasattr(_traced[0], "evict_weakref")):
        raise AttributeError("the caches of what was traced")
except (ImportError, AttributeError) as error:
    raise UnsupportedOptimizer(
        f"cannot count in JAX {jax.__version__}: {error}; tracer knows JAX 0.6 to 0.12"
    ) from error

__all__ = ["Primitive", "ad", "batching", "mlir", "partial_eval"]

_FAR = 5
"""Over how many equations a constant is looked for."""
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


def is_chosen_by_members() -> bool:
    """True if JAX batches a branch whose predicate differs between the members of the batch.

    Then all branches run for all members. `_cond_batching_rule` knows it, which calls the rules of
    what is in the branch.
    """
    return any("in_batched" in each.f_locals for each in calls_of("_cond_batching_rule"))


def is_looped_by_members() -> bool:
    """Whether what JAX lowers now is in a loop that each member leaves for itself.

    Then it runs for all members until the last of them leaves.
    """
    return any(each.f_locals.get("batched") for each in calls_of("_while_lowering"))


def is_taken_from_loop() -> bool:
    """Whether JAX takes what is the same in each pass out of a loop, which is differentiated."""
    return any(True for _ in calls_of(_hoisting))


def calls_of(function: str) -> Iterator[FrameType]:
    """The frames of Python in which functions of this name are being called on this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function:
            yield frame
        frame = frame.f_back


def are_known(tracers: Sequence[Any]) -> bool:
    """Whether all that a primitive is given is computed early, where JAX computes some early."""
    return all(each.pval.is_known() for each in tracers)


def stage(trace: Any, primitive: Any, tracers: Sequence[Any], parameters: Any) -> bool:
    """Execute a primitive that gives nothing if all that it is given is known; else keep it.

    As `JaxprTrace.default_process_primitive` does with a primitive that has an effect. False where
    JAX is too old to keep it.
    """
    if are_known(tracers):
        primitive.bind(*(each.pval.get_known() for each in tracers), **parameters)
        return True
    if not hasattr(trace, "effect_handles"):
        return False
    tracers = [trace.instantiate_const(each) for each in tracers]
    source = source_info_util.current()
    equation = _partial_eval.new_eqn_recipe(
        trace, tracers, [], primitive, parameters, core.no_effects, source
    )
    trace.effect_handles.append(_partial_eval.EffectHandle(tracers, equation))
    return True


def is_mapped_eagerly() -> bool:
    """Whether a `shard_map` is around that is not compiled: it drops what gives nothing."""
    return type(current_trace()).__name__ == "ShardMapTrace"


def axis_names() -> tuple[Any, ...]:
    """The named axes around: those of `pmap`, `shard_map` and `vmap(axis_name=...)`."""
    unnamed = None, getattr(core, "no_axis_name", None)
    return tuple(each for each in _trace_context.axis_env.axis_names() if each not in unnamed)


def axis_size(names: Sequence[Any]) -> int:
    """How many there are along these axes together."""
    return math.prod(map(_trace_context.axis_env.axis_size, names))


def why_not(context: Any) -> str:
    """Why what is being lowered cannot call Python, and so is not counted; empty if it can."""
    axes, why = context.module_context.axis_context, ""
    if getattr(context.module_context.lowering_parameters, "for_export", False):
        why = "was exported (jax.export): an exported program calls no Python"
    elif isinstance(axes, sharding_impls.SPMDAxisContext) and (
        set(axes.manual_axes) != set(axes.mesh.axis_names)
    ):
        why = "is in a shard_map over some of the axes of a mesh: XLA calls no Python there"
    return why and f"a step {why}, so what runs in it is not counted"


def is_split(context: Any) -> bool:
    """Whether XLA splits what is being lowered over devices, perhaps of several processes.

    It calls Python on the first of them alone (see `call_python`).
    """
    axes = context.module_context.axis_context
    split = isinstance(axes, sharding_impls.ShardingContext) and axes.num_devices > 1
    return split and jax.process_count() > 1


class Chosen:
    """The device of this process that counts, of those that all run one program.

    It is the first one that reports. All that the program counts is counted there, so in order.
    """

    def __init__(self, most: int) -> None:
        """The process has at `most` so many devices."""
        self._most = most
        self._seen: list[int] = []

    def is_it(self, device: int) -> bool:
        """Whether it is this one, by its place among the devices of the program."""
        if device not in self._seen:
            self._seen.append(device)
        return self._seen[0] == device

    def may_differ(self) -> bool:
        """True if devices had several places: JAX lowers a program once, whatever their order."""
        return len(self._seen) > self._most


def chosen_in(context: Any) -> Chosen:
    """The one of the program that is being lowered, which lives as long as it does."""
    kept: list[Any] = context.module_context.keepalives
    found = next((each for each in kept if isinstance(each, Chosen)), None)
    if found is None:
        kept.append(found := Chosen(jax.local_device_count(platform(context))))
    return found


def on_each_device(context: Any, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
    """Lower a call of `function` on each device of a program that XLA splits.

    It is called with the place of the device among them, and the operands.
    """
    devices = jax.devices(platform(context))[: context.module_context.axis_context.num_devices]
    mesh = jax.sharding.Mesh(np.array(devices), ("device",))  # any devices: their number counts
    everywhere = jax.sharding.PartitionSpec()

    def called(*scalars: Any) -> tuple[()]:
        function(jax.lax.axis_index("device"), *scalars)
        return ()

    avals = [core.ShapedArray(each.shape, each.dtype) for each in context.avals_in]
    called = _shard_map(called, mesh=mesh, in_specs=everywhere, out_specs=())
    with _use_mesh(_no_mesh):  # the program may have one of its own
        lower = mlir.lower_fun(called, multiple_results=True)
        return lower(context.replace(avals_in=avals[: len(operands)]), *operands)


def platform(context: Any) -> str:
    """What a program is being lowered for: `cpu`."""
    return str(context.module_context.platforms[0])


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
        sharding=_sharding_of(context.module_context.axis_context, None, context.avals_out),
        **_NO_TOKEN,
    )
    return result


def register_lowering(primitive: Any, rule: Callable[..., Any]) -> None:
    """Say how a primitive is lowered, without a cache."""
    mlir.register_lowering(primitive, rule, **_UNCACHED)


def traced_functions() -> "Counter[Any]":
    """The functions whose graph tracings JAX keeps, each with their number.

    They are bodies of `jit`, of loops and branches, of `checkpoint`. What is traced again takes the
    trace of a function in it from there, if that function is still the same.
    """
    functions = Counter(key[0]() for cache in _traced for key in list(cache.cache_keys()))
    functions.update(each for memo in _traced_by for each in list(memo.cache_clear.__self__))
    del functions[None]  # those that are gone meanwhile
    return functions


def forget(function: Any) -> None:
    """Let JAX trace a function again when it is called next."""
    for cache in _traced:
        if hasattr(cache, "evict_weakref"):
            cache.evict_weakref(function)
        else:
            cache.cache_clear()  # the others are traced again too, if they are called again
    for memo in _traced_by:
        memo.evict_function(function)
    for mapped in list(getattr(_api, "_pmap_cache_clears", ())):  # of `pmap` before JAX 0.8
        if mapped.__wrapped__ is function:
            mapped._cache_clear()


def function_name(trace: Any) -> str:
    """The name of the function that is being traced; `program` where JAX does not say it."""
    return function_place(trace).partition(" at ")[0]


def function_place(trace: Any) -> str:
    """The name of the function that is being traced and where it is: `step at train.py:9`."""
    return str(_known_of(trace, "func_src_info") or "program")


def _known_of(trace: Any, what: str) -> Any:
    """What JAX notes of a program that is being traced; None where it does not."""
    about = getattr(getattr(trace, "frame", None), "debug_info", None)
    return getattr(about, what, None)


def outermost(trace: Any) -> Any:
    """The outermost program that `trace` is a part of; itself where JAX does not say it."""
    around = trace
    while around is not None and not isinstance(around, _EvalTrace):
        if isinstance(around, DynamicJaxprTrace):
            trace = around
        around = getattr(around, "parent_trace", None)
    return trace


def is_in_branch_of(trace: Any, around: Any) -> bool:
    """Whether `trace` is a branch in `around`, or one in such a branch: it runs once or never."""
    while trace is not around:
        if _known_of(trace, "traced_for") not in ("cond", "switch"):
            return False
        trace = getattr(trace, "parent_trace", None)
    return True


def arguments_of(trace: Any) -> dict[str, str]:
    """What a program is traced for: `{"state['a']": "float32[2, 3]"}`, with an item for each array.

    A number of Python, which JAX traces as an array, is `float32[] of Python`.
    """
    names = _known_of(trace, "arg_names") or ()
    found: dict[str, str] = {}
    for number, variable in enumerate(getattr(getattr(trace, "frame", None), "invars", ())):
        name = names[number] if number < len(names) and names[number] else f"argument {number}"
        aval = variable.aval
        sizes = ", ".join(map(str, getattr(aval, "shape", ())))
        weak = " of Python" if getattr(aval, "weak_type", False) else ""
        found[name] = f"{getattr(aval, 'dtype', aval)}[{sizes}]{weak}"
    return found


def is_constant_zero(tracer: Any, far: int = _FAR) -> bool:
    """Whether what a tracer stands for is 0 in each run; False where JAX does not say it (< 0.8).

    The gradient of what a loss does not depend on is a 0 that JAX makes as large as that. Or the
    program multiplies it by 0.
    """
    with suppress_faults():
        value = getattr(tracer, "val", None)
        if isinstance(value, core.Literal):
            return not value.val
        equation = tracer.parent
        if far and equation.primitive.name in ("broadcast_in_dim", "convert_element_type", "mul"):
            return any(is_constant_zero(each, far - 1) for each in equation.in_tracers)
    return False


def caller_of_jax(frame: Any) -> Any:
    """The frame that called what JAX traces: above the outermost one of JAX; None if there is none.

    `frame` is the innermost one.
    """
    caller = None
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("jax."):
            caller = frame.f_back
        frame = frame.f_back
    return caller


def is_called_by_program() -> bool:
    """Whether a program of JAX that runs now calls Python on this thread."""
    return any(True for _ in calls_of("_wrapped_callback"))
