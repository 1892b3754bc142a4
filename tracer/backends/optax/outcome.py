"""Find the outcome of a step's updates: kept, computed and discarded, or not computed at all.

Read in optax 0.2.8. `MultiSteps` calls its inner transformation in every step and multiplies all
but each k-th of its updates by 0 (`transforms/_accumulation.py`); `apply_if_finite` calls its own
in a branch (`transforms/_conditionality.py`); `apply_every` sums its updates, and returns 0 except
in each k-th step (`_src/transform.py`). Their states show what they did, so the op of a step gets
an outcome computed from the states.

States are not enough: another transformation may add to the updates, `apply_if_finite` gives up
after some steps, and 0 times NaN is NaN. So discarded updates are also compared with 0: those that
are not 0 were kept.

`chain`, `partition` and `masked` (so also `freeze` and `selective_transform`) return a leaf that a
part does not change as the same object. So a leaf was set to zero if it is an object that
`set_to_zero` made. No values are read, and no masks or labels are asked for. `MultiSteps`,
`apply_if_finite` and `conditionally_mask` return a 0 as another object: it counts as an update, and
the trace is incomplete.
"""

import sys
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any
from weakref import ref

import jax
import jax.numpy as jnp

from tracer.backends.jax import compat, values
from tracer.backends.jax.programs import DISCARDED, KEPT, PARTLY, SKIPPED
from tracer.backends.optax.inside import is_of_optax, rates_in, under_way
from tracer.backends.optax.leaves import names_in
from tracer.core.patches import Patch
from tracer.errors import suppress_faults

if TYPE_CHECKING:
    from optax import OptState, Updates

_MAKERS = {
    "ApplyEvery": "apply_every",
    "ApplyIfFiniteState": "apply_if_finite",
    "ConditionallyMaskState": "conditionally_mask",
    "MultiStepsState": "MultiSteps",
}
"""The states of transformations that discard updates, with the makers' names."""
_INNER = {"ApplyIfFiniteState": "inner_state", "MultiStepsState": "inner_opt_state"}
"""The field with the state of the inner transformation."""


def of_step(
    before: "OptState", after: "OptState", updates: "Updates", unknown: list[str]
) -> jax.Array | None:
    """The outcome of a step's `updates`, from the states before and after it.

    It is a scalar: `DISCARDED`, `KEPT`, `SKIPPED` or `PARTLY`; None if updates are always kept.
    The names of transformations that may discard updates without showing it are added to `unknown`.
    """
    came = _came(before, after, unknown)
    if came is None:
        return None
    moves, all_move = _any_and_all_nonzero(updates)
    return jnp.where((came == KEPT) | ~moves, came, jnp.where(all_move, KEPT, PARTLY))


def _came(before: "OptState", after: "OptState", unknown: list[str]) -> jax.Array | int | None:
    """The outcome by the only state that decides, and its inner states.

    None if no state decides, or if the outcome is unknown.
    """
    states, old_states = _named(after, *_MAKERS), _named(before, *_MAKERS)
    if not states:
        return None
    partitions = [
        each for each in _named(after, *_MAKERS, "PartitionState") if _name(each) not in _MAKERS
    ]
    of_all_leaves = not any(_named(each, *_MAKERS) for each in partitions)
    if len(states) == len(old_states) == 1 and of_all_leaves:
        (state,), (old,) = states, old_states
        inner = _INNER.get(_name(state), "")
        kept = _came(getattr(old, inner, ()), getattr(state, inner, ()), unknown)
        came = _of_state(old, state, KEPT if kept is None else kept)
        if came is not None:
            return came
    unknown += [_MAKERS.get(_name(each), _name(each)) for each in states]
    return None


def _of_state(old: "OptState", state: "OptState", kept: jax.Array | int) -> jax.Array | int | None:
    """The outcome by one state; `kept` is the outcome of its inner states if it keeps updates."""
    if _name(state) == "ApplyEvery":
        return jnp.where(state.count == 0, KEPT, SKIPPED)
    if _name(state) == "ApplyIfFiniteState":
        return jnp.where(state.last_finite, kept, SKIPPED)
    if _name(state) != "MultiStepsState" or any(map(values.is_gone, jax.tree.leaves(old))):
        return None  # the step donated the old state
    stepped = state.gradient_step != old.gradient_step
    added = stepped | (state.mini_step != old.mini_step)
    return jnp.where(stepped, kept, jnp.where(added, DISCARDED, SKIPPED))


def _name(state: "OptState") -> str:
    return type(state).__name__


