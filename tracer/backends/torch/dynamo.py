"""What the backend relies on in Dynamo, the tracer of `torch.compile`."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch._C._dynamo import eval_frame as _dynamo

F = TypeVar("F", bound=Callable[..., Any])

is_compiling: Callable[[], bool] = torch.compiler.is_compiling
"""True while `torch.compile` traces the code that calls this."""


def without_dynamo(function: F) -> F:
    """Have Python run a function, also if compiled code calls it; its callees may be compiled.

    This does what `torch.compiler.disable(recursive=False)` does (`_dynamo/decorators.py`), without
    its import, which takes seconds.
    """
    vars(function)["_torchdynamo_disable"] = True
    if hasattr(_dynamo, "set_code_exec_strategy"):
        skip, default = _dynamo._FrameAction.SKIP, _dynamo._FrameAction.DEFAULT
        strategy = _dynamo._FrameExecStrategy(skip, default)
        _dynamo.set_code_exec_strategy(function.__code__, strategy)
    else:  # until PyTorch 2.7
        _dynamo.skip_code(function.__code__)
    return function


def left_alone(function: F) -> F:
    """Have Python run a function and all its callees, also where Dynamo fell back to eager mode.

    If Dynamo cannot break the graph in a frame, as in a `step` that calls another one, the frame
    runs in eager mode, and its callees would be compiled. This does what `torch.compiler.disable`
    does, without the import.
    """

    @wraps(function)
    def undisturbed(*given: Any, **named: Any) -> Any:
        compiler = _dynamo.set_eval_frame(None)
        try:
            return function(*given, **named)
        finally:
            _dynamo.set_eval_frame(compiler)

    return cast(F, without_dynamo(undisturbed))
