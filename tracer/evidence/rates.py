"""Records the learning rates and weight decays of optimizers over the steps, as runs.

All values of a rate in a block are one run, so a million steps of a schedule take as much space as
ten. Rates are read when a step ends in eager mode, or when a function with steps is called. If
reading takes time, they are read each time at first, then in at most a thousandth of the time.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from numbers import Real
from time import perf_counter
from typing import Any, Literal

from msgspec.structs import replace

from tracer.core.backend import Root, own_attributes
from tracer.core.calls import Call, Step
from tracer.core.collectors import Collector, Throttle
from tracer.core.optimizers import Binding
from tracer.core.reachable import maker_of
from tracer.errors import interrupt_in, suppress_faults
from tracer.model.records import Rate, RateRun

MOST = 50
"""The most runs kept of a rate: the last ones."""
_ASSIGNED = "assignments in a function"
_KINDS: tuple[Literal["rate", "decay"], ...] = ("rate", "decay")
_Key = tuple[Literal["rate", "decay"], int, str]
"""Rate or decay, the number of the group, and `nan`, `inf` or `-inf` if the value is not finite."""


def with_value(run: RateRun | None, step: int, value: float) -> RateRun:
    """The run with one more value; a run that begins with this step if there is none."""
    if run is None:
        return RateRun(step, 1, value, value)
    if value == run.last:
        return run
    low, high = min(run.value, value), max(run.value, value)
    before = (run.last, run.last if run.turn is None else run.turn)
    turn = min(before) if min(before) < low else None
    turn = max(before) if max(before) > high else turn  # a peak says more than a dip
    return replace(run, last=value, values=run.values + 1, turn=turn)


class Rates(Collector):
    """The rates of the groups of a recorder's optimizer; unknown if several are nested in it."""

    _schedule: object = None
    """The schedule if its framework defines it, else None."""
    _text = ""
    """The text of a schedule; empty for a number."""
    _begun: int | None = None
    """The optimizer's own count when its first step began; None if a file set it unseen."""

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self._traced: list[Binding] = []
        """The optimizers with groups of their own."""
        # The optimizer, if there is one and it is alive.
        self._optimizer: Callable[[], object] = lambda: None
        self._is_cheap = root.backend.watches_rates
        self._members: dict[tuple[str, int], tuple[int, ...]] = {}
        """The variables of each group, and those that decay."""
        self._done: dict[_Key, list[RateRun]] = {}
        """The runs that ended, as at a baseline."""
        self._runs: dict[_Key, RateRun] = {}
        """The other runs, without the last reading."""
        self._last: Sequence[tuple[object, object]] = ()
        """The last reading: another one for the same step replaces it."""
        self._since = self._read = self._looks = 0
        """The first and the last step of the last reading; how often the rates were read: 0 if
        each step was."""
        self._past = 0
        """The last step before the last baseline."""

    def first_step_ends(self, call: Call) -> None:
        """Find the optimizer with groups of its own; a proxy shares the groups of its optimizer.

        A wrapper's own rate is unused: a `LossScaleOptimizer` of Keras 3 is made with 0
        (`keras/src/optimizers/loss_scale_optimizer.py`).
        """
        optimizers, backend = self.root.optimizers, self.root.backend
        alive, found = optimizers.alive(), dict[int, Binding]()
        for traced in optimizers.all:
            own = traced.optimizer()
            if own is not None and not _is_around(own, alive):
                found[id(getattr(own, "param_groups", own))] = traced
        self._traced = [*found.values()]
        self._optimizer = self._traced[0].optimizer if len(self._traced) == 1 else lambda: None
        if (own := self._optimizer()) is not None:
            self._text, self._schedule = _schedule(backend.rate_of(own), own)
            self._begun = optimizers.stepping.get(optimizers.all.index(self._traced[0]))
            if self._begun is None and self._schedule is not None and not backend.is_restored(own):
                self._begun = 0  # its count was made in the first step
            self._find_members(own)
        if call.place.graph is not None and optimizers.all[0].kind.name == "v1":
            self._look(self.root.step_count() + 1)  # a number is a constant of the graph
            self._looks = 0

    def step_ends(self, call: Step) -> None:
        """Read the rates that the step used: PyTorch's schedules set the next step's later."""
        if self._is_cheap:
            self._look(call.numbers[call.replica])
        elif perf_counter() >= self.root.collectors.throttle.due:
            self.root.collectors.throttle.run(lambda: self._look(self.root.step_count()))

    def function_called(self) -> None:
        """Read the rates that the function's steps will use."""
        self._look(self.root.step_count() + 1)

    def block_begins(self) -> None:
        """Begin new runs, so that no run is in two traces."""
        self._done, self._runs = self._with_reported(self.root.step_count()), {}
        self.root.blocks.counters.rates.clear()
        self._last, self._looks, self.root.collectors.throttle = (), 0, Throttle()
        self._past = self.root.step_count()

    def rates(self) -> Iterator[Rate]:
        """Yield the rates of each group; a last value that is still current lasts to the last step.

        Otherwise it lasts to the last reading: it may have changed since.
        """
        root, end, backend = self.root.optimizers.root, self.root.step_count(), self.root.backend
        in_programs = backend.looks_with_trace and self.root.blocks.counters.in_programs
        if in_programs and end > max(self._read, self._past):
            is_first = not self._looks
            self._look(end)
            self._since = self._past + 1 if is_first else self._since
        optimizer, rate = self._optimizer(), None
        if optimizer is not None:
            rate = backend.rate_of(optimizer)
            with suppress_faults():
                end = end if backend.rates_of(optimizer) == self._last else min(end, self._read)
            self._find_members(optimizer)
        runs_of, own = self._with_reported(end), self._members.get(("rate", 0), ())
        if rate is not None and self.root.blocks.writes_to(rate):
            runs_of = {key: runs for key, runs in runs_of.items() if key[0] != "rate"}
            yield Rate(root, "rate", 0, own, (), schedule=_ASSIGNED)
        elif self._text and ("rate", 0, "") not in runs_of:
            yield Rate(root, "rate", 0, own, self._of_schedule(rate), 0, self._text)
        looks = 0 if self._reported() else self._looks
        for (what, group, bad), runs in runs_of.items():
            if what == "rate" or bad or any(run.value or run.last or run.turn for run in runs):
                own = self._members.get((what, group), ())
                yield Rate(root, what, group, own, tuple(runs), looks, not_finite=bad)

    def _of_schedule(self, rate: object) -> tuple[RateRun, ...]:
        """The values of a schedule at the first and the last step, if known; `rate` is it now."""
        backend, begun = self.root.backend, self._begun
        count = backend.iterations_of(self._traced[0].readable())
        is_used = self._schedule is not None and (rate is None or rate is self._schedule)
        is_used &= not self.root.blocks.is_behind(self._optimizer())  # its count is in a state
        with suppress_faults():
            if is_used and None not in (begun, count) and count >= begun:
                ends = begun, max(begun, count - 1)
                first, last = (backend.value_at(self._schedule, number) for number in ends)
                return (RateRun(1, self.root.step_count(), first, last, len({first, last})),)
        return ()

    def _look(self, step: int) -> None:
        """Read the rates for this step, and record changes."""
        try:
            own = self._optimizer()
            now = () if own is None else self.root.backend.rates_of(own)
            if now != self._last:
                if _numbers(now).keys() != _numbers(self._last).keys():
                    self._done, self._runs = self._until(self._read), {}  # a schedule replaced it
                    self._find_members(own)  # or a group was added, and may be gone when it is read
                elif step > self._since:
                    self._runs = self._with_last()
                self._last, self._since = now, step
            self._read = step
            self._looks += not self._is_cheap
        except Exception as error:  # a value may be unreadable now
            if interrupt_in(error) is not None:
                raise

    def _with_last(self) -> dict[_Key, RateRun]:
        """The runs with the last reading."""
        return {
            key: with_value(self._runs.get(key), self._since, value)
            for key, value in _numbers(self._last).items()
        }

    def _until(self, end: int) -> dict[_Key, list[RateRun]]:
        """All runs, up to the step `end`."""
        found = dict(self._done)
        for key, run in (self._with_last() if self._since <= end else self._runs).items():
            if run.first <= end:
                known = [*found.get(key, ()), replace(run, count=end - run.first + 1)]
                found[key] = known[-MOST:]
        return found

    def _reported(self) -> list[RateRun]:
        """The rate since the last baseline, if programs reported it in each step, all the same."""
        steps, rates = self.root.step_count() - self._past, self.root.blocks.counters.rates
        known = {*rates.values()}
        return [
            RateRun(self._past + 1, steps, first, last, values)
            for first, last, values, of in known
            if len(known) == 1 and of == steps and math.isfinite(first) and math.isfinite(last)
        ]

    def _with_reported(self, end: int) -> dict[_Key, list[RateRun]]:
        """All runs, up to the step `end`; the rate as programs reported it, if they did."""
        found, key = self._until(end), (_KINDS[0], 0, "")
        if reported := self._reported():
            before = [run for run in self._done.get(key, ()) if run.first <= self._past]
            found[key] = [*before, *reported][-MOST:]
        return found

    def _find_members(self, optimizer: object) -> None:
        """Find the variables of each group, and those that decay, while they are alive."""
        held = [each and each() for each in list(self.root.variables.objects)]
        index = {id(each): number for number, each in enumerate(held) if each is not None}
        with suppress_faults():
            alive = [each for each in held if each is not None]
            for group, members in enumerate(self.root.backend.groups_of(optimizer, alive)):
                for what, variables in zip(_KINDS, members, strict=True):
                    own = tuple(index[id(each)] for each in variables if id(each) in index)
                    before = self._members.get((what, group), ())
                    self._members[what, group] = max(before, own, key=len)


