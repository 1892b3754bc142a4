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
from typing import Any, NamedTuple
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


class _Other(NamedTuple):
    """A parameter that is not in the optimizer."""

    parameter: "ref[Any]"
    name: str
    same_model: bool


class _Gradient(NamedTuple):
    """The gradient of such a parameter, with the versions of both when it was seen."""

    gradient: "ref[Any]"
    version: int
    of_parameter: int


class FreezeMonitor(Collector):
    """The parameters in the optimizers of one recorder, and the others; keeps none alive."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        _all.add(self)
        self._refs: list[ref[Any]] = []
        """The parameters in the optimizers, as of the last look."""
        self._passed: dict[int, tuple[ref[Any], str]] = {}
        self._others: dict[int, _Other] = {}
        self._gradients: dict[int, _Gradient] = {}
        self._late: dict[int, int] = {}
        """By id, the version of each other parameter that got a new gradient between steps."""
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
        in_optimizers: set[int] = set()
        if self._late:
            for optimizer in instances([compat.Optimizer]):
                in_optimizers.update(
                    map(id, parameters_of(vars(optimizer).get("param_groups", ())))
                )
        monitors, astray = list(_all), bool(self._late) and self._is_astray()
        never = (
            other.name
            for other, version in ((self._others[key], each) for key, each in self._late.items())
            if (astray or other.same_model)
            and not any(each.trains(other.parameter) for each in monitors)
            and (
                (own := other.parameter()) is None  # as last seen
                or (id(own) not in in_optimizers and own._version == version)
            )
        )
        found = tuple(never)
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
            for key, other in self._others.items():
                own = other.parameter()
                if own is not None and own.is_leaf and own.requires_grad and own.grad is not None:
                    self._note(key, own)
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
            self._forget(id(parameter))
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
                self._forget(id(own))
                self._others[id(own)] = _Other(ref(own), name, same_model)

    def _forget(self, key: int) -> None:
        """Forget what is known of the parameter outside the optimizers with this `id`."""
        for table in (self._others, self._gradients, self._late):
            table.pop(key, None)

    def _note(self, key: int, own: Any) -> None:
        """Note the gradient of a parameter outside the optimizer; it may be an old one."""
        known, gradient = self._gradients.get(key), own.grad
        # `fully_shard` accumulates gradients in the local tensor of the `DTensor`.
        version = getattr(gradient, "_local_tensor", gradient)._version
        if known is None or known.of_parameter != own._version:
            self._late.pop(key, None)
            self._gradients[key] = _Gradient(ref(gradient), version, own._version)
        elif known.version != version or known.gradient() is not gradient:
            self._late[key] = own._version

    def _is_astray(self) -> bool:
        """True if the optimizer's parameters look wrong: no gradients, or also in another one."""
        return not self._useful or any(
            each._references() == self._references() for each in list(_all) if each is not self
        )

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
