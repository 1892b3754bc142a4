"""Records the learning rates and weight decays of optimizers over the steps, as runs.

All values of a rate in a block are one run, so a million steps of a schedule take as much space as
ten. Rates are read when a step ends in eager mode, or when a function with steps is called. If
reading takes time, they are read each time at first, then in at most a thousandth of the time.
"""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, pairwise
from numbers import Real
from time import perf_counter
from typing import Any, Literal
from weakref import ref

from msgspec.structs import replace

from tracer.core.calls import Call
from tracer.core.collectors import Collector, Throttle
from tracer.core.interrupts import suppress_faults
from tracer.core.optimizers import TracedOptimizer
from tracer.core.reachable import maker_of
from tracer.model.facts import MOST
from tracer.model.records import Rate, RateRun

_ASSIGNED = "assignments in a function"
_Key = tuple[Literal["rate", "decay"], int]
"""Rate or decay, and the number of the group."""


class _Values:
    """The values of one rate: a run for each block, and for each time in which they are known."""

    def __init__(self) -> None:
        self._done: list[RateRun] = []
        self._run: RateRun | None = None
        self._next: tuple[int, float] | None = None
        """The last reading: the same step may replace it."""

    def add(self, step: int, value: float) -> None:
        """Set the value from this step on."""
        if self._next is not None and step > self._next[0]:
            self._run = _with(self._run, *self._next)
        self._next = step, value

    def runs(self, end: int) -> tuple[RateRun, ...]:
        """The runs up to the step `end`."""
        run = self._run
        if self._next is not None and self._next[0] <= end:
            run = _with(run, *self._next)
        known = [] if run is None or run.first > end else [run]
        return (*self._done, *(replace(each, count=end - each.first + 1) for each in known))

    def end(self, step: int) -> None:
        """End the run with this step."""
        self._done = [*self.runs(step)[-MOST:]]
        self._run = self._next = None


def _with(run: RateRun | None, step: int, value: float) -> RateRun:
    """The run with one more value."""
    if run is None:
        return RateRun(step, 1, value, value)
    if value == run.last:
        return run
    between = [run.last] if run.turn is None else [run.last, run.turn]
    low, high = sorted((run.value, value))
    turns = (each for each in (max(between), min(between)) if not low <= each <= high)
    return replace(run, last=value, values=run.values + 1, turn=next(turns, None))


