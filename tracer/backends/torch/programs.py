"""Steps that `torch.compile` made programs of: each has a number, by which it tells of itself.

A program that was compiled while an optimizer was traced, or while a recording ran, is run later,
too: it asks each time that it runs who counts the steps of its optimizer then.
"""

from collections.abc import Callable
from typing import Any, Protocol
from weakref import finalize, ref

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.operators import number_for
from tracer.backends.torch.parameters import parameters_of

Handed = tuple[bool | None, ...]
"""Of each parameter whether it has a gradient; None if it has none and needs none."""


_PARTED = (
    "a step of {name} was compiled in parts by torch.compile: it has a step of its own, of which "
    "it is not known then what it updated: each parameter that has a gradient counts"
)


class Counting(Protocol):
    """What counts the steps of an optimizer."""

    recorder: Any

    def sites(self, parameters: list[Any], layouts: list[Any]) -> Any:
        """The sites of requests for these parameters, and of their updates."""

    def traced(self, updates: Any) -> None:
        """A step with these updates was called to build a program."""

    def ran(self, program: "Program", skipped: Any, now: Any) -> None:
        """A program has run."""


class Program:
    """A program that has a step in it."""

    def __init__(self, optimizer: Any, handed: Handed, begin: dynamo.Mark | None) -> None:
        """`begin` is where the step begins in the program that is being built."""
        self.number = number_for(self)
        self.optimizer = ref(optimizer)
        self._note = ""
        self._moved = list(handed)  # the parameters that it updates
        if compat.steps_by_itself(type(optimizer)):
            parameters = parameters_of(optimizer.param_groups)
            uses = None if begin is None else dynamo.uses_since(begin, parameters)
            if uses is None:
                self._note = _PARTED.format(name=type(optimizer).__name__)
            else:
                self._moved = [
                    used if asks else written
                    for asks, (used, written) in zip(handed, uses, strict=True)
                ]
        self.handed = tuple(a or b for a, b in zip(self._moved, handed, strict=True))
        self.requests: Any = ()
        self.updates: Any = ()
        self._sites_of: Any = None  # the recorder that the sites above are of
        finalize(optimizer, Program.forget, self).atexit = False  # who keeps it until then

    def fit(self, watch: Counting) -> None:
        """Find the sites that stand for it where this one counts."""
        optimizer: Any = self.optimizer()
        if self._sites_of is not watch.recorder:
            layouts = [compat.layout_if(each) for each in self.handed]
            self.requests, updates = watch.sites(parameters_of(optimizer.param_groups), layouts)
            moved = [each for each, asks in zip(self._moved, self.handed, strict=True) if asks]
            self.updates = [site for site, went in zip(updates, moved, strict=True) if went]
            if self._note:
                watch.recorder.note(self._note)
            self._sites_of = watch.recorder
            watch.traced(self.updates)

    def forget(self) -> None:
        """Its optimizer is gone, so it runs no more."""
        self._sites_of = None

    def ends(self, values: Any, skipped: Any) -> None:
        """It has run: see `tracer.backends.torch.operators.number_for`."""
        optimizer = self.optimizer()
        watch = None if optimizer is None else _asks[0](optimizer)
        if watch is not None and not watch.recorder.broken:
            try:
                self.fit(watch)
                watch.ran(self, skipped, values)
            except Exception as error:
                watch.recorder.fault(error)


_asks: list[Callable[[Any], Counting | None]] = []


def ask(watch_of: Callable[[Any], Counting | None]) -> None:
    """Have programs ask `watch_of` who counts the steps of their optimizer."""
    _asks[:] = [watch_of]
