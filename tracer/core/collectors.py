"""Calls collectors, which gather evidence for findings; counts never depend on a collector.

A collector that raises is dropped with a note: its fault affects neither program nor counts. Common
collectors are in `tracer.evidence`; a collector that knows a framework is in its backend.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple
from weakref import ref

from tracer.core.calls import Step
from tracer.errors import interrupt_in
from tracer.model.evidence import Evidence
from tracer.model.records import Optimizer, Rate, Variable, WhyNot


class ModelVariable(NamedTuple):
    """A variable of a model that an optimizer trains, which the optimizer may not get."""

    reference: ref[Any]
    """The plain reference to the `canonical` variable or parameter, which may be gone."""
    record: Variable
    """Its record at the last look."""
    why: WhyNot
    since: int = 0
    """The step after which this was so; 0 from the first step on."""


class Collector:
    """Gathers evidence about one root optimizer."""

    def __init__(self, root: Any) -> None:
        self.root = root
        """The `Root` of the optimizer."""

    def first_step_ends(self, call: Step) -> None:
        """The first step has ended, or was traced."""

    def step_ends(self, call: Step) -> None:
        """An outermost step has ended in eager mode."""

    def step_raised(self, call: Step, error: BaseException) -> None:
        """An exception ended a step."""

    def step_traced(self, call: Step) -> None:
        """A step was traced; the Python stack is still the stack of the tracing."""

    def function_called(self) -> None:
        """A function that contains a step is called; throttled: see `Collectors.throttle`."""

    def used_without_step(self, method: str) -> None:
        """A method of `tracer.kinds.AUXILIARY` is called, and no step has begun yet."""

    def block_begins(self) -> None:
        """A baseline is taken: a later trace may count from here on."""

    def evidence_on(self, index: int, record: Optimizer) -> Iterable[Evidence]:
        """Return evidence on the optimizer with this index; its `record` has no evidence of it."""
        return self.evidence() if index == record.root else ()

    def evidence(self) -> Iterable[Evidence]:
        """Return evidence on the root optimizer."""
        return ()

    def rates(self) -> Iterable[Rate]:
        """The learning rates and decays over all steps."""
        return ()

    def model_variables(self) -> Iterable[ModelVariable]:
        """Return variables of the trained models that are frozen, or trainable and not passed.

        The reader leaves out those that the optimizer got, unless they were frozen later, and those
        that another traced optimizer got.
        """
        return ()


shared: Sequence[type[Collector]] = ()
"""The collectors of every recorder; `tracer.api` sets it, as core imports no evidence."""


class Collectors:
    """The collectors of one recorder.

    Their lists are replaced, never changed, as any thread may be iterating over them.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.throttle = Throttle()
        """Decides which calls of functions reach the collectors; checked at each call."""
        self._keep([each(root) for each in (*root.backend.collectors, *shared)])

    def _keep(self, collectors: Sequence[Collector]) -> None:
        self._all = collectors
        self._at_steps = [e for e in collectors if type(e).step_ends is not Collector.step_ends]
        """Those that each step in eager mode asks."""

    def call(self, callback: str, *given: Any) -> list[Any]:
        """Call this method of each collector; returns their combined results, if any.

        Drops a collector that raises; reraises the program's exceptions.
        """
        found: list[Any] = []
        for collector in self._at_steps if callback == "step_ends" else self._all:
            try:
                found += getattr(collector, callback)(*given) or ()
            except Exception as error:
                if interrupt_in(error) is not None:
                    raise
                self._keep([each for each in self._all if each is not collector])
                self._root.note(
                    f"{type(collector).__name__}, which gathers evidence for findings, failed with "
                    f"{type(error).__name__}: {error}; findings may be missing, but the counts are "
                    "not affected"
                )
        return found


class Throttle:
    """Runs an action each time at first, then in at most a thousandth of the time."""

    at_once = 100
    """Calls without a rest, so that findings on a short run do not depend on its speed."""
    rest = 1000
    """The rest after a call, as a multiple of the processor time that the call took."""

    def __init__(self) -> None:
        self._times = 0
        self.due = 0.0
        """The `perf_counter` time of the next call; checked at each step."""

    def run(self, do: Callable[[], Any]) -> None:
        """Run the action now, and set when it is due again."""
        begin = time.thread_time()
        do()
        self._times += 1
        if self._times >= self.at_once:
            self.due = time.perf_counter() + self.rest * (time.thread_time() - begin)
