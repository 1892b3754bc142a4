"""`wrap` and `unwrap`: an optimizer's class is exchanged for a subclass that tells of its calls.

The object stays the same one, so every closure, checkpoint and registry that holds it is none the
wiser; what the tracer knows is kept here and in `recorder`, never on the optimizer.
"""

import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar
from weakref import ref

from tracer import compat, inspection
from tracer.errors import OptimizerWarning, UnsupportedOptimizer
from tracer.kinds import ApplyMethod, OptimizerKind, kind_of
from tracer.model.trace import Trace
from tracer.recorder import Frame, FrameRole, Recorder

T = TypeVar("T")


class _Binding:
    """What is known of an optimizer that is or was wrapped."""

    __slots__ = ("index", "optimizer", "recorder", "settled")

    def __init__(self, optimizer: Any, recorder: Recorder, index: int) -> None:
        key, forget = id(optimizer), _bindings.pop  # at exit the module's names are gone first
        self.optimizer = ref(optimizer, lambda _: forget(key, None))
        self.recorder = recorder
        self.index = index
        self.settled = False  # whether its nested optimizers were looked for when it first stepped


_bindings: dict[int, _Binding] = {}
_traced_classes: dict[int, type] = {}  # by the id of the class: a metaclass may compare as it likes
_plain_classes: dict[int, type] = {}  # by the id of the traced class
_making = threading.RLock()


def wrap(optimizer: T) -> T:
    """Trace every call of `optimizer` from now on; returns the same object.

    Optimizers nested in it (a loss scale's inner one, for example) are traced with it. Wrapping
    twice is wrapping once; wrapping again after `unwrap` goes on with the same trace. Functions
    that were traced to graphs before are not counted; the trace then says that it is incomplete.

    Issues a `tracer.OptimizerWarning` if its class cannot work as it is written: a method that is
    never called, or one for sparse gradients that is missing while there is an embedding.

    Raises `tracer.UnsupportedOptimizer`, a `TypeError`, for what is no optimizer of TensorFlow.

    >>> import keras, tracer
    >>> optimizer = tracer.wrap(keras.optimizers.SGD())
    >>> isinstance(optimizer, keras.optimizers.SGD)
    True
    """
    known = id(optimizer) in _bindings
    _wrap(optimizer)
    if not known and (text := _defects(optimizer)):
        warnings.warn(text, OptimizerWarning, stacklevel=2)
    return optimizer


def _defects(optimizer: object) -> str:
    """What the findings say of classes that cannot work, before anything has run."""
    recorder = _bindings[id(optimizer)].recorder
    if not recorder.optimizers.remarked(inspection.FAILING):
        return ""
    from tracer.findings.catalogue import findings

    try:
        found = [each for each in findings(recorder.trace()) if each.code in inspection.FAILING]
    except Exception as error:
        recorder.fault(error)
        return ""
    return " ".join(f"{each.text} {each.advice}" for each in found)


def _wrap(optimizer: Any) -> None:
    members = list(family(optimizer))
    for each, kind in members:
        if not is_traced(each):
            _traced_class(type(each), kind)  # refuses before anything is wrapped
    recorder = _recorder_for([each for each, _ in members])
    for each, kind in members:
        binding = _bindings.get(id(each))
        if binding is None or binding.recorder is not recorder:
            binding = _bind(each, recorder, kind)
            if each is optimizer:
                recorder.optimizers.root = binding.index
        if not is_traced(each):
            recorder.begin(binding.index)
            own = [name for name in _methods(kind) if name in _own_attributes(each)]
            for name in own:
                recorder.note(f"{name} was set on the optimizer itself: its calls are not seen")
            _set_class(each, _traced_class(type(each), kind))


def unwrap(optimizer: T) -> T:
    """Stop tracing `optimizer` and give it back its class; returns the same object.

    What was recorded stays readable. Raises `ValueError` if the optimizer is not wrapped.
    """
    if not is_traced(optimizer):
        raise ValueError(f"{_what(optimizer)} is not wrapped: there is nothing to unwrap")
    for each, _ in family(optimizer):
        if is_traced(each):
            _set_class(each, _plain(type(each)))
            _bindings[id(each)].recorder.end(_bindings[id(each)].index)
    return optimizer


