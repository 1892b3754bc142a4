"""Count steps that `torch.compile` compiles, by operators that report each run.

Dynamo inlines `before_step` and `after_step` into a step that it compiles. Each adds an operator to
the program, also while the optimizer is not traced: the program may run later, and each run looks
up the counter of its optimizer. The first operator is added only if effects are recorded for any
optimizer; then both operators get the values of the parameters.
"""

import sys
from typing import Any
from weakref import finalize, ref

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.grad_scaler import found_inf
from tracer.backends.torch.listeners import counter_of
from tracer.backends.torch.operators import BEGIN, END, MOVED, VALUES, number_for
from tracer.backends.torch.parameters import parameters_of
from tracer.core.instances import instances
from tracer.core.registry import bindings

Gradients = tuple[bool | None, ...]
"""For each parameter, whether it has a gradient; None if it needs none."""
PROGRAM = "torch.compile"
"""The function name of compiled steps."""

CLEARED = (
    "a closure or a hook computed the gradients of {name}, and a hook after the step ran before "
    "the tracer's: if it removed gradients, their updates are not counted"
)
_PARTED = (
    "torch.compile compiled the custom step of {name} in parts, so its updates are unknown: each "
    "parameter that has a gradient is counted"
)
_NO_GRADIENT = (
    "a compiled step of {name} uses a parameter that has no gradient: it is unknown whether the "
    "step updates this parameter, and no update is counted"
)

# Inlined by Dynamo.


def before_step(optimizer: Any, given: Any, named: Any) -> None:
    """Add an operator at the start of a step that is being compiled."""
    key = id(optimizer)
    if not _is_whole(key):
        _before_eagerly(optimizer, given, named)
        return
    if VALUES.wanted:
        BEGIN(MOVED, _number(key), _values(optimizer))
    # A closure, or a hook of the program, may still change the gradients.
    final = len(given) == 1 and not named and not compat.hooks_before(optimizer)
    _begin(key, _gradients(optimizer) if final else None)


def after_step(optimizer: Any, named: Any) -> None:
    """Add an operator at its end."""
    key = id(optimizer)
    if not _is_whole(key):
        _after_eagerly(optimizer, named)
        return
    # Number the program before reading the values: reading them is a use of the parameters.
    number, skipped = _end(key, _gradients(optimizer)), found_inf(optimizer)
    END(MOVED, number, _values(optimizer) if VALUES.wanted else [], skipped)


def _gradients(optimizer: Any) -> Gradients:
    found = []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            none = False if parameter.requires_grad else None
            found.append(True if parameter.grad is not None else none)
    return tuple(found)


def _values(optimizer: Any) -> list[Any]:
    """The values of the parameters that have or need a gradient.

    With a tensor on the device `meta`, the operator would run only there, that is, not at all.
    """
    return [
        parameter.detach()
        for group in optimizer.param_groups
        for parameter in group["params"]
        if (parameter.grad is not None or parameter.requires_grad)
        and not (parameter.is_meta or compat.is_elsewhere(parameter))
    ]


# Called while Dynamo compiles: an older Dynamo passes no objects, but their `id`.


@dynamo.constant
def _is_whole(optimizer: int) -> bool:
    return _programs_of(optimizer).are_whole()


@dynamo.constant
def _number(optimizer: int) -> int:
    return _programs_of(optimizer).number


@dynamo.constant
def _begin(optimizer: int, gradients: Gradients | None) -> int:
    programs = _programs_of(optimizer)
    programs.begin = dynamo.here(), gradients
    return 0


@dynamo.constant
def _end(optimizer: int, gradients: Gradients) -> int:
    return _programs_of(optimizer).add(gradients).number


# Graph breaks: Python runs these between the parts of a program.


@dynamo.eagerly
def _before_eagerly(optimizer: Any, given: Any, named: Any) -> None:
    counter, python = counter_of(optimizer), dynamo.frame_around(sys._getframe(1))
    if counter is not None:
        counter.before(optimizer, given, named, python, compiled=True)


@dynamo.eagerly
def _after_eagerly(optimizer: Any, named: Any) -> None:
    counter, python = counter_of(optimizer), dynamo.frame_around(sys._getframe(1))
    if counter is not None:
        counter.after(optimizer, named, python, compiled=True)


_all: dict[int, "Programs"] = {}
"""By `id` of the optimizer."""


