"""What is the same for Keras on every framework: see `tracer.core.backend.Backend`.

An optimizer gets a subclass of its class, which reports the calls of its methods. The optimizer
stays the same object, so closures, checkpoints and registries that hold it see no change.
"""

from collections.abc import Callable, Mapping
from functools import cache, partial
from types import ModuleType
from typing import Any

from tracer.backends.keras.traced_class import methods_of, traced_class
from tracer.core.backend import Backend, own_attributes
from tracer.core.instances import Living
from tracer.core.interrupts import suppress_faults
from tracer.core.patches import when_imported
from tracer.core.registry import Binding, bindings, is_traced, plain_class, set_class
from tracer.kinds import LOSS_SCALES, MAKERS, OptimizerKind, kind_of

_STATE = ("_trainable_variables", "_variables", "_hyper", "_slots", "_optimizer", "_opt")
"""Attributes that the constructor of each base class, or of a wrapper, assigns."""


class KerasBackend(Backend):
    """Replaces the class of an optimizer; imports no framework."""

    def prepare(self, optimizer: Any) -> None:
        """Make the traced class; raises `UnsupportedOptimizer` if it cannot be made."""
        self._class_for(plain_class(type(optimizer)))

    def attach(self, optimizer: Any, binding: Binding, *, making: bool = False) -> None:
        """Replace the class of the optimizer."""
        kind = binding.recorder.optimizers.all[binding.index].kind
        for name in methods_of(kind).keys() & own_attributes(optimizer).keys():
            binding.recorder.note(
                f"the program assigned {name} to the optimizer itself: its calls are not counted"
            )
        set_class(optimizer, self._class_for(plain_class(type(optimizer))))

    def detach(self, optimizer: Any, binding: Binding) -> None:
        """Restore the class of the optimizer."""
        set_class(optimizer, plain_class(type(optimizer)))

    def around(self, optimizer: Any) -> list[Any]:
        """The living loss scales around an optimizer: steps that they skip are its steps, too."""
        _watch_loss_scales()
        return [each for each in _loss_scales.all() if _scaled_by(each) is optimizer]

    def living(self) -> list[Any]:
        """All living optimizers, except those whose `__init__` raised."""
        found = [each for each in _living.all() if _is_optimizer(each)]
        return [each for each in found if not own_attributes(each).keys().isdisjoint(_STATE)]

    def listen(self, made: Callable[..., None] | None, *, always: bool = False) -> None:
        """Call `made` at the end of the `__init__` of each base class."""
        _listeners[:] = [made] if made is not None else []
        _watch_imports()

    def members(
        self, base: type, kind: OptimizerKind, methods: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """More members of the traced class of `base`, which has these traced `methods`."""
        return {}

    def class_seen(self, optimizer: object) -> type:
        """The `__class__` of a traced optimizer: its plain class."""
        return plain_class(type(optimizer))

    def _class_for(self, base: type) -> type:
        kind = kind_of(base)
        assert kind is not None, "only optimizers are attached"
        return traced_class(base, kind, self)


_listeners: list[Callable[..., None]] = []


_STAND_INS = ("Optimizer", "RestoredOptimizer")
"""Classes of Keras that cannot update a variable: `keras/src/saving/saving_lib.py`,
`tf_keras/src/optimizers/optimizer.py`."""


def _made(optimizer: Any) -> None:
    if _is_optimizer(optimizer):
        for made in list(_listeners):
            made(optimizer, making=True)


def _is_optimizer(made: Any) -> bool:
    """False for what Keras makes to list attributes, or to hold the state of a SavedModel."""
    cls = plain_class(type(made))
    stands_in = cls.__name__ in _STAND_INS and cls.__module__.startswith(("keras.", "tf_keras."))
    return not stands_in and kind_of(cls) is not None


_living = Living(_made)


@cache
def _watch_imports() -> None:
    """Watch the base classes that are imported, and others once they are imported."""
    for home in dict.fromkeys(home for home, _ in MAKERS):
        names = tuple(name for place, name in MAKERS if place == home)
        when_imported(home, partial(_watch, _living, names))


def _watch(living: Living, names: tuple[str, ...], module: ModuleType) -> None:
    for cls in (getattr(module, name, None) for name in names):
        if cls is not None:
            living.watch(cls)


def _scaled_by(loss_scale: Any) -> Any:
    """The optimizer in a loss scale; None if it has none yet, or no more."""
    held = own_attributes(loss_scale).values()
    return next((each for each in held if kind_of(type(each)) is not None), None)


def _loss_scale_made(loss_scale: Any) -> None:
    """Trace a loss scale that is made around a traced optimizer, as Keras's `compile` does."""
    with suppress_faults():
        optimizer = _scaled_by(loss_scale)
        if is_traced(optimizer):
            bindings[id(optimizer)].bring_in(loss_scale, bindings[id(optimizer)])


_loss_scales = Living(_loss_scale_made)


@cache
def _watch_loss_scales() -> None:
    """Find the loss scales, from the first optimizer on that is wrapped."""
    for home, names in LOSS_SCALES.items():
        when_imported(home, partial(_watch, _loss_scales, names))