def _numbers(reading: Sequence[tuple[object, object]]) -> dict[_Key, float]:
    """The rates and decays of a reading that are numbers; 0 for one that is not finite."""
    found: dict[_Key, float] = {}
    for group, pair in enumerate(reading):
        for what, value in zip(_KINDS, pair, strict=True):
            if isinstance(value, Real):
                bad = "" if math.isfinite(value) else str(float(value))
                found[what, group, bad] = 0.0 if bad else float(value)
    return found


def _schedule(rate: Any, optimizer: object) -> tuple[str, object]:
    """The text of a schedule, and the schedule if it may be called; a number has none.

    A schedule of the program is never called: it may count its calls.
    """
    if callable(rate):
        is_divided = getattr(optimizer, "_initial_decay", 0)  # legacy: each value
        ships = type(rate).__module__.startswith(("keras.", "tf_keras."))
        return maker_of(rate), rate if ships and not is_divided else None
    in_graph = getattr(rate, "graph", None) is not None  # of TensorFlow 1
    return f"the tensor {rate.name.partition(':')[0]}" if in_graph else "", None


def _is_around(optimizer: object, others: Sequence[object]) -> bool:
    """Whether one of the others is an attribute of this optimizer."""
    held = {*map(id, own_attributes(optimizer).values())}
    return any(id(each) in held for each in others if each is not optimizer)
