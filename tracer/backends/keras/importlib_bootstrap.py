"""Makes the methods of a traced class: each reports its call and calls the original.

They are plain functions, so that AutoGraph converts them like the originals.

The name of this file matters: `warnings.warn(..., stacklevel=2)` in an original method warns about
its caller, and skips frames whose file name has both "importlib" and "_bootstrap" in it
(`Lib/warnings.py: _is_internal_frame`). So each warning has the file and line that it has without
the tracer.
"""

from collections.abc import Callable
from typing import Any

from tracer.backends.keras.interception import (
    InterceptedMethod,
    TracedGroup,
    TracedStep,
    begin_apply,
    disguised,
    end_apply,
    note_beside,
)
from tracer.core.calls import CallRole
from tracer.kinds import ApplyMethod


def traced_method(
    base: type, name: str, role: CallRole, apply: ApplyMethod | None
) -> Callable[..., Any]:
    """Return `base`'s method `name`, which also reports its calls to the recorder.

    The result is a plain function that AutoGraph converts exactly if it would convert the original:
    it decides by `__module__`. Optimizers also read the signatures of their apply methods.
    """
    intercepted = InterceptedMethod(base, name, role, apply)
    traced = TracedStep if role == "step" else TracedGroup

    def step_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        with traced(intercepted, self, args, kwargs) as call:
            call.result = call.original(*call.args, **call.kwargs)
            return call.result

    def apply_method(self: Any, *args: Any, **kwargs: Any) -> Any:
        original, recorder, token = begin_apply(intercepted, self, args, kwargs)
        result, failed = None, True
        try:
            result = original(*args, **kwargs)
            failed = False
            return result
        finally:
            end_apply(recorder, token, result, failed)

    return disguised(step_method if apply is None else apply_method, base, name)


def method_beside(base: type, name: str) -> Callable[..., Any]:
    """Return `base`'s method `name`, which makes no step; its calls are noted."""

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        return note_beside(base, name, self, (*args, *kwargs.values()))(*args, **kwargs)

    return disguised(method, base, name)
