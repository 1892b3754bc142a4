"""Traces optimizers for their holders: the program, by `wrap`, and recordings.

`hold` has an optimizer traced, and `let_go` ends this unless somebody else holds it. How its calls
are seen is up to its backend. All state is in `registry` and in the recorder, never on the
optimizer.
"""

import threading
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar
from weakref import ref

from tracer.backends.backend_list import backend_of
from tracer.core import registry
from tracer.core.backend import Backend, described
from tracer.core.optimizers import NOT_SEEN, Binding, made_here
from tracer.core.recorder import Recorder
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.hooks.family import family, kind_to_trace, own_steps
from tracer.kinds import AT_ONCE, OptimizerKind
from tracer.model.trace import Trace

__tracebackhide__ = is_mistake

T = TypeVar("T")


Members = Sequence[tuple[Any, OptimizerKind]]
"""An optimizer and those nested in it, with their kinds: see `family`."""

lock = threading.RLock()
"""Guards the holders of all optimizers, and the active recordings."""


def hold(
    optimizer: Any,
    holder: registry.Holder,
    *,
    members: Members = (),
    making: bool = False,
    seen: bool = False,
    retrace: bool = True,
    effects: bool = False,
) -> Recorder:
    """Trace an optimizer and those nested in it until the holder lets them go.

    Returns their recorder. `members` is its `family`, if known. If it is in the `making`, its first
    step wraps the nested ones. If `seen`, the line that makes or wraps it is running. If `retrace`,
    the functions that use it are traced again at their next call. If `effects`, the variables are
    compared before and after each step, from now on.
    """
    kind = kind_to_trace(optimizer)
    backend = backend_of(kind)
    optimizer = backend.standing_for(optimizer)
    own = members or ([(optimizer, kind)] if making else list(family(optimizer)))
    with lock:
        _hold(own, {holder}, making=making, seen=seen or making, retrace=retrace)
        for scale in () if members or making else backend.around(optimizer):
            _hold(list(family(scale)), {holder}, retrace=retrace)
        recorder: Recorder = registry.bindings[id(optimizer)].recorder
        if effects:
            recorder.compare(retrace=retrace)
    return recorder


def _hold(
    members: Members,
    holders: set[registry.Holder],
    *,
    making: bool = False,
    seen: bool = False,
    retrace: bool = True,
) -> None:
    """Trace optimizers of one recorder for some holders, in addition to their own."""
    root, kind = members[0]
    backend = backend_of(kind)
    for member, _ in members:
        if not registry.is_traced(member):
            backend.prepare(member)  # raises before anything is traced
    recorder = _recorder_for([member for member, _ in members], backend)
    begun = []
    try:
        for member, kind in members:
            binding = registry.bindings.get(id(member))
            if binding is None or binding.recorder is not recorder:
                binding = _bind(member, recorder, kind, root, seen)
            for holder in holders | binding.holders:
                if recorder not in holder.since:
                    holder.since[recorder] = None if making else recorder.reader.baseline()
            if not registry.is_traced(member):
                begun.append(member)
            binding.holders |= holders
            backend.attach(member, binding, making=making)
        for member in begun:  # last: until then, another thread may trace a function with it
            index = registry.bindings[id(member)].index
            if making:
                recorder.optimizers.stale.begin(index, member)
            else:
                recorder.optimizers.begin(index, retrace)
    except BaseException as error:
        recorder.note(f"wrap raised {type(error).__name__}: calls may not be counted")
        for holder in holders:
            let_go(begun, holder)
        raise


def let_go(optimizers: Iterable[Any], holder: registry.Holder) -> None:
    """Trace these optimizers no more for this holder; without another one, not at all."""
    with lock:
        for optimizer in optimizers:
            binding = registry.bindings.get(id(optimizer))
            if binding is None or holder not in binding.holders:
                continue
            if binding.holders == {holder}:
                binding.recorder.backend.detach(optimizer, binding)
                binding.recorder.optimizers.stale.let_go(binding.index)
                binding.recorder.blocks.end()
            binding.holders.discard(holder)