def trace_of(optimizer: object) -> Trace:
    """The trace of a wrapped optimizer so far, frozen; training may go on.

    It holds all the steps that were complete, of the outermost optimizer and those nested in it.
    Raises `ValueError` if the optimizer was never wrapped.
    """
    binding = _bindings.get(id(optimizer))
    if binding is None:
        raise ValueError(f"{_what(optimizer)} was never wrapped: call tracer.wrap(optimizer) first")
    return binding.recorder.trace()


def is_traced(optimizer: object) -> bool:
    """Whether `optimizer` is wrapped now. A copy of a wrapped one may have its class, no more."""
    return id(type(optimizer)) in _plain_classes and id(optimizer) in _bindings


def recorder_of(optimizer: object) -> Recorder | None:
    """The recorder of an optimizer that is or was wrapped."""
    binding = _bindings.get(id(optimizer))
    return None if binding is None else binding.recorder


def join(optimizer: Any) -> Recorder:
    """Wrap an optimizer; returns its recorder."""
    _wrap(optimizer)
    return _bindings[id(optimizer)].recorder


def adopt(optimizer: Any) -> Recorder:
    """Wrap an optimizer in the making; what is nested in it follows at its first step."""
    kind = _kind(optimizer)
    traced = type(optimizer) if is_traced(optimizer) else _traced_class(type(optimizer), kind)
    binding = _bindings.get(id(optimizer))
    if binding is None:
        binding = _bind(optimizer, Recorder(), kind)
    if not is_traced(optimizer):
        _set_class(optimizer, traced)
    return binding.recorder


def _bind(optimizer: Any, recorder: Recorder, kind: OptimizerKind) -> _Binding:
    base = _plain(type(optimizer))

    def name() -> str:
        for attribute in ("name", "_name"):  # asked late: an optimizer in the making has none yet
            found = getattr(binding.optimizer(), attribute, None)
            if isinstance(found, str) and found:
                return found
        return base.__name__

    class_name = f"{base.__module__}.{base.__qualname__}"
    remarks = inspection.remarks_of(base, kind)
    index = recorder.optimizers.add(optimizer, name, class_name, kind, remarks)
    binding = _bindings[id(optimizer)] = _Binding(optimizer, recorder, index)
    return binding


def _settle(optimizer: Any, binding: _Binding) -> _Binding:
    """Before its first step: bring in what was nested in it since it was wrapped."""
    binding.settled = True
    try:
        _wrap(optimizer)
    except UnsupportedOptimizer as error:
        binding.recorder.note(str(error))
    except Exception as error:
        binding.recorder.fault(error)
    return _bindings[id(optimizer)]


for _function in (wrap, unwrap, trace_of):
    vars(_function)["autograph_info__"] = None  # AutoGraph calls what has this as it is


# Which optimizers.


def family(optimizer: object) -> Iterator[tuple[Any, OptimizerKind]]:
    """The optimizer and those nested in its attributes, each once, with their kinds."""
    kind = _kind(optimizer)
    seen = {id(optimizer)}
    todo: list[tuple[Any, OptimizerKind]] = [(optimizer, kind)]
    while todo:
        each, kind = todo.pop(0)
        yield each, kind
        for value in _attributes(each):
            nested = kind_of(type(value))
            if nested is not None and id(value) not in seen:
                seen.add(id(value))
                todo.append((value, nested))


def _own_attributes(optimizer: Any) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(optimizer, "__dict__")
    return found


def _attributes(optimizer: Any) -> Iterator[Any]:
    """What hangs on the optimizer, in lists and dicts too, as deep as a list of dicts in one."""
    todo = [(value, 0) for value in list(_own_attributes(optimizer).values())]
    while todo:
        value, depth = todo.pop()
        yield value
        if depth < 3 and isinstance(value, dict | list | tuple):
            items = value.values() if isinstance(value, dict) else value
            todo += [(each, depth + 1) for each in list(items)]


