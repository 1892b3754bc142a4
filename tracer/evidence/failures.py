"""Collects the steps that raised: the error, and the variable whose apply method raised it."""

from typing import Any

from msgspec.structs import replace

from tracer.core.calls import Step
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.errors import without_credentials
from tracer.model.records import Failure, Optimizer

_MAX_LENGTH = 200
_MAX_FAILURES = 8  # the most kinds of failures kept


class Failures(Collector):
    """The steps of one root optimizer that raised, each kind once."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._begun: dict[tuple[Failure, int | None], tuple[int, int]] = {}
        """By failure and variable: the number of steps that had run, and the number begun."""

    def step_raised(self, call: Step, error: BaseException) -> None:
        """Record the exception that ended a step."""
        if not isinstance(error, Exception):
            return  # Ctrl-C, or the end of the program
        root, text = self.root, _one_line(error)
        method = root.sites.sites[call.own[0]].method
        graph = call.place.graph
        function = "" if graph is None else root.backend.function_around(graph)
        text = text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
        key = Failure(method, text, "", 0, function), call.failing
        if key in self._begun or len(self._begun) < _MAX_FAILURES:
            begun = root.blocks.counters.steps()
            own = min(call.numbers.values()) if call.numbers else begun + 1
            self._begun[key] = own - 1, begun

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add the failures to the record of a root optimizer."""
        if index != record.root or not self._begun:
            return record
        names = [each.name for each in self.root.variables.rows]
        steps = self.root.blocks.counters.steps()
        failures = (
            replace(
                failure,
                variable="" if variable is None else names[variable],
                after=after,
                last=steps <= begun,
            )
            for (failure, variable), (after, begun) in list(self._begun.items())
        )
        return replace(record, failures=tuple(failures))


def _one_line(error: Exception) -> str:
    said = ""
    with suppress_faults():  # `str` of a program's exception may raise
        said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    said = without_credentials(" ".join(said.split()))
    return f"{type(error).__name__}{': ' if said else ''}{said}"
