"""Find the parameters of the trained models that are frozen or in no optimizer.

The models of an optimizer are the outermost modules with one of its parameters. Their parameters
have rows. If a parameter gets gradients and nobody updates it, or is frozen and updated, findings
say so. Parameters of other models count only if they get gradients and the optimizer's own
parameters look wrong: none has a gradient, as after the model was rebuilt, or another optimizer has
the same ones. A program that optimizes an image, or trains a generator, leaves other models out on
purpose, and their gradients may come and go.

One look at all of them, while the gradients exist, follows each of the first steps, and then fewer
and fewer. So `since` is the step before the look that found a change.
"""

from collections.abc import Iterator, Mapping, Set
from itertools import chain
from typing import Any
from weakref import WeakSet, ref

from msgspec.structs import replace

from tracer.backends.torch import compat
from tracer.backends.torch.parameters import models, names_in, parameters_of, record_of
from tracer.core.calls import Call
from tracer.core.collectors import Collector, ModelVariable
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.evidence import OutsideModules
from tracer.model.records import Optimizer, WhyNot

_all: "WeakSet[FreezeMonitor]" = WeakSet()
"""One for each recorder."""

EACH_STEP = 10
"""The number of first steps with a look each; later, a look follows after a quarter more."""


class _Parameter:
    """A parameter of a model, or of the optimizer, as of the looks so far."""

    def __init__(self, parameter: Any, name: str, is_near: bool) -> None:
        self.reference = ref(parameter)
        self.record = record_of(parameter, name)
        self.is_near = is_near
        """Whether it is in a model of the optimizer."""
        self.passed = False
        """Whether the optimizer has it, or had it."""
        self.why: WhyNot | None = None
        self.since = 0
        self.has_gradient = False
        self.late: int | None = None
        """Its version when it got a new gradient; None if it got none since it was updated."""
        self._seen: tuple[int, ref[Any], int] | None = None
        """Its version, its gradient and the version of that when it was first seen."""

    def look(self, own: Any, is_passed: bool, since: int) -> None:
        """Look at the parameter and its gradient, which may be an old one."""
        self.passed |= is_passed
        why: WhyNot | None = None if is_passed else "not passed"
        if not own.requires_grad:
            why = "frozen"
        if why != self.why:
            self.why, self.since = why, since if why == "frozen" else 0
        self.has_gradient = own.grad is not None
        if not (own.is_leaf and own.requires_grad and self.has_gradient):
            return
        # `fully_shard` accumulates gradients in the local tensor of the `DTensor`.
        version = getattr(own.grad, "_local_tensor", own.grad)._version
        if self._seen is None or self._seen[0] != own._version:
            self.late, self._seen = None, (own._version, ref(own.grad), version)
        elif self._seen[1]() is not own.grad or self._seen[2] != version:
            self.late = own._version


