"""Steps that `torch.compile` made programs of: each has a number, by which it notifies of itself.

A program that was compiled while an optimizer was traced, or while a recording ran, is run later,
too: it asks each time that it runs what counts the steps of its optimizer then.
"""

from typing import Any
from weakref import finalize, ref

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.listeners import counter_of
from tracer.backends.torch.operators import number_for
from tracer.backends.torch.parameters import parameters_of
from tracer.core.instances import instances
from tracer.core.registry import bindings

Handed = tuple[bool | None, ...]
"""Of each parameter whether it has a gradient; None if it has none and needs none."""
PROGRAM = "torch.compile"
"""What stands for the name of a function, where `torch.compile` made a program of a step."""

_PARTED = (
    "a step of {name} was compiled in parts by torch.compile: it has a step of its own, of which "
    "it is not known then what it updated: each parameter that has a gradient counts"
)


class Programs:
    """The programs that `torch.compile` makes of the steps of one optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.number = number_for(self)
        self.optimizer = ref(optimizer)
        self._one_step = compat.steps_with_hooks(type(optimizer)) == 1
        self._holds = compat.holds_optimizer(optimizer)
        self._mark: dynamo.Mark | None = None
        """Where the step begins that is being compiled."""
        self._handed: Handed | None = None
        """What it is handed; None if that comes until its end."""

    @property
    def alone(self) -> bool:
        """Whether no other step is called inside of its steps, as far as the class shows."""
        binding = bindings.get(id(self.optimizer()))
        known = None if binding is None else binding.watch
        others = self._holds if known is None else len(known.recorder.optimizers) > 1
        return self._one_step and not others

    def step_begins(self, handed: Handed | None) -> None:
        """A step is compiled: it begins here."""
        self._handed, self._mark = handed, dynamo.mark()

    def step_ends(self, handed: Handed) -> int:
        """The step ends here; returns the number of the program that it is in."""
        optimizer: Any = self.optimizer()
        program = Program(optimizer, self._handed or handed, self._mark)
        binding = bindings.get(id(optimizer))
        if binding is not None and binding.watch is not None:
            program.count_by(binding.watch)
        return program.number

    def begins(self, values: Any) -> None:
        """A program runs, and its step begins: see `tracer.backends.torch.operators.number_for`."""
        binding = bindings.get(id(self.optimizer()))
        if binding is not None and binding.watch is not None:
            binding.watch.begins(values)


_of_untraced: dict[int, Programs] = {}


def programs_of(number: int) -> Programs:
    """The programs of the optimizer with this `id`, by which alone Dynamo hands it over, if it is
    not traced yet.
    """
    known = _of_untraced.get(number)
    if known is None:
        optimizer = next(each for each in instances([compat.Optimizer]) if id(each) == number)
        known = _of_untraced[number] = Programs(optimizer)
        finalize(optimizer, _of_untraced.pop, number, None).atexit = False
    return known


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
        finalize(optimizer, Program._forget, self).atexit = False  # who keeps it until then

    def count_by(self, counter: Any) -> bool:
        """Find the sites that stand for it where the steps are counted; False after a fault."""
        recorder = counter.recorder
        try:
            if self._sites_of is not recorder and not recorder.broken:
                layouts = [compat.layout_if(each) for each in self.handed]
                parameters = parameters_of(counter.optimizer().param_groups)
                self.requests, updates = counter.sites(parameters, layouts)
                moved = [each for each, asks in zip(self._moved, self.handed, strict=True) if asks]
                self.updates = [site for site, went in zip(updates, moved, strict=True) if went]
                if self._note:
                    recorder.note(self._note)
                self._sites_of = recorder
                recorder.step_traced(counter.index, "step", self.updates)
        except Exception as error:
            recorder.fault(error)
        return not recorder.broken

    def _forget(self) -> None:
        """Its optimizer is gone, so it runs no more."""
        self._sites_of = None

    def ends(self, values: Any, skipped: Any) -> None:
        """It has run: see `tracer.backends.torch.operators.number_for`."""
        optimizer = self.optimizer()
        counter = None if optimizer is None else counter_of(optimizer)
        if counter is not None and self.count_by(counter):
            try:
                counter.ran(self, skipped, values)
            except Exception as error:
                counter.recorder.fault(error)
