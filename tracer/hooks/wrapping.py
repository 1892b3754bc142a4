"""Implements `wrap` and `unwrap`: gives an optimizer a subclass of its class that reports calls.

The object stays the same, so closures, checkpoints and registries that hold it see no change. All
state is in `registry` and in the recorder, never on the optimizer.
"""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from types import ModuleType
from typing import Any, TypeVar
from weakref import ref

from tracer.backends.backend_list import backend_of
from tracer.backends.optax.updates import (
    KIND,
    TracedUpdate,
    bind,
    go_on,
    is_transformation,
    refuse,
    standing_for,
)
from tracer.core.instances import Living
from tracer.core.interrupts import suppress_faults
from tracer.core.optimizers import NOT_SEEN, Made, TracedOptimizer
from tracer.core.recorder import Recorder
from tracer.core.registry import (
    Binding,
    bindings,
    is_traced,
    plain_class,
    recorder_of,
    set_class,
)
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.hooks.family import described, family, kind_to_trace, own_attributes, own_steps
from tracer.core.imports import when_imported
from tracer.core.lines import made_here
from tracer.backends.keras.traced_class import methods_of, traced_class
from tracer.kinds import LOSS_SCALES, TORCH, OptimizerKind
from tracer.model.trace import Trace

T = TypeVar("T")

__tracebackhide__ = is_mistake


def hold(
    optimizer: Any,
    known: Recorder | None,
    made: Made = NOT_SEEN,
    *,
    retrace: bool = True,
    effects: bool = False,
) -> Recorder:
    """Wrap an optimizer like `join`, but for the program: no block of `record` unwraps it.

    `known` is its earlier recorder, if any.
    """
    if known is not None:
        known.reader.wrapped(new=False)
    recorder = join(optimizer, made, retrace=retrace, effects=effects)
    recorder.compares_for_program |= effects
    for member in _members(optimizer):
        bindings[id(member)].by_program = True
    # Until now, a block that attached it assumed that only blocks trace it.
    recorder.reader.wrapped(new=recorder is not known and not recorder.used)
    return recorder


def join(
    optimizer: Any,
    made: Made = NOT_SEEN,
    *,
    retrace: bool = True,
    effects: bool = False,
    members: Sequence[tuple[Any, OptimizerKind]] = (),
) -> Recorder:
    """Wrap an optimizer and its nested optimizers; returns their recorder.

    `members` is its `family`, if known, and `made` the line that made it. If `retrace`, the
    functions that use it are traced again at their next call. If `effects`, the variables are
    compared before and after each step; otherwise that setting stays as it is.
    """
    if not members:
        optimizer = standing_for(optimizer)
        if is_transformation(optimizer):
            refuse(optimizer)
        if isinstance(optimizer, TracedUpdate):
            return _join_update(optimizer, effects=effects, retrace=retrace)
    _wrap(members or list(family(optimizer)), made, retrace)
    for scale in () if members else _loss_scales_of(optimizer):
        _wrap(list(family(scale)), retrace=retrace)
    recorder = bindings[id(optimizer)].recorder
    if effects:
        recorder.compare(True, retrace=retrace)
    return recorder


def _join_update(update: TracedUpdate, *, effects: bool, **how: bool) -> Recorder:
    if recorder_of(update) is None:
        bind(update, Recorder(backend_of(KIND)))
    recorder = go_on(update, **how)
    if effects:
        recorder.compare(True)
    return recorder


def members_of(optimizer: Any) -> Sequence[tuple[Any, OptimizerKind]]:
    """The optimizer's `family`, searched again only if its attributes have changed.

    Its first step finds optimizers that were added to a list in it.
    """
    binding = bindings.get(id(optimizer))
    attributes = tuple(map(id, own_attributes(optimizer).values()))
    if binding is not None and binding.alone_with == attributes:
        binding.settled = False
        return [(optimizer, binding.recorder.optimizers.all[binding.index].kind)]
    members = list(family(optimizer))
    if binding is not None and len(members) == 1:
        binding.alone_with = attributes
    return members


def require_optimizer(optimizer: object) -> None:
    """Raise `tracer.UnsupportedOptimizer` if `optimizer` cannot be traced."""
    if not is_transformation(optimizer):
        kind_to_trace(optimizer)


def adopt(optimizer: Any, *, effects: bool = False) -> Recorder:
    """Wrap an optimizer whose `__init__` is running; its first step wraps the nested ones.

    For PyTorch, the first step counts itself. For optax: a transformation whose first step begins.
    """
    if isinstance(optimizer, TracedUpdate):
        return _join_update(optimizer, effects=effects, is_new=True)
    kind = kind_to_trace(optimizer)
    plain = is_traced(optimizer) or kind.name == TORCH
    traced = type(optimizer) if plain else traced_class(type(optimizer), kind)
    binding = bindings.get(id(optimizer))
    if binding is None:
        binding = _bind(optimizer, Recorder(backend_of(kind)), kind, made_here(optimizer))
    if effects:
        binding.recorder.compare(True)
    if not plain:
        binding.recorder.optimizers.stale.begin(binding.index)
        binding.traced = True
        set_class(optimizer, traced)
    return binding.recorder