class FreezeMonitor(Collector):
    """The parameters in the optimizers of one recorder, and the others; keeps none alive."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        _all.add(self)
        self._known: dict[int, _Parameter] = {}
        self._unowned: tuple[str, ...] = ()
        """Parameters of the optimizer that no module holds and that had no gradient at first."""
        self._useful = False
        """Whether a parameter of the optimizer ever had a gradient."""
        self._steps = self._due = 0
        self._last: tuple[Set[int], int, bool] = set(), 0, False
        """The ids of the optimizers' parameters, the number of `Models.searches`, and whether other
        models count, as of the last look."""

    def step_ends(self, call: Call) -> None:
        """Look at the parameters, in fewer and fewer steps."""
        if call.parent is None:
            self._steps += 1
            if self._steps > self._due:
                with suppress_faults():
                    self._look(self._steps - 1)
                self._due = self._steps + (self._steps // 4) * (self._steps >= EACH_STEP)

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add the parameters that get gradients and that nobody updates."""
        if index != record.root:
            return record
        lost = [each for each in self._not_passed() if each.late is not None]
        alive = [each.reference() for each in lost]
        found = tuple(
            each.record.name
            for each, own in zip(lost, alive, strict=True)
            if own is None or own._version == each.late
        )
        evidence = record.evidence
        if found and self._unowned:
            evidence += (OutsideModules(self._unowned, len(self._references())),)
        return replace(record, never_passed=found, evidence=evidence)

    def model_variables(self) -> Iterator[ModelVariable]:
        """The parameters of the models that are frozen, or that no optimizer has."""
        passed = [each for each in self._parameters() if each.passed]
        for each in (*passed, *self._not_passed()):
            if each.why is not None:
                own = each.reference()
                record = each.record if own is None else record_of(own, each.record.name)
                yield ModelVariable(each.reference, record, each.why, each.since)

    def _look(self, since: int) -> None:
        """Look at the parameters of the optimizers and of their models, and at astray ones."""
        alive = self.root.optimizers.alive()
        passed = {id(own): own for each in alive for own in parameters_of(each.param_groups)}
        now = passed.keys(), models.searches, bool(since) and self._is_astray()
        if now != self._last:
            self._last = {*passed}, *now[1:]
            self._add(passed, is_astray=now[2])
        for parameter in self._parameters():
            own = parameter.reference()
            if own is not None:
                parameter.look(own, id(own) in passed, since)
                self._useful |= parameter.passed and parameter.has_gradient

    def _add(self, passed: Mapping[int, Any], *, is_astray: bool) -> None:
        """Add the parameters that are new."""
        names: dict[int, str] = {}
        if not all(map(self._knows, passed.values())):
            names = models.names_of(passed.values())
            alive = self.root.optimizers.alive()
            self._unowned = tuple(chain.from_iterable(map(_unowned_by_modules, alive)))
        every = [(own, names.get(key, "parameter"), True) for key, own in passed.items()]
        for is_near in (True, False)[: 1 + is_astray]:
            others = models.others_than(passed.keys(), same_model=is_near)
            every += ((*other, is_near) for other in others)
        for own, name, is_near in every:
            if not self._knows(own):
                self._known[id(own)] = _Parameter(own, name, is_near)

    def _knows(self, parameter: Any) -> bool:
        # A parameter that is gone may leave its `id` to another one.
        known = self._known.get(id(parameter))
        return known is not None and known.reference() is parameter

    def _is_astray(self) -> bool:
        """True if the optimizer's parameters look wrong: no gradients, or also in another one."""
        own = self._references()
        others = [monitor for monitor in list(_all) if monitor is not self]
        return not self._useful or any(each._references() == own for each in others)

    def _references(self) -> set[int]:
        """The ids of the weak references to its parameters, which Python makes only once."""
        return {id(each.reference) for each in self._parameters() if each.passed}

    def _parameters(self) -> list[_Parameter]:
        return list(self._known.values())  # another thread may add some

    def _not_passed(self) -> list[_Parameter]:
        """The parameters that no optimizer has; of frozen ones, no traced one.

        Those of other models are among them only if they are `late`, and this one is astray.
        """
        passed = set[int]().union(*(monitor._references() for monitor in list(_all)))
        others = [e for e in self._parameters() if id(e.reference) not in passed]
        far = any(e.late is not None and not e.is_near for e in others) and self._is_astray()
        others = [e for e in others if e.is_near or (far and e.late is not None)]
        optimizers = instances([compat.Optimizer]) if any(e.why != "frozen" for e in others) else ()
        groups = [vars(optimizer).get("param_groups", ()) for optimizer in optimizers]
        owned = {id(own) for each in groups for own in parameters_of(each)}
        return [e for e in others if (own := e.reference()) is None or id(own) not in owned]


def _unowned_by_modules(optimizer: Any) -> Iterator[str]:
    """The names of parameters in an optimizer that no module holds and that have no gradient."""
    parameters, names = parameters_of(optimizer.param_groups), names_in(optimizer)
    owned = models.names_of(parameters)
    for each in parameters:
        missing = each.grad is None and each.requires_grad and id(each) not in owned
        if missing and compat.is_parameter(each):
            yield names[id(each)]
