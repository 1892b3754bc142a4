"""Makes the methods of a traced class: each reports its call and calls the original.

They are plain functions, so that AutoGraph converts them like the originals. AutoGraph does not
convert what they call here. A failure here is the tracer's fault, never the program's.

The name of this file matters: `warnings.warn(..., stacklevel=2)` in an original method warns about
its caller, and skips frames whose file name has both "importlib" and "_bootstrap" in it
(`Lib/warnings.py: _is_internal_frame`). So each warning has the file and line that it has without
the tracer.
"""

import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from typing import Any

from tracer.core.calls import Call, Step, Token
from tracer.core.registry import Binding, bindings, traced_classes
from tracer.kinds import ApplyMethod


def disguised(method: Callable[..., Any], base: type, name: str) -> Callable[..., Any]:
    """Give `method` the name, module, docstring, source and signature of `base`'s; returns it."""
    original = inspect.getattr_static(base, name)
    method.__name__ = name
    method.__qualname__ = getattr(original, "__qualname__", name)
    method.__module__ = getattr(original, "__module__", base.__module__)
    method.__doc__ = getattr(original, "__doc__", None)
    if inspect.isfunction(original):
        vars(method)["__wrapped__"] = original
    with suppress(TypeError, ValueError):  # a method of C, or an unreadable signature
        method.__signature__ = inspect.signature(getattr(base, name))  # type: ignore[attr-defined]
    return method


def note_beside(base: type, name: str, optimizer: Any, given: Sequence[Any]) -> Callable[..., Any]:
    """Note the call of such a method, unless it has no variables; returns the original."""
    original, binding = _original(base, name, optimizer)
    if binding is not None:
        try:
            if not binding.settled:
                binding = binding.bring_in(optimizer, binding)
            if not any(isinstance(each, list | tuple) and not each for each in given):
                binding.recorder.optimizers.all[binding.index].called[name] += 1
            if not binding.recorder.optimizers.stepping:
                binding.recorder.collectors.call("used_without_step", name)
        except BaseException as error:
            binding.recorder.fault(error)
    return original


def _original(base: type, name: str, optimizer: Any) -> tuple[Callable[..., Any], Binding | None]:
    """Return the method that an intercepted one replaces, and the binding that records the call.

    The binding is None if the optimizer is not wrapped, or if its class is derived from the traced
    class and has a traced class of its own.
    """
    traced = traced_classes[id(base)]
    try:
        above = super(traced, optimizer)
    except TypeError:  # untraced again: a bound method that was taken in an earlier block
        return getattr(base, name).__get__(optimizer), None
    original = getattr(above, name)
    binding = bindings.get(id(optimizer))
    if binding is None or type(optimizer) is not traced or binding.recorder.broken:
        return original, None
    return original, binding


vars(note_beside)["autograph_info__"] = None


def begin_apply(
    base: type, apply: ApplyMethod, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Callable[..., Any], Any, Token | None]:
    """Begin a call of an apply method; returns the original, and the recorder with its token."""
    original, binding = _original(base, apply.name, optimizer)
    if binding is None:
        return original, None, None
    recorder = binding.recorder
    try:
        if len(args) < 2:
            args = (*_in_order(original, args, kwargs), None, None)
        return original, recorder, recorder.open_apply(binding.index, apply, args[0], args[1])
    except BaseException as error:
        recorder.fault(error)
        return original, None, None


def end_apply(recorder: Any, token: Token | None, result: Any, failed: bool) -> None:
    if token is not None:
        try:
            recorder.close_apply(token, result, failed)
        except BaseException as fault:
            recorder.fault(fault)


vars(begin_apply)["autograph_info__"] = None
vars(end_apply)["autograph_info__"] = None


class _Traced:
    """A call of a traced step or group method, from its first to its last line.

    A fault of the tracer is reported once, and the program's call goes on.
    """

    __slots__ = ()

    autograph_info__ = None

    def __init__(
        self: Any,
        base: type,
        method: str,
        optimizer: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> None:
        self.method = method
        self.original, binding = _original(base, method, optimizer)
        self.args, self.kwargs = args, kwargs
        self.recorder = None  # until opened
        if binding is None:
            return
        if self.role == "step" and not binding.settled:
            binding = binding.bring_in(optimizer, binding)
        recorder = binding.recorder
        try:
            recorder.open(self, binding.index, method)
            if self.role == "step" and self.parent is None:
                self._watch(optimizer, binding.index, method)
        except BaseException as error:
            recorder.fault(error)

    def __enter__(self: Any) -> Any:
        self.python = sys._getframe(1)
        return self

    def __exit__(self: Any, kind: Any, error: Any, traceback: Any) -> None:
        self.python = None
        if self.recorder is not None:
            try:
                self.recorder.close(self, kind is not None, error)
            except BaseException as fault:
                self.recorder.fault(fault)

    def _watch(self: Any, optimizer: Any, index: int, name: str) -> None:
        """Record the gradients of the step, without consuming an iterator early."""
        values = _in_order(self.original, self.args, self.kwargs)
        if name == "stateless_apply":  # its arguments: the optimizer's state, gradients, values
            values = values[1:2]
        if not values:
            return
        pairs = values[0]
        if name != "apply_gradients":
            variables: Any = values[1] if len(values) > 1 else None
            if variables is None:
                variables = getattr(optimizer, "_trainable_variables", ())
            sized = isinstance(pairs, Collection) and isinstance(variables, Collection)
            pairs = list(zip(pairs, variables, strict=False)) if sized else ()
        if isinstance(pairs, Collection):
            for _ in self.recorder.requests(self, index, name, pairs):
                pass
        elif isinstance(pairs, Iterator):
            watched = self.recorder.requests(self, index, name, pairs)
            if self.args:
                self.args = (watched, *self.args[1:])
            else:
                self.kwargs = {k: watched if v is pairs else v for k, v in self.kwargs.items()}


_GIVEN = ("args", "kwargs", "method", "original")


class TracedStep(_Traced, Step):
    """A call of a traced step method."""

    __slots__ = _GIVEN


class TracedGroup(_Traced, Call):
    """A call of a traced group method."""

    __slots__ = _GIVEN


def _in_order(
    original: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Sequence[Any]:
    """The arguments in the order of the signature; empty if they do not fit it."""
    if not kwargs:
        return args
    signature = inspect.signature(original)
    try:
        bound = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:
        return ()
    return [bound.get(name) for name in signature.parameters]


def traced_method(
    traced: type[TracedStep | TracedGroup], name: str, base: type
) -> Callable[..., Any]:
    """Return `base`'s step or group method `name`, which also reports its calls to the recorder.

    The result is a plain function that AutoGraph converts exactly if it would convert the original:
    it decides by `__module__`. Optimizers also read the signatures of their apply methods.
    """

    def step_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with traced(base, name, self, args, kwargs) as call:
            call.result = call.original(*call.args, **call.kwargs)
            return call.result

    return disguised(step_method, base, name)


def traced_apply_method(apply: ApplyMethod, base: type) -> Callable[..., Any]:
    """Return `base`'s apply method, which also reports its calls to the recorder."""

    def apply_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original, recorder, token = begin_apply(base, apply, self, args, kwargs)
        result, failed = None, True
        try:
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            end_apply(recorder, token, result, failed)

    return disguised(apply_method, base, apply.name)


def method_beside(base: type, name: str) -> Callable[..., Any]:
    """Return `base`'s method `name`, which makes no step; its calls are noted."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return note_beside(base, name, self, (*args, *kwargs.values()))(*args, **kwargs)

    return disguised(method, base, name)