def _kind(optimizer: object) -> OptimizerKind:
    """The kind of `optimizer`; raises `UnsupportedOptimizer` with what would work."""
    if isinstance(optimizer, type):
        raise UnsupportedOptimizer(
            f"wrap takes an optimizer, not a class: use tracer.wrap({optimizer.__name__}(...))"
        )
    kind = kind_of(type(optimizer))
    if kind is None:
        raise UnsupportedOptimizer(
            f"cannot trace {_what(optimizer)}: wrap takes a TensorFlow optimizer, that is one of "
            "keras.optimizers, tf_keras.optimizers, tf_keras.optimizers.legacy or "
            "tf.compat.v1.train"
        )
    backend = getattr(sys.modules.get("keras"), "backend", None)
    if kind.name == "keras3" and backend is not None and backend.backend() != "tensorflow":
        raise UnsupportedOptimizer(
            f"cannot trace {_what(optimizer)}: Keras runs on the {backend.backend()} backend; set "
            "KERAS_BACKEND=tensorflow before keras is imported"
        )
    return kind


def _what(optimizer: object) -> str:
    if inspect.isroutine(optimizer):
        return f"the function {optimizer.__name__}"
    cls = type(optimizer)
    return f"{'an' if cls.__name__[0] in 'AEIOUaeiou' else 'a'} {cls.__name__}"


def _recorder_for(members: Iterable[Any]) -> Recorder:
    """The one recorder of a family: a new one, unless one of them was wrapped before."""
    found = {id(r): r for each in members if (r := recorder_of(each)) is not None}
    used = [recorder for recorder in found.values() if recorder.used]
    if len(used) > 1:
        raise UnsupportedOptimizer(
            "two of the optimizers nested in this one have been traced on their own already: wrap "
            "the outermost optimizer before they train"
        )
    return (used or list(found.values()) or [Recorder()])[0]


# The class.


def _set_class(optimizer: Any, cls: type) -> None:
    """`optimizer.__class__ = cls`, past the property by which a traced class hides itself."""
    object.__dict__["__class__"].__set__(optimizer, cls)


def _follow(kind: OptimizerKind, optimizer: Any, cls: type) -> None:
    """The program gives its optimizer another class: a traced one stays traced."""
    if id(type(optimizer)) in _plain_classes:
        cls = _traced_class(_plain(cls), kind)
    _set_class(optimizer, cls)


def _plain(cls: type) -> type:
    """The class that a traced class stands for; any other class itself."""
    return _plain_classes.get(id(cls), cls)


def _methods(kind: OptimizerKind) -> dict[str, tuple[FrameRole, ApplyMethod | None]]:
    """What is intercepted, by name."""
    found: dict[str, tuple[FrameRole, ApplyMethod | None]] = {}
    found.update((name, ("step", None)) for name in kind.step_methods)
    found.update((name, ("group", None)) for name in kind.group_methods)
    found.update((apply.name, ("apply", apply)) for apply in kind.apply_methods)
    return found


def _traced_class(base: type, kind: OptimizerKind) -> type:
    """The subclass of `base` that traces; one for each class.

    To the program it is `base`: `optimizer.__class__` says so, because registries (Keras'
    serialization, TensorFlow's checkpoints) are keyed by the class, and copies and pickles are of
    the class `base`, untraced. A class that the program derives from it does not trace either.
    """
    with _making:
        traced = _traced_classes.get(id(base))
        if traced is None:
            traced = _made_class(base, kind)
            _plain_classes[id(traced)] = base
            _traced_classes[id(base)] = traced
        return traced