def counts_in(before: "OptState", after: "OptState") -> tuple[jax.Array, jax.Array] | None:
    """The step count in the states before and after a step, such as Adam's; None without one."""
    old, new = _count_in(before), _count_in(after)
    return None if old is None or new is None else (old, new)


def _count_in(state: "OptState") -> jax.Array | None:
    for held in _named(state, "ScaleBy", "MultiStepsState", "InjectStateful"):
        count = getattr(held, "gradient_step", getattr(held, "count", None))
        if isinstance(count, jax.Array) and count.shape == () and count.dtype.kind == "i":
            return None if values.is_gone(count) else count
    return None


def rate_in(transformation: object, state: "OptState") -> jax.Array | int:
    """The bits of the learning rate in a state, if it is the only one of a transformation."""
    rates = [held.hyperparams.get("learning_rate") for held in _named(state, "InjectStateful")]
    own = rates_in(transformation) if len(rates) == 1 else ()  # in each eager step
    is_only = len(own) == 1 and not (callable(own[0]) and is_of_optax(own[0]))
    is_known = is_only and getattr(rates[0], "shape", None) == ()
    return values.bits_of_rate(rates[0]) if is_known else values.NO_RATE


def _named(state: "OptState", *names: str) -> list["OptState"]:
    """The outermost states in a state whose class names begin so."""

    def is_named(held: "OptState") -> bool:
        return type(held).__name__.startswith(names)  # asked for each leaf of a state

    return [*filter(is_named, jax.tree.leaves(state, is_leaf=is_named))]


def is_in_multi_steps() -> bool:
    """True if `MultiSteps` makes this call, and so discards the updates of most steps."""
    modules = (str(each.f_globals.get("__name__", "")) for each in compat.calls_of("_do_update"))
    return any(module.startswith("optax.") for module in modules)


def _any_and_all_nonzero(updates: "Updates") -> tuple[jax.Array, jax.Array]:
    """Whether any leaf is not 0 anywhere, and whether this is so for all leaves."""
    leaves = [jnp.asarray(each) for each in jax.tree.leaves(updates)]
    leaves = [each for each in leaves if each.size and jnp.issubdtype(each.dtype, jnp.number)]
    # Other readers must not change how the program computes the updates.
    leaves = jax.lax.optimization_barrier(jax.lax.stop_gradient(leaves))
    nonzero = jnp.array([jnp.any(each != 0) for each in leaves], bool)
    return jnp.any(nonzero), jnp.all(nonzero)


# What optax does to some leaves only, observed while a call is under way.


class _Watched:
    """A module as functions of optax see it, which observes where they use one attribute."""

    def __init__(
        self, module: ModuleType, used: str, observe: Callable[[Any, dict[str, Any]], object]
    ) -> None:
        """`observe` gets the attribute `used` and the variables of the function that uses it.

        The function gets what `observe` returns.
        """
        self._module, self._used, self._observe = module, used, observe

    def __getattr__(self, name: str) -> object:
        found = getattr(self._module, name)
        if name == self._used and under_way.depth:
            with suppress_faults():
                return self._observe(found, sys._getframe(1).f_locals)
        return found


def is_zero(update: object) -> bool:
    """True if `set_to_zero` made this update, in the call under way on this thread."""
    made = under_way.zeros.get(id(update))
    return made is not None and made() is update


def _in_set_to_zero(
    zeros_like: Callable[[jax.Array], jax.Array], values: dict[str, Any]
) -> Callable[[jax.Array], jax.Array]:
    """A `zeros_like` that notes what it makes."""
    under_way.names.update(names_in(values["updates"]))

    def noting(leaf: jax.Array) -> jax.Array:
        made = zeros_like(leaf)
        under_way.zeros[id(made)] = ref(made)
        return made

    return noting


def _in_decay(tree: ModuleType, values: dict[str, Any]) -> ModuleType:
    """`jax.tree`; notes which leaves decay."""
    decay = values.get("weight_decay")
    if isinstance(decay, float):
        under_way.decays[decay].update(names_in(values["updates"]))
    return tree


def watch() -> None:
    """Observe `set_to_zero` and `add_decayed_weights`."""
    for home, name, used, observe in (
        ("optax._src.base", "jnp", "zeros_like", _in_set_to_zero),
        ("optax.transforms._adding", "jax", "tree", _in_decay),
    ):
        module = sys.modules.get(home)
        original = getattr(module, name, None)
        if original is not None and type(original) is not _Watched:
            ours = _Watched(original, used, observe)
            Patch(module, name, ours, "to see which leaves are zeroed or decay", "exit").put_in()
