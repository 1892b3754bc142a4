"""Operators in programs of `torch.compile`, which report the start and the end of each step.

Dynamo traces a method without running it, and compiled code calls no method. So a compiled step has
an operator at its start and one at its end, each with the number of its listener. All operators
declare a write to one tensor, so compilers keep their order and remove none. A program may write
other tensors to memory only at its end, so if effects are recorded, the operators get values
instead of variables.
"""

from itertools import count
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

import torch

from tracer.backends.torch.dynamo import left_alone

_numbers = count(1)
_listeners: WeakValueDictionary[int, Any] = WeakValueDictionary()

VALUES = SimpleNamespace(wanted=False)
"""Whether the operators get values, because effects are recorded for any optimizer.

Dynamo guards reads of this: a change compiles the program again.
"""


def number_for(listener: Any) -> int:
    """The number by which operators notify `listener`, for as long as it is alive.

    Its method `begins` gets the values at the start of a step; `ends` gets the values at the end,
    and None or a tensor that is not 0 if the step did nothing.
    """
    number = next(_numbers)
    _listeners[number] = listener
    return number


@left_alone
def _begins(moved: Any, number: int, values: list[Any]) -> None:
    listener = _listeners.get(number)
    if listener is not None:
        listener.begins(values)


@left_alone
def _ends(moved: Any, number: int, values: list[Any], skipped: Any) -> None:
    listener = _listeners.get(number)
    if listener is not None:
        listener.ends(values, skipped)


MOVED = torch.zeros((), dtype=torch.int64, device="cpu")
"""The tensor that the operators declare they write to.

It is a real tensor, even if the program builds its model on the device `meta`.
"""
_library = torch.library.Library("tracer", "DEF")
for _name, _run, _more in (("begin", _begins, ""), ("end", _ends, ", Tensor? skipped")):
    _library.define(f"{_name}(Tensor(a!) moved, int number, Tensor[] values{_more}) -> ()")
    _library.impl(_name, _run, "CompositeExplicitAutograd")  # on every device
    _library.impl(_name, lambda *given: None, "Meta")  # for tracing

BEGIN: Any = torch.ops.tracer.begin
"""The operator at the start of a step: `BEGIN(MOVED, number, values)`.

Call it directly in compiled code: Dynamo may have to skip functions of this module, with a graph
break.
"""
END: Any = torch.ops.tracer.end
"""The operator at the end of a step: `END(MOVED, number, values, skipped)`."""
