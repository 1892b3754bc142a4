"""What is the same for Keras on every framework: see `tracer.core.backend.Backend`.

An optimizer gets a subclass of its class, which reports the calls of its methods. The optimizer
stays the same object, so closures, checkpoints and registries that hold it see no change. To the
program the subclass looks like the original: its `__class__` is that of the original.
"""

import threading
from collections.abc import Callable, Mapping
from functools import cache, partial, partialmethod
from itertools import pairwise
from types import FunctionType, ModuleType
from typing import Any

import wrapt

from tracer.backends.keras.importlib_bootstrap import (
    NotedCall,
    TracedGroup,
    TracedStep,
    disguised,
    traced_apply_method,
    traced_classes,
    traced_method,
)
from tracer.core import registry
from tracer.core.backend import Backend, own_attributes
from tracer.core.instances import Living
from tracer.core.optimizers import Binding
from tracer.errors import UnsupportedOptimizer, interrupt_in, suppress_faults
from tracer.kinds import AUXILIARY, LOSS_SCALES, MAKERS, OptimizerKind, kind_of

_STATE = ("_trainable_variables", "_variables", "_hyper", "_slots", "_optimizer", "_opt")
"""Attributes that the constructor of each base class, or of a wrapper, assigns."""


class KerasBackend(Backend):
    """Replaces the class of an optimizer; imports no framework."""

    def prepare(self, optimizer: object) -> None:
        """Make the traced class; raises `UnsupportedOptimizer` if it cannot be made."""
        self._class_for(self.class_of(optimizer))

    def attach(self, optimizer: object, binding: Binding, *, making: bool = False) -> None:
        """Replace the class of the optimizer."""
        for name in methods_of(binding.kind).keys() & own_attributes(optimizer).keys():
            binding.recorder.note(
                f"the program assigned {name} to the optimizer itself: its calls are not counted"
            )
        _set_class(optimizer, self._class_for(self.class_of(optimizer)))

    def detach(self, optimizer: object, binding: Binding) -> None:
        """Restore the class of the optimizer."""
        _set_class(optimizer, self.class_of(optimizer))

    def class_of(self, optimizer: object) -> type:
        """The plain class of the optimizer."""
        return _plain_class(type(optimizer))

    def around(self, optimizer: object) -> list[object]:
        """The living loss scales around an optimizer: steps that they skip are its steps, too."""
        _watch(_loss_scales, LOSS_SCALES)
        return [each for each in _loss_scales.all() if _scaled_by(each) is optimizer]

    def living(self) -> list[object]:
        """All living optimizers, except those whose `__init__` raised."""
        return [
            each
            for each in _living.all()
            if _is_optimizer(each) and not own_attributes(each).keys().isdisjoint(_STATE)
        ]

    def listen(self, made: Callable[..., None] | None) -> None:
        """Call `made` at the end of the `__init__` of each base class."""
        _listeners[:] = [made] if made is not None else []
        _watch(_living, MAKERS)

    def members(
        self, base: type, kind: OptimizerKind, methods: Mapping[str, Any]
    ) -> Mapping[str, Callable[..., object]]:
        """More members of the traced class of `base`, which has these traced `methods`."""
        return {}

    def class_seen(self, optimizer: object) -> type:
        """The `__class__` of a traced optimizer: its plain class."""
        return self.class_of(optimizer)

    def _class_for(self, base: type) -> type:
        """Return the subclass of `base` that traces; there is one for each class.

        `optimizer.__class__` still returns `base`, because registries (Keras's serialization,
        TensorFlow's checkpoints) are keyed by the class. Pickles have the class `base`. Copies are
        not traced, nor is a class that the program derives from the traced class.
        """
        with _making:
            traced = traced_classes.get(id(base))
            if traced is None:
                traced = self._made_class(base)
                plain_classes[id(traced)] = base
                traced_classes[id(base)] = traced
            return traced

    def _made_class(self, base: type) -> type:
        """Make a traced class; raises `UnsupportedOptimizer` if `base` cannot be subclassed."""
        for name, function in vars(base).items():  # such a call never ends in a subclass
            names = function.__code__.co_names if isinstance(function, FunctionType) else ()
            has_run = name in ("__init__", "__new__")
            if ("super", "type") in pairwise(names) and not has_run:
                raise _no_subclass(base, f"{name} calls super(type(self), self); write super()")
        kind = kind_of(base)
        assert kind is not None, "only optimizers are attached"
        members: dict[str, object] = {
            "__slots__": (),
            "__module__": base.__module__,
            "__qualname__": base.__qualname__,
            "__doc__": base.__doc__,
        }
        noted = dict.fromkeys(AUXILIARY, partial(traced_method, NotedCall))
        for name, made in (methods_of(kind) | noted).items():
            if hasattr(base, name):
                members[name] = made(name, base)
        for name, method in self.members(base, kind, members).items():
            members[name] = disguised(method, base, name)
        members["__class__"] = property(self.class_seen, self._assign_class)
        members["__reduce_ex__"] = partialmethod(_reduce, base)
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

    def _assign_class(self, optimizer: object, cls: type) -> None:
        """Assign another class to an optimizer for the program: a traced one stays traced."""
        is_traced_class = id(type(optimizer)) in plain_classes
        _set_class(optimizer, self._class_for(_plain_class(cls)) if is_traced_class else cls)