def unwrap(optimizer: T, *, retrace: bool = False) -> T:
    """Stop tracing `optimizer` and restore its class; returns the same object.

    For optax, returns the original transformation.

    The trace stays readable. Functions that were traced while the optimizer was wrapped keep their
    graphs with the counters; with `retrace` they are traced again, without counters, at their next
    call. A block of `record` continues to count until it ends. Raises `ValueError` if the program
    has not wrapped the optimizer.
    """
    binding = _binding_of(optimizer)
    if binding is None or registry.PROGRAM not in binding.holders:
        raise ValueError(f"{described(optimizer)} is not wrapped: there is nothing to unwrap")
    recorder, backend = binding.recorder, binding.recorder.backend
    own = binding.optimizer()
    let_go([*backend.around(own), *(member for member, _ in family(own))], registry.PROGRAM)
    unwrapped: T = backend.unwrapped(optimizer)
    if binding.holders and unwrapped is not optimizer:
        recorder.note(backend.unwrapped_note)
    if retrace:
        recorder.blocks.forget_graphs()
    return unwrapped


def trace_of(optimizer: object) -> Trace:
    """The trace of a wrapped optimizer so far, frozen; training may go on.

    It holds all complete steps of the outermost optimizer and of optimizers nested in it.
    Raises `ValueError` if the optimizer was never wrapped.
    """
    binding = _binding_of(optimizer)
    if binding is None:
        raise ValueError(
            f"{described(optimizer)} was never wrapped: call tracer.wrap(optimizer) first"
        )
    recorder: Recorder = binding.recorder
    return recorder.reader.trace(registry.PROGRAM.since.get(recorder))


def _binding_of(given: object) -> Binding | None:
    try:
        return registry.bindings.get(id(backend_of(kind_to_trace(given)).standing_for(given)))
    except UnsupportedOptimizer:
        return None


def _recorder_for(members: Iterable[Any], backend: Backend) -> Recorder:
    """Return the recorder of a family: a new one, unless a member was wrapped before."""
    recorders = {id(r): r for each in members if (r := registry.recorder_of(each)) is not None}
    used = [recorder for recorder in recorders.values() if recorder.used]
    if len(used) > 1:
        raise UnsupportedOptimizer(
            "two optimizers nested in this one have already trained with traces of their own: "
            "wrap the outermost optimizer before they train"
        )
    return next(iter(used or recorders.values()), None) or Recorder(backend)


def _bind(
    optimizer: object, recorder: Recorder, kind: OptimizerKind, root: object, seen: bool
) -> Binding:
    """Bind an optimizer, in the family of `root`, to its recorder."""
    base = recorder.backend.class_of(optimizer)

    def name() -> str:  # called late: the name is set during `__init__`
        own = binding.readable()
        names = (getattr(own, attribute, None) for attribute in ("name", "_name"))
        return next((name for name in names if isinstance(name, str) and name), base.__name__)

    class_name = f"{base.__module__}.{base.__qualname__}"
    own = () if kind.name in AT_ONCE else own_steps(base, kind)
    key, forget = id(optimizer), registry.bindings.pop  # at exit, module globals go first
    reference = ref(optimizer, lambda _: forget(key, None))
    binding = Binding(reference, recorder, name, base, class_name, kind, own)
    recorder.backend.introduce(binding)
    if optimizer is not root:
        binding.made = registry.bindings[id(root)].made
    elif seen and binding.made is NOT_SEEN:
        binding.made = made_here(optimizer)
    known = registry.bindings.get(key)
    recorder.optimizers.add(binding)
    registry.bindings[key] = binding
    if known is not None:
        binding.holders |= known.holders
        for holder in known.holders:  # it was nested in one that steps
            if known.recorder in holder.asked:
                holder.asked.add(recorder)
            if not known.recorder.used:
                holder.since.pop(known.recorder, None)
        if known.recorder.blocks.counters.effects is not None:
            recorder.compare()
    if optimizer is root:
        recorder.optimizers.root = binding.index
    return binding


def _bring_in(optimizer: object, binding: Binding) -> Binding:
    """Trace an optimizer with all that are nested in it; one of them has the `binding`.

    Returns the binding of the optimizer: before its first step, or if it holds a traced one.
    """
    binding.settled = True
    try:
        with lock:
            _hold(list(family(optimizer)), set(binding.holders))
    except UnsupportedOptimizer as error:
        binding.recorder.note(str(error))
    except Exception as error:
        binding.recorder.fault(error)
    return registry.bindings.get(id(optimizer), binding)


registry.bring_in = _bring_in
for _function in (trace_of, unwrap):
    vars(_function)["autograph_info__"] = None  # AutoGraph does not convert functions with this