def fail(optimizer: Any, error: Exception) -> Recorder:
    """Record that the tracer itself failed to wrap an optimizer; returns the recorder."""
    recorder = recorder_of(optimizer) or Recorder(backend_of(kind_to_trace(optimizer)))
    recorder.fault(error)
    return recorder


def unwrap(optimizer: T, *, retrace: bool = False) -> T:
    """Stop tracing `optimizer` and restore its class; returns the same object.

    For optax, returns the original transformation.

    The trace stays readable. Functions that were traced while the optimizer was wrapped keep their
    graphs with the counters; with `retrace` they are traced again, without counters, at their next
    call. A block of `record` continues to count until it ends. Raises `ValueError` if the optimizer
    is not wrapped.
    """
    update = standing_for(optimizer)
    if not is_traced(update):
        raise ValueError(f"{described(optimizer)} is not wrapped: there is nothing to unwrap")
    for member in _members(optimizer):
        binding = bindings[id(member)]
        binding.by_program = False
        if binding.recorder.recordings:  # they keep counting, except a returned transformation
            binding.recorder.reader.unwrapped()
            if isinstance(member, TracedUpdate):
                binding.recorder.note(_UNWRAPPED)
    release(_members(optimizer))
    if retrace:
        bindings[id(update)].recorder.blocks.forget_graphs()
    return update.given if isinstance(update, TracedUpdate) else optimizer


_UNWRAPPED = (
    "a transformation was unwrapped in a block of `record`: its updates are not counted until it "
    "is wrapped again or the block ends"
)


def is_wrapped(recorder: Recorder) -> bool:
    """Whether the program has wrapped an optimizer of this recorder."""
    own = [bindings.get(id(each)) for each in recorder.optimizers.alive()]
    return any(binding is not None and binding.by_program for binding in own)


def release(members: Iterable[Any]) -> None:
    """Stop tracing optimizers, unless the program wrapped them or a block still records."""
    for member in members:
        binding = bindings[id(member)]
        wrapped = getattr(binding.observer, "binding", binding)  # of a proxy: its optimizer's
        if wrapped.by_program or binding.recorder.recordings or not is_traced(member):
            continue
        binding.traced = False
        if isinstance(member, TracedUpdate):
            binding.observer = None
        elif binding.observer is not None:
            from tracer.backends.torch import optimizer_hooks

            optimizer_hooks.detach(binding)
        else:
            set_class(member, plain_class(type(member)))
        binding.recorder.end(binding.index)


def _members(optimizer: Any) -> list[Any]:
    """The optimizer, those nested in it and its loss scales, as far as they have a recorder."""
    optimizer = standing_for(optimizer)
    if isinstance(optimizer, TracedUpdate):
        return [optimizer]
    members = [*_loss_scales_of(optimizer), *(member for member, _ in family(optimizer))]
    return [member for member in members if id(member) in bindings]


def trace_of(optimizer: object) -> Trace:
    """The trace of a wrapped optimizer so far: see `tracer.trace_of`."""
    binding = bindings.get(id(standing_for(optimizer)))
    if binding is None:
        raise ValueError(
            f"{described(optimizer)} was never wrapped: call tracer.wrap(optimizer) first"
        )
    return binding.recorder.reader.trace()


def _wrap(
    members: Sequence[tuple[Any, OptimizerKind]], made: Made = NOT_SEEN, retrace: bool = True
) -> None:
    optimizer = members[0][0]
    proxies: list[Any] = []
    if members[0][1].name == TORCH:
        from tracer.backends.torch import (
            optimizer_hooks,  # imported: this optimizer is PyTorch's
        )

        proxies = [member for member, _ in members if optimizer_hooks.is_proxy(member)]
        members = [each for each in members if not any(each[0] is proxy for proxy in proxies)]
        if not members:
            raise UnsupportedOptimizer(
                f"cannot trace {described(optimizer)}: PyTorch calls no hooks around its step, "
                "because its class does not call the __init__ of torch.optim.Optimizer"
            )
    for member, kind in members:
        if not is_traced(member) and kind.name != TORCH:
            traced_class(plain_class(type(member)), kind)  # raises before anything is wrapped
    recorder = _recorder_for([member for member, _ in members], members[0][1])
    try:
        _trace(members, proxies, recorder, made, retrace)
    except BaseException as error:
        recorder.note(f"wrap raised {type(error).__name__}: calls may not be counted")
        raise


