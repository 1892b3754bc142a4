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
from functools import update_wrapper
from types import FrameType
from typing import Any

from tracer.core import registry
from tracer.core.call_paths import frames_from
from tracer.core.calls import Apply, Call, Step, Token
from tracer.core.optimizers import Binding
from tracer.core.registry import bindings
from tracer.kinds import ApplyMethod

traced_classes: dict[int, type] = {}
"""The traced classes, by the `id` of the plain class: a class may define hashing as it likes."""


def disguised(method: Callable[..., object], base: type, name: str) -> Callable[..., object]:
    """Give `method` the name, module, docstring, source and signature of `base`'s; returns it."""
    update_wrapper(method, inspect.getattr_static(base, name), updated=())
    method.__name__ = name
    with suppress(TypeError, ValueError):  # a method of C, or an unreadable signature
        method.__signature__ = inspect.signature(getattr(base, name))  # type: ignore[attr-defined]
    return method


def _original(
    base: type, name: str, optimizer: object
) -> tuple[Callable[..., object], Binding | None]:
    """Return the method that an intercepted one replaces, and the binding that records the call.

    The binding is None if the optimizer is not wrapped, or if its class is derived from the traced
    class and has a traced class of its own.
    """
    traced = traced_classes[id(base)]
    if traced not in type(optimizer).__mro__:  # untraced again: a method taken in an earlier block
        return getattr(base, name).__get__(optimizer), None
    original = getattr(super(traced, optimizer), name)
    binding = bindings.get(id(optimizer))
    if binding is None or type(optimizer) is not traced or binding.recorder.broken:
        return original, None
    return original, binding


class _Intercepted:
    """A call of an intercepted method, except an apply method, from its first to its last line.

    A fault of the tracer is reported once, and the program's call goes on.
    """

    __slots__ = ()

    autograph_info__ = None

    def __init__(
        self: Any,
        base: type,
        method: str,
        optimizer: object,
        args: tuple[object, ...],
        kwargs: dict[str, object],
    ) -> None:
        self.method = method
        self.original, binding = _original(base, method, optimizer)
        self.args, self.kwargs = args, kwargs
        self.recorder = None  # until opened
        if binding is not None:
            try:
                self._begin(optimizer, binding)
            except BaseException as error:
                bindings.get(id(optimizer), binding).recorder.fault(error)

    def __enter__(self: Any) -> Any:
        self.python = sys._getframe(1)
        return self

    def __exit__(self: Any, kind: object, error: BaseException | None, traceback: object) -> None:
        self.python = None
        if self.recorder is not None:
            try:
                self.recorder.close(self, error is not None, error)
            except BaseException as fault:
                self.recorder.fault(fault)

    def _begin(self: Any, optimizer: object, binding: Binding) -> None:
        binding.recorder.open(self, binding.index, self.method)


_GIVEN = ("args", "kwargs", "method", "original")


class TracedGroup(_Intercepted, Call):
    """A call of a traced group method."""

    __slots__ = _GIVEN


class TracedStep(_Intercepted, Step):
    """A call of a traced step method."""

    __slots__ = _GIVEN

    def _begin(self, optimizer: object, binding: Binding) -> None:
        if not binding.settled:
            binding = registry.bring_in(optimizer, binding)
        super()._begin(optimizer, binding)
        if self.parent is None:
            self._watch(optimizer, binding.index, self.method)

    def _watch(self: Any, optimizer: object, index: int, name: str) -> None:
        """Record the gradients of the step, without consuming an iterator early."""
        values = _in_order(self.original, self.args, self.kwargs)
        if name == "stateless_apply":  # its arguments: the optimizer's state, gradients, values
            values = values[1:2]
        pairs, variables, *_ = (*values, None, None)
        if name != "apply_gradients":
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


class NotedCall(_Intercepted):
    """A call of a method that makes no step; it is noted, unless it has no variables."""

    __slots__ = (*_GIVEN, "python", "recorder", "result")

    def _begin(self, optimizer: object, binding: Binding) -> None:
        if not binding.settled:
            binding = registry.bring_in(optimizer, binding)
        recorder, given = binding.recorder, (*self.args, *self.kwargs.values())
        if not any(isinstance(each, list | tuple) and not each for each in given):
            binding.called[self.method] += 1
        if not recorder.optimizers.stepping:
            recorder.collectors.call("used_without_step", self.method)


def _in_order(
    original: Callable[..., object], args: tuple[object, ...], kwargs: dict[str, object]
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


def begin_apply(
    apply: ApplyMethod,
    base: type,
    optimizer: object,
    args: tuple[object, ...],
    kwargs: dict[str, object],
) -> tuple[Callable[..., object], Any, Token | None]:
    """Begin a call of an apply method; returns the original, and the recorder with its token.

    Training in eager mode waits for each such call, so it has no object: see `Token`.
    """
    original, binding = _original(base, apply.name, optimizer)
    recorder = token = None
    if binding is not None:
        recorder = binding.recorder
        try:
            if len(args) < 2:
                args = (*_in_order(original, args, kwargs), None, None)
            token = recorder.open_apply(binding.index, apply, args[0], args[1])
            if isinstance(token, Apply):
                token.python = next(filter(_is_no_autograph, frames_from(sys._getframe(1))))
        except BaseException as error:
            recorder.fault(error)
    return original, recorder, token


def end_apply(recorder: Any, token: Token | None, result: object, failed: bool) -> None:
    """End a call of an apply method that `begin_apply` began; `failed` if it raised."""
    if token is not None:
        try:
            recorder.close_apply(token, result, failed)
        except BaseException as error:
            recorder.fault(error)


vars(begin_apply)["autograph_info__"] = vars(end_apply)["autograph_info__"] = None


def _is_no_autograph(frame: FrameType) -> bool:
    """False for a frame of AutoGraph, which makes the calls of a converted method."""
    return not frame.f_globals.get("__name__", "").startswith("tensorflow.python.autograph.")


def traced_method(traced: type[_Intercepted], name: str, base: type) -> Callable[..., object]:
    """Return `base`'s method `name`, which also reports its calls, as `traced`, to the recorder.

    The result is a plain function that AutoGraph converts exactly if it would convert the original:
    it decides by `__module__`. Optimizers also read the signatures of their apply methods.
    """

    def method(self: object, *args: object, **kwargs: object) -> object:
        with traced(base, name, self, args, kwargs) as call:
            call.result = call.original(*call.args, **call.kwargs)
            return call.result

    return disguised(method, base, name)


def traced_apply_method(apply: ApplyMethod, name: str, base: type) -> Callable[..., object]:
    """Return `base`'s apply method, made as by `traced_method`."""

    def method(self: object, *args: object, **kwargs: object) -> object:
        original, recorder, token = begin_apply(apply, base, self, args, kwargs)
        result, failed = None, True
        try:
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            end_apply(recorder, token, result, failed)

    return disguised(method, base, name)
