"""Collectors gather evidence for the findings; nothing that is counted depends on one.

A collector that raises is dropped with a note: its fault is none of the program, nor of the counts.
The common ones stand in `tracer.evidence`, and those that know a framework in its backend.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from itertools import product
from typing import Any

from msgspec.structs import replace

from tracer.core.calls import Call
from tracer.core.interrupts import interrupt_in
from tracer.model.records import Optimizer, Rate, Remark


class Collector:
    """Gathers evidence about one root optimizer; a callback that stays as it is costs none."""

    def __init__(self, root: Any) -> None:
        self.root = root
        """The `Root` that it is of."""

    def first_step_begins(self, variables: Iterable[Any]) -> None:
        """The first step begins in eager mode, with gradients of these variables."""

    def first_step_ends(self, call: Call) -> None:
        """The first step has ended, or was traced."""

    def step_ends(self, call: Call) -> None:
        """A step has ended in eager mode."""

    def step_compared(self, call: Call) -> None:
        """A step has ended whose effects are asked for; `call.before` has what was before."""

    def step_raised(self, call: Call, error: BaseException) -> None:
        """A step was ended by an exception."""

    def step_traced(self, call: Call) -> None:
        """A step was traced, and Python's stack is still that of the tracing."""

    def function_called(self) -> None:
        """A function with a step in it is called; not at each call: see `Collectors.throttle`."""

    def block_begins(self) -> None:
        """A trace may count from here on."""

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """What a trace says of the optimizer with this index, with the evidence."""
        return record

    def remarks(self) -> Iterable[Remark]:
        """What a trace says of the root, besides."""
        return ()

    def rates(self) -> Iterable[Rate]:
        """The learning rates and decays over all steps."""
        return ()


_IDLE = {name: each for name, each in vars(Collector).items() if not name.startswith("_")}
CALLBACKS = list(_IDLE)

shared: Callable[[], Sequence[type[Collector]]] = tuple
"""Gives the collectors that every recorder has; the room of evidence sets it when it is there."""


class Collectors:
    """The collectors of one recorder; only those are called that override a callback.

    The lists are exchanged and never changed: any thread may be going through one.
    """

    def __init__(self, root: Any) -> None:
        self._root = root
        self.throttle = Throttle()
        """Says at which calls of functions the collectors are called; asked at each of them."""
        self._use([each(root) for each in (*root.backend.collectors, *shared())])

    def call(self, callback: str, *given: Any) -> None:
        """Call those that override this callback."""
        for each in self._overriding[callback]:
            try:
                each(*given)
            except Exception as error:
                self._drop(each, error)

    def function_called(self) -> None:
        """A function with a step in it is called, and it is time to look what it will use."""
        self.throttle.run(lambda: self.call("function_called"))

    def snapshot(self, records: Iterable[Optimizer]) -> tuple[Optimizer, ...]:
        """What a trace says of the optimizers, with the evidence."""
        remarks = tuple(self._all_of("remarks"))
        found = tuple(
            replace(record, remarks=remarks) if remarks and index == record.root else record
            for index, record in enumerate(records)
        )
        for each in self._overriding["snapshot"]:
            try:
                found = tuple(each(index, record) for index, record in enumerate(found))
            except Exception as error:
                self._drop(each, error)
        return found

    def rates(self) -> list[Rate]:
        """The learning rates and decays over all steps."""
        return self._all_of("rates")

    def _all_of(self, callback: str) -> list[Any]:
        """All that is found by those that override this callback."""
        found: list[Any] = []
        for each in self._overriding[callback]:
            try:
                found += list(each())
            except Exception as error:
                self._drop(each, error)
        return found

    def _use(self, collectors: Sequence[Collector]) -> None:
        self._all = collectors
        self._overriding: dict[str, list[Callable[..., Any]]] = {name: [] for name in CALLBACKS}
        for each, name in product(collectors, CALLBACKS):
            if getattr(type(each), name) is not _IDLE[name]:
                self._overriding[name].append(getattr(each, name))
        self.watch_steps = bool(self._overriding["step_ends"])
        """Whether any is called at the end of each step; asked there."""

    def _drop(self, method: Any, error: Exception) -> None:
        """Call the collector of this method, which raised, no more."""
        if interrupt_in(error) is not None:
            raise error  # the program's own
        dropped = method.__self__
        self._use([each for each in self._all if each is not dropped])
        self._root.note(
            f"{type(dropped).__name__}, which gathers evidence for findings, failed with "
            f"{type(error).__name__}: {error}; findings may be missing, and no count is affected"
        )


class Throttle:
    """Lets something be done each of the first times, and then in a thousandth of the time."""

    at_once = 100
    """How often without a rest: what is said of a short run does not depend on its speed."""
    rest = 1000
    """How many times as long as it took nothing is done after that."""
    longest_rest = 0.5
    """Seconds; it takes long where the thread had to wait in it, too."""

    def __init__(self) -> None:
        self._times = 0
        self.due = 0.0
        """The time from which on it may be done, by `perf_counter`: asked at each step."""

    def run(self, do: Callable[[], None]) -> None:
        """Do it now, and say when it is due again."""
        begin = time.perf_counter()
        do()
        self._times += 1
        if self._times >= self.at_once:
            end = time.perf_counter()
            self.due = end + min(self.longest_rest, self.rest * (end - begin))
