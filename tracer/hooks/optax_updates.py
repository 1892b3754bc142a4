"""`wrap` for optax: a copy of a transformation whose `update` tells of its calls.

A transformation is a tuple of two functions, and no object of which the class could be exchanged.
So `wrap` gives another one of the same class, with the same `init`; who uses the first one is not
counted. The new `update` calls the first, hands on what it returns, and stands for the
transformation where an optimizer is known by its identity. Copies of it are itself, as those of a
function are; a pickle of it is one of the first `update`.

An update is what `update` returned for one leaf: what is computed. Whether the program adds it to
the parameters (`apply_updates`) is not seen.
"""

import copy
import functools
import inspect
import sys
from collections.abc import Callable
from typing import Any, NoReturn

from tracer.backends.optax.inside import inside, label
from tracer.backends.registered import backend_of
from tracer.core.calls import Frame
from tracer.core.recorder import Recorder
from tracer.core.registry import Binding, bindings
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.hooks.lines import line_of_caller
from tracer.kinds import KINDS, OPTAX, OptimizerKind, kind_of

__tracebackhide__ = is_mistake

_KIND: OptimizerKind = next(each for each in KINDS if each.name == OPTAX)
(_LEAF,) = _KIND.apply_methods
(_STEP,) = _KIND.step_methods


class TracedUpdate:
    """The `update` of a transformation, which is counted as long as it is wrapped."""

    def __init__(self, given: Any) -> None:
        """`given` is the transformation."""
        functools.update_wrapper(self, given.update)
        self.given = given
        self.original: Callable[..., Any] = given.update
        self.sought: Any = given if _is_multi_steps(given) else given.update
        """By what functions are found that use it."""
        self.names = _first_names(given.update)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        binding = bindings.get(id(self))
        if binding is None or binding.watch is None or binding.recorder.broken:
            return self.original(*args, **kwargs)
        call = _Call(self, binding, args, kwargs)
        failed = True
        try:
            result = self.original(*args, **kwargs)
            failed = False
        finally:
            call.ended(None if failed else result, sys.exc_info()[1] if failed else None)
        return result

    def __copy__(self) -> "TracedUpdate":
        return self

    def __deepcopy__(self, memo: Any) -> "TracedUpdate":
        return self

    def __reduce__(self) -> Any:
        return _itself, (self.original,)


def _itself(original: Any) -> Any:
    """What a pickle of a traced `update` has."""
    return original


def is_transformation(given: Any) -> bool:
    """Whether it is one of optax: a tuple of `init` and `update`, or a `MultiSteps`."""
    kind = kind_of(type(given))
    return (kind is not None and kind.name == OPTAX) or _is_multi_steps(given)


def _is_multi_steps(given: Any) -> bool:
    return any(
        base.__name__ == "MultiSteps" and base.__module__.partition(".")[0] == "optax"
        for base in type(given).__mro__
    )


def standing_for(given: Any) -> Any:
    """What stands for an optimizer in the registry: the `update` of a traced transformation."""
    if isinstance(given, tuple):
        update = getattr(given, "update", None)
    else:
        update = getattr(given, "__dict__", {}).get("update")
    return update if type(update) is TracedUpdate else given


def traced(given: Any, *, retrace: bool = True) -> tuple[Any, TracedUpdate]:
    """A transformation as `given` that is counted, and its `update`; itself if it is one."""
    known = standing_for(given)
    if type(known) is TracedUpdate:
        go_on(known, retrace=retrace)
        return given, known
    update = TracedUpdate(given)
    recorder = Recorder(backend_of(_KIND))
    name = label(given)
    line = line_of_caller(given)
    index = recorder.optimizers.add(update, lambda: name, f"optax.{name}", _KIND, made=line)
    bindings[id(update)] = Binding(update, recorder, index, _nothing_nested)
    known_inside = inside(given)
    if known_inside.accumulates is not None:
        recorder.optimizers.tell(index, gradient_accumulation_steps=known_inside.accumulates)
    if known_inside.skips:
        recorder.optimizers.tell(index, skipped_by=known_inside.skips)
    go_on(update, retrace=retrace)
    if not _is_multi_steps(given):
        return given._replace(update=update), update
    made = copy.copy(given)
    made.update = update
    return made, update


def go_on(update: TracedUpdate, *, retrace: bool = True) -> Recorder:
    """Count the calls of `update` from now on."""
    binding = bindings[id(update)]
    if binding.watch is None:
        binding.recorder.optimizers.begin(binding.index, retrace)
        binding.watch = _SEEN
    return binding.recorder