def _programs_of(optimizer: int) -> "Programs":
    known = _all.get(optimizer)
    if known is None:
        binding = bindings.get(optimizer)
        alive = None if binding is None else binding.optimizer()
        if alive is None:
            alive = next(each for each in instances([compat.Optimizer]) if id(each) == optimizer)
        known = _all[optimizer] = Programs(alive)
        finalize(alive, _all.pop, optimizer, None).atexit = False
    return known


class Programs:
    """The programs that `torch.compile` makes of the steps of one optimizer."""

    def __init__(self, optimizer: Any) -> None:
        self.number = number_for(self)
        self.optimizer = ref(optimizer)
        self.begin: tuple[dynamo.ProgramPoint | None, Gradients | None] = None, None
        """The start of the step that is being compiled; its gradients, if they are final there."""
        self._made: list[Program] = []  # keeps the programs alive

    def are_whole(self) -> bool:
        """True if, as far as the class shows, its steps call no other step."""
        optimizer = self.optimizer()
        binding = bindings.get(id(optimizer))
        if binding is None or binding.observer is None:
            others = compat.holds_optimizer(optimizer)
        else:
            others = len(binding.recorder.optimizers.all) > 1
        return compat.steps_with_hooks(type(optimizer)) == 1 and not others

    def add(self, gradients: Gradients) -> "Program":
        """Make a program at the end of a step that is being compiled."""
        point, at_begin = self.begin
        optimizer = self.optimizer()
        late = at_begin is None and compat.hooks_after(optimizer) > 0
        program = Program(optimizer, at_begin or gradients, point, late=late)
        self._made.append(program)
        counter = counter_of(self.optimizer())
        if counter is not None:
            program.count_by(counter)
        return program

    def begins(self, values: Any) -> None:
        """Report that a step begins to run: see `tracer.backends.torch.operators.number_for`."""
        counter = counter_of(self.optimizer())
        if counter is not None:
            counter.begins(values)


class Program:
    """A compiled program that contains a step."""

    def __init__(
        self, optimizer: Any, gradients: Gradients, begin: dynamo.ProgramPoint | None, *, late: bool
    ) -> None:
        """`begin` is the place in the program being built where the step begins.

        `late` tells that the gradients were read after the step, when a hook may have cleared some.
        """
        self.number = number_for(self)
        self.optimizer = ref(optimizer)
        self.asked: Any = None
        self.updates: Any = ()
        self._gradients = gradients
        self._updates = [bool(each) for each in gradients]
        """For each parameter, whether the program updates it."""
        self._note = ""
        self._sites_of: Any = None  # the recorder of these sites
        name = type(optimizer).__name__
        if not compat.steps_by_itself(type(optimizer)):
            if late and False in gradients:
                self._note = CLEARED.format(name=name)
            return
        parameters = parameters_of(optimizer.param_groups)
        uses = None if begin is None else dynamo.used_since(begin, parameters)
        if uses is None:
            self._note = _PARTED.format(name=name)
            return
        self._updates = [a and b for a, b in zip(self._updates, uses, strict=True)]
        if any(use and not has for use, has in zip(uses, gradients, strict=True)):
            self._note = _NO_GRADIENT.format(name=name)

    def count_by(self, counter: Any) -> bool:
        """Find the program's sites in the recorder of `counter`; False after a fault."""
        recorder = counter.recorder
        try:
            if self._sites_of is not recorder and not recorder.broken:
                layouts = [compat.layout_if(each) for each in self._gradients]
                parameters = parameters_of(counter.optimizer().param_groups)
                self.asked = counter.asked_for(parameters, layouts)
                asked = [u for u, has in zip(self._updates, self._gradients, strict=True) if has]
                self.updates = [
                    s for s, went in zip(self.asked.updates, asked, strict=True) if went
                ]
                if self._note:
                    recorder.note(self._note)
                self._sites_of = recorder
                recorder.step_traced(counter.index, "step", self.updates)
        except Exception as error:
            recorder.fault(error)
        return not recorder.broken

    def ends(self, values: Any, skipped: Any) -> None:
        """Report that the step has run: see `tracer.backends.torch.operators.number_for`."""
        optimizer = self.optimizer()
        counter = None if optimizer is None else counter_of(optimizer)
        if counter is not None and self.count_by(counter):
            counter.ran(self, skipped, values)