def _trace(
    members: Sequence[tuple[Any, OptimizerKind]],
    proxies: Iterable[Any],
    recorder: Recorder,
    made: Made,
    retrace: bool,
) -> None:
    """Begin to trace these optimizers of one recorder."""
    blocks, begun = [], []
    for member, kind in members:
        binding = bindings.get(id(member))
        if binding is None or binding.recorder is not recorder:
            if binding is not None:
                former = binding.recorder
                blocks += [(each, former, member) for each in former.recordings]
            binding = _bind(member, recorder, kind, made)
            if member is members[0][0]:
                recorder.optimizers.root = binding.index
        if not is_traced(member):
            begun.append(binding.index)
            if kind.name == TORCH:
                from tracer.backends.torch import optimizer_hooks

                optimizer_hooks.attach(member, binding)
                continue
            binding.traced = True
            for name in methods_of(kind).keys() & own_attributes(member).keys():
                recorder.note(
                    f"the program assigned {name} to the optimizer itself: its calls are not "
                    "counted"
                )
            set_class(member, traced_class(plain_class(type(member)), kind))
    for index in begun:  # last: until then, another thread may trace a function with one of them
        recorder.optimizers.begin(index, retrace)
    for proxy in proxies:
        stood_for = bindings[id(members[0][0])]
        of_proxy = bindings[id(proxy)] = Binding(
            proxy, recorder, stood_for.index, stood_for.bring_in_nested
        )
        of_proxy.observer = stood_for.observer
        of_proxy.observer.proxies.append(of_proxy)
    for each, former, member in blocks:
        each.replace(former, member)


def _recorder_for(members: Iterable[Any], kind: OptimizerKind) -> Recorder:
    """Return the recorder of a family: a new one, unless a member was wrapped before.

    `kind` is the kind of the outermost optimizer.
    """
    recorders = {id(r): r for each in members if (r := recorder_of(each)) is not None}
    used = [recorder for recorder in recorders.values() if recorder.used]
    if len(used) > 1:
        raise UnsupportedOptimizer(
            "two optimizers nested in this one have already trained with traces of their own: "
            "wrap the outermost optimizer before they train"
        )
    known = used or list(recorders.values())
    # Of those without a step, the one in a recording that was asked for it.
    best = max(known, key=lambda recorder: len(recorder.recordings), default=None)
    return best or Recorder(backend_of(kind))


def _bind(optimizer: Any, recorder: Recorder, kind: OptimizerKind, made: Made) -> Binding:
    base = plain_class(type(optimizer))

    def name() -> str:  # called late: the name is set during `__init__`
        return own_name(binding.optimizer()) or base.__name__

    class_name = f"{base.__module__}.{base.__qualname__}"
    own = () if kind.name == TORCH else own_steps(base, kind)
    traced = TracedOptimizer(ref(optimizer), name, class_name, kind, own, made)
    index = recorder.optimizers.add(traced)
    known = bindings.get(id(optimizer))
    binding = bindings[id(optimizer)] = Binding(optimizer, recorder, index, _bring_in_nested)
    binding.by_program = known is not None and known.by_program
    return binding


def own_name(optimizer: Any) -> str:
    """The optimizer's own name; empty if it has none."""
    for attribute in ("name", "_name"):
        text = getattr(optimizer, attribute, None)
        if isinstance(text, str) and text:
            return text
    return ""


def _bring_in_nested(optimizer: Any, binding: Binding) -> Binding:
    """Add the optimizers nested in this one since it was wrapped, before its first step."""
    binding.settled = True
    _bring_in(optimizer, binding)
    return bindings[id(optimizer)]


def _bring_in(optimizer: Any, binding: Binding) -> None:
    """Trace an optimizer with all that are nested in it; one of them has the `binding`."""
    try:
        _wrap(list(family(optimizer)))
        for member in _members(optimizer) if binding.by_program else ():
            bindings[id(member)].by_program = True
    except UnsupportedOptimizer as error:
        binding.recorder.note(str(error))
    except Exception as error:
        binding.recorder.fault(error)


# The loss scale around an optimizer: the steps that it skips are steps of its optimizer, too.


def _loss_scales_of(optimizer: Any) -> list[Any]:
    """The living loss scales around an optimizer."""
    _watch_loss_scales()
    return [each for each in _loss_scales.all() if _scaled_by(each) is optimizer]


def _scaled_by(loss_scale: Any) -> Any:
    """The optimizer in a loss scale; None if it has none yet, or no more."""
    with suppress_faults():
        return next((each for each, _ in family(loss_scale) if each is not loss_scale), None)
    return None


def _loss_scale_made(loss_scale: Any) -> None:
    """Trace a loss scale that is made around a traced optimizer, as Keras's `compile` does."""
    with suppress_faults():
        optimizer = _scaled_by(loss_scale)
        if is_traced(optimizer):
            _bring_in(loss_scale, bindings[id(optimizer)])


_loss_scales = Living(_loss_scale_made)


@cache
def _watch_loss_scales() -> None:
    """Find the loss scales, from the first optimizer on that is wrapped."""
    for home, names in LOSS_SCALES.items():
        when_imported(home, partial(_watch_classes, names))


def _watch_classes(names: Iterable[str], module: ModuleType) -> None:
    for name in names:
        _loss_scales.watch(getattr(module, name))


vars(unwrap)["autograph_info__"] = None  # AutoGraph does not convert functions with this