def watched() -> list[TracedUpdate]:
    """Those that are counted now."""
    alive = [(each, each.optimizer()) for each in list(bindings.values())]
    return [own for each, own in alive if type(own) is TracedUpdate and each.watch is not None]


def refuse(given: Any) -> NoReturn:
    """Raise for a transformation that is not traced where it cannot be exchanged for one."""
    raise UnsupportedOptimizer(
        f"this transformation of optax ({label(given)}) is not traced: give what tracer.wrap(tx) "
        "gave back, and train with that"
    )


_ORDER = ("updates", "state", "params")
"""The arguments of an `update`, which may call them otherwise."""


def _first_names(update: Callable[..., Any]) -> tuple[str, ...]:
    """What an `update` calls its first three arguments."""
    try:
        names = tuple(inspect.signature(update).parameters)[: len(_ORDER)]
    except (TypeError, ValueError):  # a callable that does not say
        return _ORDER
    return names if len(names) > 1 else _ORDER


_SEEN = "update"
"""What a binding has as long as its steps are seen: the `update` itself sees them."""


def _nothing_nested(optimizer: Any, binding: Binding) -> Binding:
    binding.settled = True
    return binding


class _Call(Frame):
    """One call of `update`; a fault of the tracer is not the program's."""

    __slots__ = ("binding", "count", "given", "update")

    def __init__(
        self, update: TracedUpdate, binding: Binding, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.update, self.binding = update, binding
        self.recorder = self.count = None
        named = {_ORDER[update.names.index(n)]: v for n, v in kwargs.items() if n in update.names}
        self.given = {**named, **dict(zip(_ORDER, args, strict=False))}
        try:
            binding.recorder.enter(self, binding.index, _STEP, "step", sys._getframe(2))
            self.python = sys._getframe(1)
            if not self._strange():
                self._hand(self.given.get("updates"))
        except Exception as error:
            binding.recorder.fault(error)

    def ended(self, result: Any, error: BaseException | None) -> None:
        """The call returned that, or raised."""
        self.python = None
        if self.recorder is None or self.recorder.broken:
            return
        try:
            if error is None:
                self._note(result)
            self.recorder.leave(self, error is not None, error)
        except Exception as fault:
            self.recorder.fault(fault)

    def _strange(self) -> bool:
        """Whether it gives updates for other leaves than it is given gradients, as `lookahead`."""
        from tracer.backends.optax.leaves import number_of

        params = self.given.get("params")
        return params is not None and number_of(params) != number_of(self.given.get("updates"))

    def _hand(self, gradients: Any) -> None:
        """Note the gradients that are handed over."""
        for _ in self.recorder.requests(self, self.binding.index, _STEP, self._pairs(gradients)):
            pass

    def _pairs(self, updates: Any) -> list[Any]:
        """Each of these with the leaf that it is of: of the parameters, or else of a gradient."""
        from tracer.backends.optax.leaves import Leaves

        leaves = self.recorder.variables
        assert isinstance(leaves, Leaves)
        params = self.given.get("params")
        return list(leaves.handed(updates, self.given.get("updates") if params is None else params))

    def _note(self, result: Any) -> None:
        """Note the updates that were returned, and what is known to come of them."""
        from tracer.backends.optax import outcome
        from tracer.backends.optax.leaves import tracers_in

        index, recorder = self.binding.index, self.recorder
        if not (isinstance(result, tuple | list) and len(result) == 2):
            recorder.note(
                "update returned something else than updates and a state: what it computed is not "
                "known"
            )
            return
        updates, state = result
        if self._strange():
            self._hand(updates)
        pairs = [pair for pair in self._pairs(updates) if pair[0] is not None]
        sites = recorder.updated(self, index, _LEAF, pairs)
        self.count = outcome.count_in(state)
        self.result = tracers_in((self.given.get("updates"), updates, state))
        unknown: list[str] = []
        own = outcome.of_step(self.given.get("state"), state, updates, unknown)
        around, every = outcome.in_multi_steps(updates, unknown)
        if isinstance(every, int):
            recorder.optimizers.tell(index, gradient_accumulation_steps=every)
        for each in unknown:
            recorder.note(
                f"{each} decides in some steps that an update is none, and here that is not seen: "
                "each is counted as if it were kept"
            )
        if own is not None or around is not None:
            came = outcome.both(own, around)
            self.site_notes += [(came, site) for site in sites]
