"""Find the parameters of the trained models that are frozen or in no optimizer.

The models of an optimizer are the outermost modules with one of its parameters. Their parameters
have rows. If a parameter gets gradients and nobody updates it, or is frozen and updated, findings
say so. Parameters of other models count only if they get gradients and the optimizer's own
parameters look wrong: none has a gradient, as after the model was rebuilt, or another optimizer has
the same ones. A program that optimizes an image, or trains a generator, leaves other models out on
purpose.

One look at all of them, while the gradients exist, follows each of the first eight steps, and then
an eighth more. So `since` is the step before the look that found a change. While another thread
may train, a look reads only gradients that its own optimizer has: a backward pass there may write
the others, without Python's lock, and PyTorch would free them twice.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from threading import get_ident
from types import FrameType
from weakref import WeakSet, ref

from tracer.backends.torch import compat
from tracer.backends.torch.parameters import models, names_in, parameters_of, record_of
from tracer.core.backend import Root, passed_to_any
from tracer.core.call_paths import frames_from, sort_of
from tracer.core.calls import Call
from tracer.core.collectors import Collector, ModelVariable
from tracer.core.instances import instances
from tracer.core.registry import bindings
from tracer.errors import suppress_faults
from tracer.model.evidence import NeverPassed
from tracer.model.records import Variable, WhyNot

_all: "WeakSet[FreezeMonitor]" = WeakSet()
"""One for each recorder."""


@dataclass(eq=False)
class _Parameter:
    """A parameter of a model, or of the optimizer, as of the looks so far."""

    reference: ref[compat.Tensor]
    record: Variable
    is_near: bool
    """Whether it is in a model of the optimizer."""
    passed: bool = False
    """Whether the optimizer has it, or had it."""
    in_unused: bool = False
    """Whether an optimizer without a step had it at the first look."""
    why: WhyNot | None = None
    since: int = 0
    had_gradient: bool = False
    late: int | None = None
    """Its version when it got a new gradient; None if it got none since it was updated."""
    seen: tuple[int, ref[compat.Tensor], int] | None = None
    """Its version, its gradient and the version of that when it was first seen."""

    def look(self, own: compat.Tensor, is_passed: bool, since: int, may_read: bool) -> None:
        """Look at the parameter and, if `may_read`, at its gradient, which may be an old one."""
        self.passed |= is_passed
        why: WhyNot | None = None if is_passed else "not passed"
        if not own.requires_grad:
            why = "frozen"
        if why != self.why:
            self.why, self.since = why, since if why == "frozen" else 0
        grad = own.grad if may_read else None
        self.had_gradient |= grad is not None or not own.requires_grad
        if grad is None or not (own.is_leaf and own.requires_grad):
            return
        # `fully_shard` accumulates gradients in the local tensor of the `DTensor`.
        version = getattr(grad, "_local_tensor", grad)._version
        if self.seen is None or self.seen[0] != own._version:
            self.late, self.seen = None, (own._version, ref(grad), version)
        elif self.seen[1]() is not grad or self.seen[2] != version:
            self.late = own._version


class FreezeMonitor(Collector):
    """The parameters in the optimizers of one recorder, and the others; keeps none alive."""

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        _all.add(self)
        self._known: dict[int, _Parameter] = {}
        self._steps = self._due = 0

    def step_ends(self, call: Call) -> None:
        """Look at the parameters, in fewer and fewer steps."""
        self._steps += 1
        if self._steps > self._due:
            with suppress_faults():
                self._look(self._steps - 1)
            self._due = self._steps + self._steps // 8

    def evidence(self) -> Iterator[NeverPassed]:
        """The parameters that get gradients and that nobody updates."""
        found = tuple(
            each.record.name
            for each in self._not_passed()
            if each.late is not None
            and getattr(each.reference(), "_version", each.late) == each.late
        )
        if found:
            yield NeverPassed(found)

    def model_variables(self) -> Iterator[ModelVariable]:
        """The parameters of the models that are frozen, or that no optimizer has."""
        for each in (*self._passed().values(), *self._not_passed()):
            if each.why is not None:
                yield ModelVariable(each.reference, each.record, each.why, each.since)

    def _look(self, since: int) -> None:
        """Look at the parameters of the optimizers and of their models."""
        alive = self.root.optimizers.alive()
        passed = {id(own): own for each in alive for own in parameters_of(each.param_groups)}
        names = {key: name for each in alive for key, name in names_in(each).items()}
        every = [(own, names[key], True) for key, own in passed.items()]
        others = [top for thread, top in sys._current_frames().items() if thread != get_ident()]
        is_alone = not any(_may_train(frame) for top in others for frame in frames_from(top))
        for own, name, is_near in [*every, *models.others_than(passed.keys())]:
            known = self._known.get(id(own))
            # A parameter that is gone may leave its `id` to another one.
            if known is None or known.reference() is not own or is_near > known.is_near:
                self._known[id(own)] = _Parameter(ref(own), record_of(own, name), is_near)
        for unused in _without_step() if not since else ():
            for own in parameters_of(unused.param_groups):
                if id(own) in self._known:
                    self._known[id(own)].in_unused = True
        for parameter in list(self._known.values()):
            own = parameter.reference()
            if own is not None:
                parameter.look(own, id(own) in passed, since, is_alone or id(own) in passed)

    def _is_astray(self) -> bool:
        """True if the optimizer's parameters look wrong: no gradients, or also in another one."""
        own, others = self._passed(), [each for each in list(_all) if each is not self]
        is_useful = any(each.had_gradient for each in own.values())
        return not is_useful or any(each._passed().keys() == own.keys() for each in others)

    def _passed(self) -> dict[int, _Parameter]:
        """Its parameters, by the ids of their weak references, which Python makes only once."""
        known = list(self._known.values())  # another thread may add some
        return {id(each.reference): each for each in known if each.passed}

    def _not_passed(self) -> list[_Parameter]:
        """The parameters that no optimizer has; those of other models if they are `late`."""
        known = list(self._known.values())
        others = [each for each in known if not (each.passed or each.in_unused)]
        others = [each for each in others if each.is_near or each.late is not None]
        if not (all(each.is_near for each in others) or self._is_astray()):
            others = [each for each in others if each.is_near]
        living = instances([compat.Optimizer]) if others else ()
        groups = [vars(optimizer).get("param_groups", ()) for optimizer in living]
        owned = {id(own) for each in groups for own in parameters_of(each)}
        owned |= passed_to_any()  # by the references
        return [e for e in others if owned.isdisjoint((id(e.reference), id(e.reference())))]


def _without_step() -> Iterator[compat.Optimizer]:
    """The optimizers that a recording saw and that made no step: they may be gone when it ends."""
    for binding in list(bindings.values()):
        optimizer = binding.optimizer()
        if compat.is_optimizer(optimizer) and not binding.recorder.optimizers.stepping:
            yield optimizer


def _may_train(frame: FrameType) -> bool:
    """True for code that may run a backward pass: the program's, and packages that use PyTorch."""
    module = str(frame.f_globals.get("__name__"))
    if module.startswith(("torch.", "tracer.")):
        return module.startswith("torch.autograd")
    return "torch" in frame.f_globals or sort_of(frame) == "program"
