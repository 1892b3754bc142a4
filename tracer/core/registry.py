"""Registers the optimizers that are or were wrapped, and the classes that trace.

Nothing is stored on an optimizer: it would be tracked, saved and restored. Optimizers and classes
are keyed by `id`, because they may define comparison and hashing as they like.
"""

from collections.abc import Callable
from typing import Any
from weakref import ref

from tracer.core.recorder import Recorder


class Binding:
    """The state of an optimizer that is or was wrapped."""

    __slots__ = (
        "alone_with",
        "bring_in_nested",
        "by_program",
        "former",
        "index",
        "observer",
        "optimizer",
        "recorder",
        "settled",
        "traced",
    )

    def __init__(
        self,
        optimizer: Any,
        recorder: Recorder,
        index: int,
        bring_in_nested: "Callable[[Any, Binding], Binding]",
    ) -> None:
        key, forget = id(optimizer), bindings.pop  # at exit, module globals go first
        self.optimizer = ref(optimizer, lambda _: forget(key, None))
        self.recorder = recorder
        self.index = index
        self.traced = False  # whether the optimizer is wrapped now
        self.by_program = False  # whether the program wrapped it, not only `record`
        self.settled = False  # whether its first step has searched for nested optimizers
        self.bring_in_nested = bring_in_nested
        self.alone_with: tuple[int, ...] = ()  # ids of its attributes if none is an optimizer
        self.observer: Any = None  # sees its steps if its class does not: PyTorch's hooks
        self.former: Any = None  # its earlier observer, to be reused


bindings: dict[int, Binding] = {}
traced_classes: dict[int, type] = {}  # by the id of the class
plain_classes: dict[int, type] = {}  # by the id of the traced class


def is_traced(optimizer: object) -> bool:
    """Whether `optimizer` is wrapped now; the traced class alone, as of a copy, is not enough."""
    binding = bindings.get(id(optimizer))
    if binding is None or binding.observer is not None:
        return binding is not None
    return binding.traced and id(type(optimizer)) in plain_classes


def recorder_of(optimizer: object) -> Recorder | None:
    """The recorder of an optimizer that is or was wrapped."""
    binding = bindings.get(id(optimizer))
    return None if binding is None else binding.recorder


def set_class(optimizer: Any, cls: type) -> None:
    """Assign `optimizer.__class__`, bypassing the property that hides a traced class."""
    object.__dict__["__class__"].__set__(optimizer, cls)


def plain_class(cls: type) -> type:
    """The class behind a traced class; any other class itself."""
    return plain_classes.get(id(cls), cls)
