"""Find parameters that get gradients but are in no optimizer, and frozen ones that are updated.

Parameters of the optimizer's own model always count. Parameters of other models count only if the
optimizer's own parameters look wrong: none has a gradient, as after the model was rebuilt, or
another optimizer has the same ones. A program that optimizes an image, or trains a generator,
leaves other models out on purpose, and their gradients may come and go.

Parameters are checked when a step has ended, while the gradients exist.
"""

import operator
from collections.abc import Iterator
from itertools import chain
from time import perf_counter
from typing import Any
from weakref import WeakSet, ref

from msgspec.structs import replace

from tracer.backends.torch import compat
from tracer.backends.torch.parameters import models, names_in, parameters_of
from tracer.core.calls import Call
from tracer.core.collectors import Collector, Throttle
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.evidence import OutsideModules
from tracer.model.records import Optimizer

_all: "WeakSet[FreezeMonitor]" = WeakSet()
"""One for each recorder."""


class _Other:
    """A parameter that is not in the optimizer."""

    def __init__(self, parameter: Any, name: str, same_model: bool) -> None:
        self.parameter = ref(parameter)
        self.name = name
        self.same_model = same_model
        self.late: int | None = None
        """Its version when it got a new gradient; None if it got none since it was updated."""
        self._seen: tuple[int, ref[Any], int] | None = None
        """Its version, its gradient and the version of that when it was first seen."""

    def look(self) -> None:
        """Look at the gradient, which may be an old one."""
        own = self.parameter()
        if own is None or not (own.is_leaf and own.requires_grad) or own.grad is None:
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
        self._refs: list[ref[Any]] = []
        """The parameters in the optimizers, as of the last look."""
        self._passed: dict[int, tuple[ref[Any], str]] = {}
        self._others: dict[int, _Other] = {}
        self._frozen: dict[int, str] = {}
        self._unowned: tuple[str, ...] = ()
        """Parameters of the optimizer that no module holds and that had no gradient at first."""
        self._useful = False
        """Whether a parameter of the optimizer ever had a gradient."""
        self._looks = 0
        self._throttle = Throttle()

    def step_ends(self, call: Call) -> None:
        """Check the gradients."""
        if perf_counter() >= self._throttle.due:
            self._throttle.run(self._look)

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add the parameters that get gradients but no updates, and those updated though frozen."""
        if index != record.root:
            return record
        late = [other for other in self._others.values() if other.late is not None]
        optimizers = instances([compat.Optimizer]) if late else ()
        groups = [vars(optimizer).get("param_groups", ()) for optimizer in optimizers]
        owned = {id(own) for each in groups for own in parameters_of(each)}
        monitors, astray = list(_all), bool(late) and self._is_astray()
        found = tuple(
            other.name
            for other in late
            if (astray or other.same_model)
            and not any(monitor.trains(other.parameter) for monitor in monitors)
            and (
                (own := other.parameter()) is None  # as last seen
                or (id(own) not in owned and own._version == other.late)
            )
        )
        evidence = record.evidence
        if found and self._unowned:
            evidence += (OutsideModules(self._unowned, len(self._refs)),)
        frozen = tuple(self._frozen.values())
        return replace(record, never_passed=found, frozen=frozen, evidence=evidence)

    def trains(self, parameter: "ref[Any]") -> bool:
        """True if this parameter, which may be gone, is in the optimizers of this recorder."""
        return any(parameter is own for own, _ in self._passed.values())

    def _look(self) -> None:
        with suppress_faults():
            alive = self.root.optimizers.alive()
            parameters = [own for each in alive for own in parameters_of(each.param_groups)]
            known = map(operator.is_, (own() for own in self._refs), parameters)
            if len(self._refs) != len(parameters) or not all(known):
                self._pass(parameters)
                self._unowned = tuple(chain.from_iterable(map(_unowned_by_modules, alive)))
            if self._looks == 1 and self._is_astray():
                self._add_others(parameters, same_model=False)
            self._looks += 1
            for other in self._others.values():
                other.look()
            for key, (reference, name) in self._passed.items():
                own = reference()
                if own is not None and own.grad is not None:
                    self._useful = True
                    if not own.requires_grad:
                        self._frozen[key] = name

    def _pass(self, parameters: list[Any]) -> None:
        """Store the parameters that the optimizers have now."""
        self._refs, names = [*map(ref, parameters)], models.names_of(parameters)
        for parameter in parameters:
            self._others.pop(id(parameter), None)
            if parameter.requires_grad:
                name = names.get(id(parameter), "parameter")
                self._passed[id(parameter)] = ref(parameter), name
        self._add_others(parameters, same_model=True)

    def _add_others(self, parameters: list[Any], *, same_model: bool) -> None:
        for own, name in models.others_than(parameters, same_model):
            # A parameter that is gone may leave its `id` to another one.
            passed, other = self._passed.get(id(own)), self._others.get(id(own))
            is_known = passed is not None and passed[0]() is own
            if not (is_known or (other is not None and other.parameter() is own)):
                self._others[id(own)] = _Other(own, name, same_model)

    def _is_astray(self) -> bool:
        """True if the optimizer's parameters look wrong: no gradients, or also in another one."""
        others = [monitor for monitor in list(_all) if monitor is not self]
        return not self._useful or any(each._references() == self._references() for each in others)

    def _references(self) -> dict[int, int]:
        """By id of each parameter, the id of its weak reference, which Python makes only once."""
        return {key: id(reference) for key, (reference, _) in self._passed.items()}


def _unowned_by_modules(optimizer: Any) -> Iterator[str]:
    """The names of parameters in an optimizer that no module holds and that have no gradient."""
    parameters, names = parameters_of(optimizer.param_groups), names_in(optimizer)
    owned = models.names_of(parameters)
    for each in parameters:
        missing = each.grad is None and each.requires_grad and id(each) not in owned
        if missing and compat.is_parameter(each):
            yield names[id(each)]
