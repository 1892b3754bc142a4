"""Which optimizers are or were wrapped, and which classes trace.

Kept here and nowhere on the optimizer: anything assigned to it would be tracked, saved and
restored. Optimizers and classes are known by their `id`, for they may compare and hash as they
like.
"""

from collections.abc import Callable
from typing import Any
from weakref import ref

from tracer.core.recorder import Recorder


class Binding:
    """What is known of an optimizer that is or was wrapped."""

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
        key, forget = id(optimizer), bindings.pop  # at exit the module's names are gone first
        self.optimizer = ref(optimizer, lambda _: forget(key, None))
        self.recorder = recorder
        self.index = index
        self.traced = False  # whether it is wrapped now
        self.by_program = False  # whether the program wrapped it, not only a block of `record`
        self.settled = False  # whether its nested optimizers were looked for when it first stepped
        self.bring_in_nested = bring_in_nested
        self.alone_with: tuple[int, ...] = ()  # the ids of its attributes if none is an optimizer
        self.observer: Any = None  # what sees its steps if not its class, as PyTorch's hooks
        self.former: Any = None  # what was its observer before: it is the same one again


bindings: dict[int, Binding] = {}
traced_classes: dict[int, type] = {}  # by the id of the class: a metaclass may compare as it likes
plain_classes: dict[int, type] = {}  # by the id of the traced class


def is_traced(optimizer: object) -> bool:
    """Whether `optimizer` is wrapped now. A copy of a wrapped one may have its class, no more."""
    binding = bindings.get(id(optimizer))
    if binding is None or binding.observer is not None:
        return binding is not None
    return binding.traced and id(type(optimizer)) in plain_classes


def recorder_of(optimizer: object) -> Recorder | None:
    """The recorder of an optimizer that is or was wrapped."""
    binding = bindings.get(id(optimizer))
    return None if binding is None else binding.recorder


def set_class(optimizer: Any, cls: type) -> None:
    """`optimizer.__class__ = cls`, past the property by which a traced class hides itself."""
    object.__dict__["__class__"].__set__(optimizer, cls)


def plain_class(cls: type) -> type:
    """The class that a traced class stands for; any other class itself."""
    return plain_classes.get(id(cls), cls)
