"""Operators in programs that `torch.compile` builds: they notify that a step begins, or has ended.

Dynamo runs no line of a method that it traces, and what it compiles calls none. So a step in a
program has an operator at its begin and one at its end, each with the number of its listener. All
of them say that they write to one tensor: so they keep their order, and no compiler leaves one out.
What a program writes to another tensor may be in its memory only when all of it has run: where
effects are asked for, they are passed the values, and not the variables.
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
"""Whether the operators get values, as effects are asked for of anything.

Dynamo guards what it reads here: it compiles again if that changes.
"""


def number_for(listener: Any) -> int:
    """A number by which operators notify `listener`, as long as somebody keeps it.

    Its method `begins` gets the values where a step begins; `ends` gets those where it has ended,
    and None or a tensor that says whether the step did nothing.
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
"""What the operators say that they write to.

It is a real tensor also if the program builds its model on the device `meta` meanwhile.
"""
_library = torch.library.Library("tracer", "DEF")
for _name, _run, _more in (("begin", _begins, ""), ("end", _ends, ", Tensor? skipped")):
    _library.define(f"{_name}(Tensor(a!) moved, int number, Tensor[] values{_more}) -> ()")
    _library.impl(_name, _run, "CompositeExplicitAutograd")  # on each device
    _library.impl(_name, lambda *given: None, "Meta")  # as a compiler looks at it

BEGIN: Any = torch.ops.tracer.begin
"""Stands where a step begins: `BEGIN(MOVED, number, values)`.

In compiled code it is called as it stands here, and by no function: one of this module Dynamo may
have to leave alone, and would part the program there.
"""
END: Any = torch.ops.tracer.end
"""Stands where a step has ended: `END(MOVED, number, values, skipped)`."""