class Rates(Collector):
    """The rates of a recorder's optimizers; their groups have consecutive numbers."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._watches: bool = root.backend.watches_rates
        self._read = 0
        """The last step whose rates were read."""
        self._looks = 0
        """How often rates were read; not counted if each step reads them."""
        self._optimizers: list[TracedOptimizer] = []
        self._last: list[Any] = []
        """The last reading, with the number of variables."""
        self._sizes: list[int] = []
        self._schedules: list[tuple[str, Any]] = []
        """By group, the text of a schedule, and the schedule if its framework defines it."""
        self._marks: list[tuple[int, list[int | None]]] = []
        """How many steps had begun when blocks began, and by group the optimizer's iterations."""
        self._members: dict[_Key, tuple[int, ...]] = {}
        self._values: dict[_Key, _Values] = {}
        self._graphs: list[ref[Any]] = []
        """The graphs in which steps were traced."""
        self._assigned: set[int] = set()
        """The groups whose rate such a graph assigns: what the steps use is never read."""

    def first_step_ends(self, call: Call) -> None:
        """Find the optimizers with groups of their own; a proxy shares the groups of its optimizer.

        A wrapper's own rate is unused: a `LossScaleOptimizer` of Keras 3 is made with 0
        (`keras/src/optimizers/loss_scale_optimizer.py`).
        """
        optimizers = self.root.optimizers
        alive = optimizers.alive()
        groups = {
            id(getattr(own, "param_groups", own)): (index, each, own)
            for index, each in enumerate(optimizers.all)
            if (own := each.optimizer()) is not None and not _is_around(own, alive)
        }
        self._optimizers = [each for _, each, _ in groups.values()]
        rate_of = self.root.backend.rate_of
        self._schedules = [_schedule(rate_of(own), own, call) for _, _, own in groups.values()]
        self._marks = [(0, [self._began_at(index, own) for index, _, own in groups.values()])]
        if call.place.graph is not None and optimizers.all[0].kind.name == "v1":
            with suppress_faults():
                self._look(1)  # a number is a constant of the graph

    def step_ends(self, call: Call) -> None:
        """Read the rates that the step used: PyTorch's schedules set the next step's later."""
        if call.parent is not None:
            return  # nested
        if self._watches:
            self._look(0)
            return
        throttle = self.root.collectors.throttle
        if perf_counter() >= throttle.due:
            throttle.run(lambda: self._try(0))

    def step_traced(self, call: Call) -> None:
        """Remember the graph: it may also assign the rate."""
        if call.place.graph is not None:
            self._graphs.append(ref(call.place.graph))

    def function_called(self) -> None:
        """Read the rates that the function's steps will use."""
        self._find_assigned()
        self._try(1)

    def block_begins(self) -> None:
        """Begin new runs, so that no run is in two traces."""
        begun = self.root.blocks.begun()
        for each in self._values.values():
            each.end(begun)
        if any(text for text, _ in self._schedules):
            self._marks = [*self._marks[1 - MOST :], (begun, self._iterations())]
        self._last, self._looks, self.root.collectors.throttle = [], 0, Throttle()

    def rates(self) -> Iterator[Rate]:
        """Yield the rates of each group; a last value that is still current lasts to the last step.

        Otherwise it lasts to the last reading: it may have changed since.
        """
        end = self.root.blocks.begun()
        with suppress_faults():
            if self.root.collectors.throttle.due and self._now() != self._last:
                end = min(end, self._read)
        self._find_assigned()
        several = len(self._optimizers) > 1
        if several and all(each.optimizer() is not None for each in self._optimizers):
            with suppress_faults():
                self._members = dict(self._membership())
        root, every = self.root.optimizers.root, tuple(range(len(self.root.variables.plain)))
        for group, (text, schedule) in enumerate(self._schedules):
            own = self._members.get(("rate", group), every) if several else every
            if group in self._assigned:
                yield Rate(root, "rate", group, own, (), schedule=_ASSIGNED)
            elif text and ("rate", group) not in self._values:
                runs = tuple(self._runs_of(group, schedule)) if schedule is not None else ()
                yield Rate(root, "rate", group, own, runs, schedule=text)
        sampled = bool(self.root.collectors.throttle.due)
        for (what, group), values in self._values.items():
            runs, own = values.runs(end), self._members.get((what, group), ())
            always_0 = not any(run.value or run.last or run.turn for run in runs)
            if not (always_0 if what == "decay" else group in self._assigned):
                yield Rate(root, what, group, own, runs, sampled, self._looks)

    def _find_assigned(self) -> None:
        """Find the rates that graphs with steps assign."""
        for number, each in enumerate(self._optimizers if self._graphs else ()):
            optimizer = each.optimizer()
            rate = None if optimizer is None else self.root.backend.rate_of(optimizer)
            graphs = (graph for known in self._graphs if (graph := known()) is not None)
            if number not in self._assigned and rate is not None and not isinstance(rate, Real):
                with suppress_faults():
                    if any(self.root.backend.writes_to(graph, rate) for graph in graphs):
                        self._assigned.add(number)

    def _runs_of(self, group: int, schedule: Any) -> Iterator[RateRun]:
        """The values of a schedule at the first and the last step of each block, if known."""
        optimizer = self._optimizers[group].optimizer()
        if optimizer is not None and self.root.backend.rate_of(optimizer) is not schedule:
            return  # replaced meanwhile
        now = self.root.blocks.begun(), self._iterations()
        for (before, first), (end, last) in pairwise([*self._marks, now]):
            begin, after, values = first[group], last[group], list[float]()
            if end > before and begin is not None and after is not None and after >= begin:
                with suppress_faults():
                    for own in (begin, max(begin, after - 1)):
                        values.append(self.root.backend.value_at(schedule, own))
            if len(values) > 1:
                number = len({*values})
                yield RateRun(before + 1, end - before, values[0], values[1], number)

    def _began_at(self, index: int, optimizer: Any) -> int | None:
        """The optimizer's own count when its first step began; None if a file set it unseen."""
        begin: int | None = self.root.optimizers.stepping.get(index)
        made_late = begin is None and getattr(optimizer, "_iterations", None) is not None
        restored = made_late and self.root.backend.is_restored(optimizer)
        return begin if begin is not None or restored else 0

    def _iterations(self) -> list[int | None]:
        """Each optimizer's own count of its steps."""
        return [self.root.backend.iterations_of(each.readable()) for each in self._optimizers]

    def _look(self, later: int) -> None:
        """Read the rates, and record changes for the step `later` steps after the last."""
        now = self._now()
        if now != self._last:
            self._last = now
            self._note([*chain(*now[:-1])], self.root.blocks.begun() + later)

    def _now(self) -> list[Any]:
        """The current rates of the optimizers, and the number of variables."""
        read = self.root.backend.rates_of
        now = [read(own) for each in self._optimizers if (own := each.optimizer()) is not None]
        return [*now, len(self.root.variables.objects)]

    def _try(self, later: int) -> None:
        """Like `_look`, but a value may be unreadable now."""
        with suppress_faults():
            self._look(later)
            self._looks += 1
            self._read = self.root.blocks.begun() + later

    def _note(self, groups: Sequence[tuple[Any, Any, int]], step: int) -> None:
        sizes = [*(size for _, _, size in groups), self._last[-1]]
        if sizes != self._sizes:
            self._sizes, self._members = sizes, dict(self._membership())
        read: dict[_Key, Any] = {}
        for number, (rate, decay, _) in enumerate(groups):
            read |= {("rate", number): rate, ("decay", number): decay}
        until = self._read if self.root.collectors.throttle.due else step - 1
        for key in {**self._values, **read}:
            value = read.get(key)
            if isinstance(value, Real) and math.isfinite(value):
                self._values.setdefault(key, _Values()).add(step, float(value))
            elif key in self._values:  # NaN, a schedule or no number, or the group is gone
                self._values[key].end(until)

    def _membership(self) -> Iterator[tuple[_Key, tuple[int, ...]]]:
        """Yield the indices of each group's variables, and of the variables that decay."""
        every = [each and each() for each in list(self.root.variables.objects)]
        index = {id(each): number for number, each in enumerate(every) if each is not None}
        parts = (
            self.root.backend.groups_of(own, self._got_by(each, every))
            for each in self._optimizers
            if (own := each.optimizer()) is not None
        )
        for number, (own, decaying) in enumerate(chain.from_iterable(parts)):
            yield ("rate", number), tuple(index[id(each)] for each in own if id(each) in index)
            known = (each for each in decaying if id(each) in index)
            yield ("decay", number), tuple(index[id(each)] for each in known)

    def _got_by(self, optimizer: TracedOptimizer, every: Sequence[Any]) -> list[Any]:
        """The variables that an optimizer may update: those that it did if there are several."""
        number = self.root.optimizers.all.index(optimizer)
        sites = list(self.root.sites.sites) if len(self._optimizers) > 1 else ()
        own = {each.variable for each in sites if (each.optimizer, each.role) == (number, "update")}
        return [
            each
            for index, each in enumerate(every)
            if each is not None and (index in own or not own)
        ]


def _schedule(rate: Any, optimizer: Any, call: Any) -> tuple[str, Any]:
    """The text of a schedule, and the schedule if it may be called; a number has none.

    A schedule of the program is never called: it may count its calls.
    """
    if callable(rate):
        ships = type(rate).__module__.startswith(("keras.", "tf_keras."))
        ships &= not getattr(optimizer, "_initial_decay", 0)  # legacy: it divides each value
        return maker_of(rate), rate if ships else None
    if not hasattr(call, "kwargs") or getattr(rate, "graph", None) is None:
        return "", None
    counted = any(each is not None for each in (*call.args[1:2], call.kwargs.get("global_step")))
    without = "" if counted else " without a global_step"
    return f"the tensor {rate.name.partition(':')[0]}{without}", None


def _is_around(optimizer: Any, others: Sequence[Any]) -> bool:
    """Whether one of the others is an attribute of this optimizer."""
    held = {*map(id, object.__getattribute__(optimizer, "__dict__").values())}
    return any(id(each) in held for each in others if each is not optimizer)
