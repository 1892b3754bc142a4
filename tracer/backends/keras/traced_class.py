"""Makes the traced class: one subclass for each class of optimizers.

To the program it looks like the original class: see `traced_class` and `_transparency`.
"""

import threading
from functools import cache, partial
from itertools import pairwise
from types import FunctionType
from typing import Any

from tracer.backends.keras.importlib_bootstrap import method_beside, traced_method
from tracer.backends.keras.interception import disguised
from tracer.core.calls import CallRole
from tracer.core.interrupts import interrupt_in
from tracer.core.registry import (
    bindings,
    plain_class,
    plain_classes,
    set_class,
    traced_classes,
)
from tracer.errors import UnsupportedOptimizer
from tracer.kinds import AUXILIARY, ApplyMethod, OptimizerKind

_making = threading.RLock()


@cache
def methods_of(kind: OptimizerKind) -> dict[str, tuple[CallRole, ApplyMethod | None]]:
    """The intercepted methods, by name."""
    methods: dict[str, tuple[CallRole, ApplyMethod | None]] = {}
    methods.update((name, ("step", None)) for name in kind.step_methods)
    methods.update((name, ("group", None)) for name in kind.group_methods)
    methods.update((apply.name, ("apply", apply)) for apply in kind.apply_methods)
    return methods


def traced_class(base: type, kind: OptimizerKind, added: Any) -> type:
    """Return the subclass of `base` that traces; there is one for each class.

    `added` is the `KerasBackend`, which has more members for the class.

    `optimizer.__class__` still returns `base`, because registries (Keras's serialization,
    TensorFlow's checkpoints) are keyed by the class. Copies and pickles have the class `base` and
    are not traced, nor is a class that the program derives from the traced class.
    """
    with _making:
        traced = traced_classes.get(id(base))
        if traced is None:
            traced = _made_class(base, kind, added)
            plain_classes[id(traced)] = base
            traced_classes[id(base)] = traced
        return traced


def _made_class(base: type, kind: OptimizerKind, added: Any) -> type:
    """Make a traced class; raises `UnsupportedOptimizer` if `base` cannot be subclassed."""
    for name, function in vars(base).items():  # such a call never ends in a subclass
        names = function.__code__.co_names if isinstance(function, FunctionType) else ()
        if ("super", "type") in pairwise(names) and name not in ("__init__", "__new__"):  # have run
            raise _no_subclass(base, f"{name} calls super(type(self), self); write super()")
    members: dict[str, Any] = {
        "__slots__": (),
        "__module__": base.__module__,
        "__qualname__": base.__qualname__,
        "__doc__": base.__doc__,
    }
    for name, (role, apply) in methods_of(kind).items():
        if hasattr(base, name):
            members[name] = traced_method(base, name, role, apply)
    for name in AUXILIARY:
        if hasattr(base, name):
            members[name] = method_beside(base, name)
    for name, method in added.members(base, kind, members).items():
        members[name] = disguised(method, base, name)
    members["__class__"] = property(added.class_seen, partial(_follow, kind, added))
    members |= _transparency(base)
    try:
        traced: type = type(base)(base.__name__, (base,), members)
    except Exception as error:  # from its metaclass or `__init_subclass__`
        if interrupt_in(error) is not None:
            raise
        raise _no_subclass(base, error) from error
    if vars(traced).get("__class__") is not members["__class__"]:
        raise _no_subclass(base, "its metaclass gives another class instead")
    for name in vars(traced).keys() - members.keys() - _OF_ABC:
        type.__delattr__(traced, name)  # for example written by `__init_subclass__`
    return traced


_OF_ABC = {"__abstractmethods__", "_abc_impl"}
"""Attributes that `ABCMeta` stores in each class."""


def _no_subclass(base: type, reason: object) -> UnsupportedOptimizer:
    return UnsupportedOptimizer(
        f"cannot trace the class {base.__qualname__}, because it cannot be subclassed: {reason}"
    )


def above_traced(base: type, traced: Any) -> Any:
    """The class after the traced class in the MRO: `base`, or another if a class is derived."""
    return super(traced_classes[id(base)], traced)


def _transparency(base: Any) -> dict[str, Any]:
    """The members that keep configs, copies, pickles and exports the same as without the tracer."""
    above = partial(above_traced, base)

    def reduce(self: Any, protocol: Any) -> Any:
        reduced, cls, plain = (
            above(self).__reduce_ex__(protocol),
            type(self),
            plain_class(type(self)),
        )
        if not isinstance(reduced, tuple):
            return reduced
        make, arguments, *rest = reduced
        if getattr(make, "__self__", None) is cls:  # a class method (Keras 3)
            make = getattr(plain, make.__name__)
        elif make is cls:
            make = plain
        return (make, tuple(plain if a is cls else a for a in arguments), *rest)

    members: dict[str, Any] = {"__reduce_ex__": reduce}
    if hasattr(base, "from_config"):

        def from_config(cls: Any, *args: Any, **kwargs: Any) -> Any:
            of = base if id(cls) in plain_classes else above(cls)
            return of.from_config(*args, **kwargs)

        members["from_config"] = classmethod(from_config)
    if hasattr(base, "__deepcopy__"):

        def deepcopy(self: Any, memo: Any) -> Any:
            copied = above(self).__deepcopy__(memo)
            if type(copied) is type(self) and id(copied) not in bindings:
                set_class(copied, plain_class(type(copied)))
            return copied

        members["__deepcopy__"] = deepcopy
    return members


def _follow(kind: OptimizerKind, added: Any, optimizer: Any, cls: type) -> None:
    """Assign another class to an optimizer for the program: a traced optimizer stays traced."""
    if id(type(optimizer)) in plain_classes:
        cls = traced_class(plain_class(cls), kind, added)
    set_class(optimizer, cls)
