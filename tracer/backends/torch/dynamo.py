"""What is relied on of Dynamo, which builds a program of the code that `torch.compile` is given."""

from collections.abc import Callable, Sequence
from functools import wraps
from types import FrameType
from typing import Any, NamedTuple, TypeVar, cast
from weakref import ref

import torch
from torch._C._dynamo import eval_frame as _dynamo

F = TypeVar("F", bound=Callable[..., Any])

is_compiling: Callable[[], bool] = torch.compiler.is_compiling
"""Whether `torch.compile` looks at the code that calls this, to build a program."""

set_compiler: Callable[[Any], Any] = _dynamo.set_eval_frame
"""Sets what compiles the frames that this thread runs, None for nothing; returns what did."""

eagerly: Callable[..., Any] = torch._disable_dynamo
"""Has a function called by each run of a program, which is parted there."""


def constant(function: F) -> F:
    """Have a function called where a program is built, once and then; the program has its result.

    It is what `torch.compiler.assume_constant_result` does (`_dynamo/decorators.py`), which takes
    seconds to import; who compiles nothing shall not wait for that.
    """
    vars(function)["_dynamo_marked_constant"] = True
    return function


def without_dynamo(function: F) -> F:
    """Have a function run by Python, called from compiled code, too; what it calls may be compiled.

    It is what `torch.compiler.disable(recursive=False)` does (`_dynamo/decorators.py`), without the
    import.
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
    """Have a function, and all that it calls, run by Python, also where Dynamo has given up.

    A frame that Dynamo cannot part, as that of a `step` with another one in it, runs as it is, and
    then what it calls would be compiled. It is what `torch.compiler.disable` does, without the
    import.
    """

    @wraps(function)
    def undisturbed(*given: Any, **named: Any) -> Any:
        compiler = set_compiler(None)
        try:
            return function(*given, **named)
        finally:
            set_compiler(compiler)

    return cast(F, without_dynamo(undisturbed))


class ProgramPoint(NamedTuple):
    """A place in a program that Dynamo builds."""

    graph: "ref[Any]"
    last: Any
    """The last node so far."""


def here() -> ProgramPoint:
    """The place where the program that is being built ends now."""
    graph = _output().graph
    return ProgramPoint(ref(graph), next(iter(reversed(graph.nodes)), None))


def used_since(place: ProgramPoint, tensors: Sequence[Any]) -> list[bool] | None:
    """Whether ops after `place` use each of these tensors.

    None if the program was parted meanwhile.
    """
    output = _output()
    graph = place.graph()
    if graph is None or graph is not output.graph:
        return None
    nodes = list(graph.nodes)
    later = nodes[1 + nodes.index(place.last) :] if place.last in nodes else nodes
    used = set()
    for node in {each for op in later for each in op.all_input_nodes}:
        if node.op == "get_attr":  # the parameters of an optimizer are constants of its program
            used.add(id(output.nn_modules.get(node.target)))
        elif node.op == "placeholder" and "grapharg" in node.meta:
            used.add(id(node.meta["grapharg"].example))
    return [id(each) in used for each in tensors]


def _output() -> Any:
    from torch._dynamo.symbolic_convert import InstructionTranslator  # is there: it runs

    return InstructionTranslator.current_tx().output


def frame_around(python: FrameType) -> FrameType:
    """The frame of the program that calls what `python` runs, above those of PyTorch and ours."""
    at: FrameType | None = python
    while at is not None and _is_between(at):
        python, at = at, at.f_back
    return python if at is None else at


def _is_between(python: FrameType) -> bool:
    name = str(python.f_globals.get("__name__") or "torch")  # what it generates may have no module
    generated = "eval_with_key" in python.f_code.co_filename
    return generated or name.partition(".")[0] in ("torch", "tracer", "contextlib")