def _made_class(base: type, kind: OptimizerKind) -> type:
    """A new traced class; raises `UnsupportedOptimizer` if `base` allows none."""
    if method := inspection.super_of_type(base):
        raise _no_subclass(
            base,
            f"its {method} calls super(type(self), self), which never ends in one; write super()",
        )
    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
        "__class__": property(lambda self: _plain(type(self)), partial(_follow, kind)),
    }
    for name, (role, apply) in _methods(kind).items():
        if hasattr(base, name):
            members[name] = _traced_method(base, name, role, apply)
    members |= _transparency(base)
    try:
        traced: type = type(base)(base.__name__, (base,), members)
    except Exception as error:  # whatever its metaclass or its `__init_subclass__` raises
        raise _no_subclass(base, error) from error
    if vars(traced).get("__class__") is not members["__class__"]:
        raise _no_subclass(base, "its metaclass gives another class instead")
    for name in vars(traced).keys() - members.keys() - _OF_ABC:
        type.__delattr__(traced, name)  # written by `__init_subclass__`, say, as it was to `base`
    return traced


_OF_ABC = {"__abstractmethods__", "_abc_impl"}
"""What `ABCMeta` keeps for each class."""


def _no_subclass(base: type, reason: object) -> UnsupportedOptimizer:
    return UnsupportedOptimizer(
        f"cannot trace the class {base.__qualname__}, it allows no subclass: {reason}"
    )


def _transparency(base: Any) -> dict[str, Any]:
    """What keeps configs, copies, pickles and exports as they are without the tracer."""

    def above(traced: Any) -> Any:
        """What comes after the traced class: `base`, or another if a class is derived from it."""
        return super(_traced_classes[id(base)], traced)

    def reduce(self: Any, protocol: Any) -> Any:
        reduced, cls, plain = above(self).__reduce_ex__(protocol), type(self), _plain(type(self))
        if not isinstance(reduced, tuple):
            return reduced
        make, arguments, *rest = reduced
        if getattr(make, "__self__", None) is cls:  # a class method, as in Keras 3
            make = getattr(plain, make.__name__)
        elif make is cls:
            make = plain
        return (make, tuple(plain if a is cls else a for a in arguments), *rest)

    members: dict[str, Any] = {"__reduce_ex__": reduce}
    if hasattr(base, "from_config"):

        def from_config(cls: Any, *args: Any, **kwargs: Any) -> Any:
            of = base if id(cls) in _plain_classes else above(cls)
            return of.from_config(*args, **kwargs)

        members["from_config"] = classmethod(from_config)
    if hasattr(base, "__deepcopy__"):

        def deepcopy(self: Any, memo: Any) -> Any:
            copied = above(self).__deepcopy__(memo)
            if type(copied) is type(self) and id(copied) not in _bindings:
                _set_class(copied, _plain(type(copied)))
            return copied

        members["__deepcopy__"] = deepcopy
    if hasattr(base, "_trackable_children"):

        def children(self: Any, save_type: str = "checkpoint", **kwargs: Any) -> Any:
            found = above(self)._trackable_children(save_type, **kwargs)
            binding = _bindings.get(id(self))
            if save_type != "savedmodel" or binding is None:
                return found
            counters = compat.AutoTrackable()
            for name, variable in binding.recorder.children().items():
                setattr(counters, name, variable)
            return {**found, "_optimizer_tracer": counters}

        members["_trackable_children"] = children
    return members


# The methods.


def _traced_method(
    base: type, name: str, role: FrameRole, apply: ApplyMethod | None
) -> Callable[..., Any]:
    """`base`'s method `name`, told of.

    It stays a plain function that AutoGraph converts or leaves alone as it would the original: the
    decision goes by `__module__`. Optimizers read the signature of their own apply methods.
    """
    original = inspect.getattr_static(base, name)
    intercepted = _Method(base, name, role, apply)

    def step_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Call(intercepted, self, args, kwargs) as call:
            call.result = call.original(*call.args, **call.kwargs)
            return call.result

    def apply_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original, call = _begin_apply(intercepted, self, args, kwargs)
        result, failed = None, True
        try:
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            _end_apply(call, result, failed)

    method = step_method if apply is None else apply_method
    method.__name__ = name
    method.__qualname__ = getattr(original, "__qualname__", name)
    method.__module__ = getattr(original, "__module__", base.__module__)
    method.__doc__ = getattr(original, "__doc__", None)
    try:
        function = getattr(base, name)
        method.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]
    except (TypeError, ValueError):  # a method of C or with a signature that cannot be read
        pass
    return method


