"""Collects state and settings of optimizers, and whether the program uses them.

Sources: Keras 3.15 (`keras/src/optimizers/base_optimizer.py`, `loss_scale_optimizer.py`) and
tf_keras 2.21 (`src/optimizers/optimizer.py`, `src/mixed_precision/loss_scale_optimizer.py`).
"""

import math
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

from msgspec.structs import replace

from tracer.core.calls import EAGER, Call
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.core.optimizers import TracedOptimizer
from tracer.core.reachable import names_in
from tracer.kinds import FRAMEWORKS
from tracer.model.records import Decay, Optimizer, Remark

EMA_UNUSED = "ema-unused"
LOSS_NOT_SCALED = "loss-not-scaled"
NEVER_SCALED = "never-scaled"
"""The codes of remarks on methods that were never called: see `_unused`."""
NOT_LOADED = "state-not-loaded"
"""The code of the remark on an optimizer whose saved state was skipped at loading."""

_BY_HAND = {
    EMA_UNUSED: {"_model_variables_moving_average", "SwapEMAWeights"},
    LOSS_NOT_SCALED: {"loss_scale", "loss_scale_factor", "dynamic_scale", "initial_scale"},
}
"""Names in the code of a program that does the work of the uncalled method itself."""


class Settings(Collector):
    """The state of a recorder's optimizers, and whether the program uses it."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._values: int | None = None
        self._known: dict[int, dict[str, Any]] = {}
        """The fields of each optimizer's record: the optimizer may be gone when a trace is read."""
        self._unused: dict[int, list[Remark]] = {}
        self._names: set[str] | None = None
        """The names in the code that made the first step; None if there was no step."""

    def first_step_begins(self, variables: Iterable[Any]) -> None:
        """Record the values of the variables before the first step."""
        self._values = self.root.backend.values_of(variables)

    def first_step_ends(self, frame: Call) -> None:
        """Record the state of each optimizer after the first step.

        Variables made during tracing have no earlier value; others still have theirs.
        """
        values, self._names = self._values, _names_under_way()
        if frame.place is not EAGER:
            values = self.root.backend.values_of([own for _, own in self._updated()])
        for index, _, optimizer in self._alive():
            self._known[index] = {"rate": self._rate_of(optimizer), "values": values}
        self._look()

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add the optimizer's state, and remarks on methods that were or were not called."""
        if index == 0:
            self._look()
        called, remarks = self.root.optimizers.all[index].called, list(record.remarks)
        remarks += [each for each in self._unused.get(index, ()) if each.method not in called]
        if "load_own_variables" in called:
            remarks.append(Remark(NOT_LOADED, "load_own_variables"))
        return replace(record, remarks=tuple(remarks), **self._known.get(index, {}))

    def _look(self) -> None:
        updated = self._updated()
        for index, traced, optimizer in self._alive():
            with suppress_faults():  # a custom optimizer may have other attributes
                slots = self.root.backend.slots_of(optimizer)
                decay = _decay_of(optimizer, updated)
                self._known.setdefault(index, {}).update(slots=slots, decay=decay)
                if self._names is not None and index in self.root.optimizers.stepping:
                    self._unused[index] = list(_unused(optimizer, traced, self._names))

    def _alive(self) -> Iterator[tuple[int, TracedOptimizer, Any]]:
        for index, traced in enumerate(self.root.optimizers.all):
            optimizer = traced.optimizer()
            if optimizer is not None:
                yield index, traced, optimizer

    def _updated(self) -> list[tuple[str, Any]]:
        """The living variables, each with its name."""
        rows = zip(self.root.variables.plain, list(self.root.variables.objects), strict=False)
        found = [(row.name, None if own is None else own()) for row, own in rows]
        return [(name, variable) for name, variable in found if variable is not None]

    def _rate_of(self, optimizer: Any) -> float | None:
        """The optimizer's learning rate; None for a schedule, or if it cannot be read now."""
        with suppress_faults():  # for example made in the graph being traced
            rate = self.root.backend.rate_of(optimizer)
            rate = rate if isinstance(rate, float | int) else self.root.backend.number_in(rate)
            return None if rate is None else float(rate)
        return None


def _decay_of(optimizer: Any, updated: Sequence[tuple[str, Any]]) -> Decay | None:
    """The variables that decay; None without decay or without exclusions.

    `updated` has the names of the variables and the backend's objects. Keras searches for each
    pattern in the object's name.
    """
    own = object.__getattribute__(optimizer, "__dict__")
    rate, listed = own.get("weight_decay"), own.get("_exclude_from_weight_decay") or ()
    joined = own.get("_exclude_from_weight_decay_pattern")
    given = own.get("_exclude_from_weight_decay_names") or _parts(joined)
    patterns = list(dict.fromkeys(map(str, given)))
    if not isinstance(rate, float | int) or not rate or not math.isfinite(rate):
        return None
    if not (patterns or listed) or not updated:
        return None
    searched = [str(getattr(variable, "name", "")) for _, variable in updated]
    keys = [optimizer._var_key(variable) for _, variable in updated]
    decayed = [
        name
        for (name, _), text, key in zip(updated, searched, keys, strict=True)
        if key not in listed and not any(re.search(each, text) for each in patterns)
    ]
    unmatched = [
        f"'{each}'" for each in patterns if not any(re.search(each, text) for text in searched)
    ]
    missed = sum(each not in keys for each in listed)
    unmatched += [f"{missed} of var_list"] if missed else []
    matched = len(decayed) < len(updated)
    return Decay(float(rate), tuple(unmatched), matched, tuple(decayed), searched[0])


def _parts(joined: Any) -> list[str]:
    """The patterns that Keras 3 has joined to one, if they can be separated."""
    parts = [] if joined is None else joined.pattern.split("|")
    try:
        return [re.compile(each).pattern for each in parts]
    except re.error:  # a pattern contains a |
        return [joined.pattern]


def _unused(optimizer: Any, traced: TracedOptimizer, names: set[str]) -> Iterator[Remark]:
    """Yield remarks on state or scaling that the program does not use.

    `names` are the names in the program's code.
    """
    own = object.__getattribute__(optimizer, "__dict__")
    by_hand = {code for code, of_code in _BY_HAND.items() if not of_code.isdisjoint(names)}
    keeps_averages = own.get("use_ema") is True and not own.get("ema_overwrite_frequency")
    if keeps_averages and EMA_UNUSED not in by_hand:
        yield Remark(EMA_UNUSED, "finalize_variable_values")
    if "LossScale" not in type(optimizer).__name__ and own.get("loss_scale_factor") in (None, 1):
        return
    needed, divides = "scale_loss", "apply"
    if traced.kind.name != "keras3":
        needed = "get_scaled_loss"
        divides = "get_unscaled_gradients" if "get_unscaled_gradients" in traced.called else ""
    if LOSS_NOT_SCALED not in by_hand:
        yield Remark(LOSS_NOT_SCALED if divides else NEVER_SCALED, needed, divides)


def _names_under_way() -> set[str]:
    """The names in the program's running functions and in the functions inside them."""
    names: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in (*FRAMEWORKS, "tracer"):
            names |= names_in(frame.f_code)
        frame = frame.f_back
    return names