_listeners: list[Callable[..., None]] = []


_STAND_INS = ("Optimizer", "RestoredOptimizer")
"""Classes of Keras that cannot update a variable: `keras/src/saving/saving_lib.py`,
`tf_keras/src/optimizers/optimizer.py`."""


def _made(optimizer: object) -> None:
    if _is_optimizer(optimizer):
        for made in list(_listeners):
            made(optimizer, making=True)


def _is_optimizer(made: object) -> bool:
    """False for what Keras makes to list attributes, or to hold the state of a SavedModel."""
    cls = _plain_class(type(made))
    stands_in = cls.__name__ in _STAND_INS and cls.__module__.startswith(("keras.", "tf_keras."))
    return not stands_in and kind_of(cls) is not None


_living = Living(_made)


@cache
def _watch(living: Living, classes: tuple[tuple[str, str], ...]) -> None:
    """Watch the classes that are imported, and others once they are imported."""
    for home, name in classes:
        wrapt.register_post_import_hook(partial(_watch_class, living, name), home)


def _watch_class(living: Living, name: str, module: ModuleType) -> None:
    cls = getattr(module, name, None)
    if cls is not None:
        living.watch(cls)


def _scaled_by(loss_scale: object) -> object:
    """The optimizer in a loss scale; None if it has none yet, or no more."""
    held = own_attributes(loss_scale).values()
    return next((each for each in held if kind_of(type(each)) is not None), None)


def _loss_scale_made(loss_scale: object) -> None:
    """Trace a loss scale that is made around a traced optimizer, as Keras's `compile` does."""
    with suppress_faults():
        optimizer = _scaled_by(loss_scale)
        if registry.is_traced(optimizer):
            registry.bring_in(loss_scale, registry.bindings[id(optimizer)])


_loss_scales = Living(_loss_scale_made)


# The traced class: one subclass for each class of optimizers.

plain_classes: dict[int, type] = {}
"""The plain classes, by the `id` of the traced class."""
_making = threading.RLock()


def _set_class(optimizer: object, cls: type) -> None:
    """Assign `optimizer.__class__`, bypassing the property that hides a traced class."""
    object.__dict__["__class__"].__set__(optimizer, cls)


def _plain_class(cls: type) -> type:
    """The class behind a traced class; any other class itself."""
    return plain_classes.get(id(cls), cls)


@cache
def methods_of(kind: OptimizerKind) -> dict[str, Callable[..., Any]]:
    """By the name of each intercepted method, what makes the traced one from its name and class."""
    return {
        **dict.fromkeys(kind.step_methods, partial(traced_method, TracedStep)),
        **dict.fromkeys(kind.group_methods, partial(traced_method, TracedGroup)),
        **{each.name: partial(traced_apply_method, each) for each in kind.apply_methods},
    }


_OF_ABC = {"__abstractmethods__", "_abc_impl"}
"""Attributes that `ABCMeta` stores in each class."""


def _no_subclass(base: type, reason: object) -> UnsupportedOptimizer:
    return UnsupportedOptimizer(
        f"cannot trace the class {base.__qualname__}, because it cannot be subclassed: {reason}"
    )


def _reduce(optimizer: object, base: type, protocol: object) -> object:
    """What `__reduce_ex__` returns without the tracer, so that pickles know no traced class."""
    cls, plain = type(optimizer), _plain_class(type(optimizer))
    above: Any = super(traced_classes[id(base)], optimizer)
    reduced = above.__reduce_ex__(protocol)
    if not isinstance(reduced, tuple):
        return reduced
    make, arguments, *rest = reduced
    if getattr(make, "__self__", None) is cls:  # a class method (Keras 3)
        make = getattr(plain, make.__name__)
    elif make is cls:
        make = plain
    return (make, tuple(plain if each is cls else each for each in arguments), *rest)