class _Method(NamedTuple):
    """A method of `base` that is intercepted."""

    base: type
    name: str
    role: FrameRole
    apply: ApplyMethod | None


def _begin_apply(
    method: _Method, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Frame | None]:
    """The original of an apply method, and what `_end_apply` is to be told of its call."""
    base, name, _, apply = method
    traced = _traced_classes[id(base)]
    original = getattr(super(traced, optimizer), name)
    binding = _bindings.get(id(optimizer))
    if binding is None or binding.recorder.broken or apply is None:
        return original, None
    if type(optimizer) is not traced:  # of a class derived from it, which is traced by its own
        return original, None
    try:
        pair = args if len(args) > 1 else _in_order(original, args, kwargs)
        if len(pair) < 2:  # the framework will refuse it
            return original, None
        return original, binding.recorder.enter_apply(binding.index, apply, pair[0], pair[1])
    except Exception as error:
        binding.recorder.fault(error)
        return original, None


def _end_apply(call: Frame | None, result: Any, failed: bool) -> None:
    """The call has ended."""
    if call is not None:
        try:
            call.recorder.leave_apply(call, result, failed)
        except Exception as fault:
            call.recorder.fault(fault)


vars(_begin_apply)["autograph_info__"] = None
vars(_end_apply)["autograph_info__"] = None


class _Call(Frame):
    """One call of a traced step or group method, from its first to its last line.

    A fault of the tracer is not the program's: it is told of once, and the call goes on.
    """

    __slots__ = ("args", "kwargs", "original", "seen")

    autograph_info__ = None

    def __init__(
        self, method: _Method, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        base, name, role, _ = method
        traced = _traced_classes[id(base)]
        self.original = getattr(super(traced, optimizer), name)
        self.args, self.kwargs = args, kwargs
        self.result: Any = None
        self.python = None  # until it has begun: it may be interrupted before
        self.seen = False  # by the recorder
        binding = _bindings.get(id(optimizer))
        if binding is None or binding.recorder.broken or type(optimizer) is not traced:
            return
        if role == "step" and not binding.settled:
            binding = _settle(optimizer, binding)
        self.recorder = binding.recorder
        try:
            self.recorder.enter(self, binding.index, name, role)
            self.seen = True
            if role == "step" and self.parent is None:
                self._watch(optimizer, binding.index, name)
        except Exception as error:
            self.recorder.fault(error)

    def __enter__(self) -> "_Call":
        self.python = sys._getframe(1)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self.python = None
        if self.seen:
            try:
                self.recorder.leave(self, kind is not None)
            except Exception as fault:
                self.recorder.fault(fault)

    def _watch(self, optimizer: Any, index: int, name: str) -> None:
        """Note the gradients that are handed over, without taking them from an iterator early."""
        values = _in_order(self.original, self.args, self.kwargs)
        if not values:
            return
        pairs = values[0]
        if name == "apply":
            variables: Any = values[1] if len(values) > 1 else None
            if variables is None:
                variables = getattr(optimizer, "_trainable_variables", ())
            pairs = list(zip(pairs, variables, strict=False)) if _sized(pairs, variables) else ()
        if isinstance(pairs, Collection):
            for _ in self.recorder.requests(self, index, name, pairs):
                pass
        elif isinstance(pairs, Iterator):
            watched = self.recorder.requests(self, index, name, pairs)
            if self.args:
                self.args = (watched, *self.args[1:])
            else:
                first = next(iter(inspect.signature(self.original).parameters))
                self.kwargs = {**self.kwargs, first: watched}


def _in_order(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Sequence[Any]:
    """The arguments in the order of the signature; none if they do not fit it."""
    if not kwargs:
        return args
    signature = inspect.signature(original)
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return ()
    return [bound.get(name) for name in signature.parameters]


def _sized(*values: Any) -> bool:
    return all(isinstance(each, Collection) for each in values)
