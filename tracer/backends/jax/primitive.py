"""One JAX primitive, `count`: each execution calls Python, once, with the numbers it is given.

It declares no JAX *effect*. `jax.debug.callback` and `io_callback` declare one, and any effect
turns off the fast path of `jax.jit` in C++: some 30 us for each array that goes in or comes out
(`pjit.py`, `_get_fastpath_data`). Instead

- a rule for dead code says that it is used, though it gives nothing (`dce_rules`);
- it is lowered to a call with a side effect, which XLA neither drops nor merges with an equal one;
- under `vmap` it has a number for each member, all in one call;
- under `jax.checkpoint` it counts one pass, not what is computed once more: see `Passes`;
- where a loop is differentiated it stays in the loop (`custom_partial_eval_rules`).

In loops and branches it runs as often as they do. Python is called on a thread of XLA, which holds
the GIL meanwhile; nothing of JAX may be called there.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from tracer.backends.jax import compat


class Counted(Hashable, Protocol):
    """What is counted; told apart by identity, also by the caches of JAX."""

    def ran(self, *numbers: "np.ndarray[Any, Any]") -> None:
        """It was executed: as often as the arrays, which are of one shape, have elements.

        Called on any thread, by several at once. What it raises ends the program of the user.
        """

    def lowered(self, platform: str) -> None:
        """It is compiled for a platform."""

    def left_out(self, why: str) -> None:
        """It is compiled, and cannot be counted there."""

    def doubt(self, reason: "Doubt") -> None:
        """What it tells is not what ran."""

    def ran_pass(self, passes: "Passes", number: int) -> None:
        """One pass under `jax.checkpoint` was executed, whether or not it counts."""


Doubt = Literal[
    "not compiled",
    "all members",
    "hidden",
    "hoisted",
    "the same in each pass",
    "recomputed",
    "another process",
]
"""Why: it is in a `shard_map` that is not compiled, which drops it; it is in a branch or a loop
that some members of a `vmap` take, and runs for all of them; its numbers are hidden from it; it is
in a loop that is differentiated, which this version of JAX takes it from; JAX takes a function or a
branch from such a loop that it is in; `jax.checkpoint` computes it again, and which of its passes
JAX dropped is not known; or XLA splits the program over processes, and calls another one."""


class Passes:
    """One execution under `jax.checkpoint`: the forward pass is number 0, recomputations follow.

    Only the first pass that runs counts. JAX drops the forward pass of a loop, a branch or a jitted
    function if a program uses nothing but the gradient. A pass that was dropped is not lowered, and
    a program is lowered in the order of its passes. JAX keeps what it made of a function, so one
    object stands for the passes of all programs that differentiate this function.

    JAX lowers a recomputation once for all calls in a program, and may drop the forward pass of
    some of them alone: so a recomputation that does not count tells that it runs, and the count is
    in doubt if it ran more often than the pass that counts (`Counted.ran_pass`).
    """

    def __init__(self) -> None:
        self.first: float = math.inf

    def counts(self, number: int, counted: Counted, context: Any = None) -> bool:
        """Whether the pass counts that is lowered now; without a `context` it runs in eager mode.

        A derivative in eager mode has its passes in programs of their own, and drops none.
        """
        lowered: Counter[int] = Counter()
        if context is not None:
            lowered = compat.kept_with_program(context).setdefault(self, lowered)
        lowered[number] += 1
        first = min(lowered)
        if first < number:
            if lowered[number] > lowered[first]:
                counted.doubt("recomputed")
            return False
        if self.first < number:
            if context is None or compat.is_differentiated_eagerly():
                return False
            counted.doubt("recomputed")
        self.first = min(self.first, number)
        return True


Turn = tuple[Passes, int] | None
"""Which pass an op is in; None if it is in the only one."""


_count = compat.Primitive("tracer_count")
_count.multiple_results = True
_keep = compat.Primitive("tracer_keep")
_keep.multiple_results = True


def count(counted: Counted, *numbers: Any, auxiliary: Sequence[Any] = ()) -> None:
    """Have `counted.ran` called with these scalars, each time that this is executed.

    In eager mode that is now, and waits for them; else when the program runs that is being traced.
    The `auxiliary` arrays say by their `vmap` how many members there are. They are not passed to
    Python, and the program that XLA gets does not use them, so it is compiled as it would be.
    """
    scalars = [jnp.asarray(number, jnp.int32) for number in numbers]
    _count.bind(*scalars, *auxiliary, counted=counted, passed=len(scalars), turn=None)


def counting_alone(counted: Counted) -> Callable[..., Any]:
    """A program that counts, with the scalars that it is given, and does nothing else.

    It returns an array, which is there when it has counted.
    """

    def counting(*numbers: Any) -> Any:
        count(counted, *numbers)
        return jnp.asarray(numbers[0])

    compiled: Callable[..., Any] = jax.jit(counting)
    return compiled


def count_on_each_device(counted: Counted, mesh: Any, *numbers: Any) -> None:
    """The same in a program that XLA splits over the devices of `mesh`: called for each of them.

    `counted.ran` gets the index of the device in the mesh before the numbers.
    """
    everywhere = jax.sharding.PartitionSpec()

    def on_one(first: Any, *others: Any) -> Any:
        count(counted, jax.lax.axis_index(mesh.axis_names), first, *others)
        return first

    done = compat.shard_map(on_one, mesh, everywhere)(*numbers)
    _keep.bind(done)  # without it nothing would use what the devices do


def _abstract(*operands: Any, **parameters: Any) -> Sequence[Any]:
    return []


def _used(used: Sequence[bool], equation: Any) -> tuple[list[bool], Any]:
    """It is never dead code."""
    return [True] * len(equation.invars), equation


def _differentiate(
    primals: Sequence[Any], tangents: Sequence[Any], **parameters: Any
) -> tuple[Sequence[Any], Sequence[Any]]:
    return _count.bind(*primals, **parameters), []


def _transpose(cotangents: Sequence[Any], *operands: Any, **parameters: Any) -> list[None]:
    """What is transposed (`jax.linear_transpose`) runs another program, and no step."""
    return [None] * len(operands)


def _batch(
    operands: Sequence[Any], dimensions: Sequence[Any], *, counted: Counted, passed: int, turn: Turn
) -> tuple[Sequence[Any], Sequence[Any]]:
    """Each member of the batch is one execution, all in one call."""
    if compat.is_chosen_by_members():
        counted.doubt("all members")
    size = next(
        operand.shape[dimension]
        for operand, dimension in zip(operands, dimensions, strict=True)
        if dimension is not None
    )
    whole = [
        jnp.broadcast_to(operand, (size, *operand.shape))
        if dimension is None
        else jnp.moveaxis(operand, dimension, 0)
        for operand, dimension in zip(operands[:passed], dimensions[:passed], strict=True)
    ]
    _count.bind(*whole, *operands[passed:], counted=counted, passed=passed, turn=turn)
    return [], []


def _once(
    saveable: Callable[..., Any],
    unknown: Sequence[bool],
    instantiated: Sequence[bool],
    equation: Any,
) -> tuple[Any, ...]:
    """`jax.checkpoint` computes anew what it did not keep: see `Passes`.

    The recomputation gets an op of its own, which uses only what is computed there anyway.
    """
    if any(unknown):
        left = [
            variable
            for variable, there in zip(equation.invars, instantiated, strict=True)
            if not there
        ]
        return None, equation, [], [], left
    passed = equation.params["passed"]
    if not all(instantiated[:passed]):  # it is kept, and not computed again
        return equation, None, [], [], []
    passes, number = equation.params["turn"] or (Passes(), 0)
    forward = dict(equation.params, turn=(passes, number))
    again = dict(equation.params, turn=(passes, number + 1))
    there = [v for v, known in zip(equation.invars, instantiated, strict=True) if known]
    return (
        equation.replace(params=forward),
        equation.replace(params=again, invars=there),
        [],
        [],
        [],
    )


def _stay(trace: Any, *tracers: Any, **parameters: Any) -> Sequence[Any]:
    """Where some is computed early it is not dropped from the rest, as what gives nothing is."""
    if compat.are_known(tracers) and compat.taken_from_loop() == "function":
        parameters["counted"].doubt("the same in each pass")
    if not compat.stage(trace, _count, tracers, parameters):
        parameters["counted"].doubt("hoisted")
    return []


def _run(*operands: Any, counted: Counted, passed: int, turn: Turn) -> Sequence[Any]:
    """In eager mode Python calls Python."""
    if turn is None or turn[0].counts(turn[1], counted):
        counted.ran(*operands[:passed])
    return []


def _lower(
    context: Any, *operands: Any, counted: Counted, passed: int, turn: Turn
) -> Sequence[Any]:
    counts = turn is None or turn[0].counts(turn[1], counted, context)
    if why := compat.why_not(context):
        counted.left_out(why)
        return []
    if compat.is_told_elsewhere(context):
        counted.doubt("another process")
    if compat.is_looped_by_members():
        counted.doubt("all members")
    counted.lowered(compat.platform(context))

    def ran(*numbers: Any) -> tuple[()]:
        if turn is not None:
            counted.ran_pass(*turn)
        if counts:
            counted.ran(*numbers)
        return ()

    result: Sequence[Any] = compat.call_python(context, ran, operands[: passed if counts else 0])
    return result


def _lower_to_nothing(context: Any, *operands: Any) -> Sequence[Any]:
    return []


_count.def_impl(_run)
_count.def_abstract_eval(_abstract)
compat.ad.primitive_jvps[_count] = _differentiate
compat.ad.primitive_transposes[_count] = _transpose
compat.batching.primitive_batchers[_count] = _batch
compat.partial_eval.dce_rules[_count] = _used
compat.partial_eval.partial_eval_jaxpr_custom_rules[_count] = _once
compat.partial_eval.custom_partial_eval_rules[_count] = _stay
compat.register_lowering(_count, _lower)

_keep.def_impl(lambda *operands: [])
_keep.def_abstract_eval(_abstract)
compat.partial_eval.dce_rules[_keep] = _used
compat.register_lowering(_keep, _lower_to_nothing)
