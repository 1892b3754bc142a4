"""Find learning rates that `load_state_dict` puts in place of those set in the program.

`Optimizer.load_state_dict` is replaced while the hooks of `optimizer_hooks` are in place, as is
`GradScaler.step`: an optimizer may be loaded long before its first step.
"""

import sys
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from tracer.backends.torch import compat, dynamo
from tracer.core.call_paths import Paths
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.model.rates import LOADED
from tracer.model.records import Remark

_paths = Paths(lambda code, line: None)


class _Load(NamedTuple):
    """The groups of an optimizer before and after a load."""

    before: list[dict[str, Any]]
    after: list[dict[str, Any]]
    where: str
    """The line of the program that loaded."""


_loads: "WeakKeyDictionary[Any, _Load]" = WeakKeyDictionary()
"""The last load of each optimizer."""


@dynamo.without_dynamo
def _load(self: Any, *args: Any, **kwargs: Any) -> Any:
    before = _rates_in(self)
    result = _LOAD.original(self, *args, **kwargs)
    with suppress_faults():
        where = _paths.line(_paths.above(sys._getframe(1)))
        _loads[self] = _Load(before, _rates_in(self), where)
    return result


_LOAD = compat.Exchange(compat.Optimizer, "load_state_dict", _load)
replace_load = _LOAD.put
"""Replaces `load_state_dict`, or restores it; the caller holds a lock."""


class Loads(Collector):
    """Loaded rates with which an optimizer made its first step after the load."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._remarks: list[Remark] = []

    def first_step_ends(self, call: Call) -> None:
        """Check whether the step used a loaded rate."""
        for optimizer in self.root.optimizers.alive():
            load = _loads.pop(optimizer, None)
            if load is not None:
                self._remarks += _replaced(load, _rates_in(optimizer))

    def remarks(self) -> list[Remark]:
        return self._remarks


def _rates_in(optimizer: Any) -> list[dict[str, Any]]:
    """The rate and the initial rate of each group; nothing if they are not plain."""
    keys = "lr", "initial_lr"
    with suppress_faults():
        groups = vars(optimizer)["param_groups"]
        plain = [{key: own[key] for key in keys if type(own.get(key)) is float} for own in groups]
        return [dict.fromkeys(keys) | each for each in plain]
    return []


def _replaced(load: _Load, now: list[dict[str, Any]]) -> list[Remark]:
    """A remark if a load replaced a smaller rate that the program had set, and the step used it.

    A rate set later by the program or a schedule is another object, even if it is the same number.
    A state saved after the rate has decayed holds a smaller rate, and a schedule's state holds its
    initial rate, so resuming such a run makes no remark.
    """
    for before, after, used in zip(load.before, load.after, now, strict=False):
        old, new = before["initial_lr"] or before["lr"], after["lr"]
        if old and new and used["lr"] is new and 0 < old < new and old != after["initial_lr"]:
            return [Remark(LOADED, "load_state_dict", f"{old:g} {new:g}", load.where)]
    return []
