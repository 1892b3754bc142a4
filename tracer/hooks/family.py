"""Recognizes optimizers, and finds the optimizers nested in one."""

import re
from collections.abc import Iterator
from typing import Any

from tracer.backends import backend_list as backends
from tracer.core.backend import described, own_attributes
from tracer.core.reachable import layers
from tracer.errors import UnsupportedOptimizer, is_mistake, suppress_faults
from tracer.kinds import SHIPPED, WRAPPABLE, OptimizerKind, kind_of

__tracebackhide__ = is_mistake


def family(optimizer: object) -> Iterator[tuple[Any, OptimizerKind]]:
    """Yield the optimizer and those nested in its attributes, each once, with their kinds."""
    kind = kind_to_trace(optimizer)
    backend, name = backends.backend_of(kind), backends.name_of(kind)
    if not backend.nests:
        yield optimizer, kind
        return
    seen = {id(optimizer)}
    todo: list[tuple[Any, OptimizerKind]] = [(optimizer, kind)]
    while todo:
        member, kind = todo.pop(0)
        yield member, kind
        for values in layers(list(own_attributes(member).values()), depth=4):
            for value in values:
                nested = kind_of(type(value))
                if nested is not None and backends.name_of(nested) == name:
                    value = backend.standing_for(value)
                    todo += [] if id(value) in seen else [(value, nested)]
                    seen.add(id(value))


def kind_to_trace(optimizer: object) -> OptimizerKind:
    """Return the kind of `optimizer`; raises `UnsupportedOptimizer` with a suggestion."""
    if isinstance(optimizer, type):
        raise UnsupportedOptimizer(
            f"wrap takes an optimizer, not a class: use tracer.wrap({optimizer.__name__}(...))"
        )
    kind = kind_of(type(optimizer))
    if kind is None:
        raise UnsupportedOptimizer(
            f"cannot trace {described(optimizer)}: wrap takes {WRAPPABLE}; of a "
            "model, give `model.optimizer`"
        )
    name = backends.name_of(kind)
    if name not in backends.BACKENDS:
        raise UnsupportedOptimizer(
            f"cannot trace {described(optimizer)}: Keras runs on the {name} backend; "
            "set KERAS_BACKEND to tensorflow, jax or torch before keras is imported"
        )
    return kind


_LEADS_TO_APPLY_METHOD = re.compile("apply_gradients|update_step")
"""Other methods that lead to an apply method: `_internal_apply_gradients`, for example."""


def own_steps(cls: type, kind: OptimizerKind) -> tuple[str, ...]:
    """The methods between the step and the apply methods that the program defines.

    They may update variables without the apply methods.
    """
    called = {apply.name for apply in kind.apply_methods}
    known = {*kind.step_methods, *kind.group_methods}
    names = dict.fromkeys(kind.step_methods[:1])
    with suppress_faults():  # reading a class may raise anything
        names = dict.fromkeys(
            name
            for each in cls.__mro__
            if each.__module__.split(".")[0] not in SHIPPED
            for name in vars(each)
            if name not in called and (name in known or _LEADS_TO_APPLY_METHOD.search(name))
        )
    return tuple(names)
