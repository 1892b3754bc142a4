"""Collects the steps that raised: why, and for which variables.

The messages are from `keras/src/optimizers/base_optimizer.py` (`_check_variables_are_known`,
`_filter_empty_gradients`), `tf_keras/src/optimizers/optimizer.py` (`_update_step`),
`tf_keras/src/optimizers/utils.py` (`filter_empty_gradients`) and
`tensorflow/python/eager/polymorphic_function/polymorphic_function.py`.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from msgspec.structs import replace

from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.model.records import Failure, Optimizer
from tracer.model.redaction import message

_MAX_LENGTH = 200
_MAX_FAILURES = 8  # the most kinds of failures kept

Cause = Literal["unknown", "creation", "none", "other"]

_CAUSES: dict[str, Cause] = {
    "Unknown variable: ": "unknown",
    "The optimizer cannot recognize variable ": "unknown",
    "only supports singleton tf.Variables": "creation",
    "variables on a non-first call": "creation",
    "No gradients provided for any variable": "none",
}


class Failures(Collector):
    """The steps of one root optimizer that raised, each kind once."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._begun: dict[tuple[Failure, tuple[int, ...]], tuple[int, int]] = {}
        """By failure and variables: the number of steps that had run, and the number begun."""

    def step_raised(self, call: Call, error: BaseException) -> None:
        """Record the exception that ended a step."""
        if not isinstance(error, Exception):
            return  # Ctrl-C, or the end of the program
        root, text = self.root, _one_line(error)
        method = root.sites.sites[call.own[0]].method
        cause: Cause = next((cause for part, cause in _CAUSES.items() if part in text), "other")
        passed = root.variables_of(call.sites, "request")
        variables: list[int] = []
        if cause == "none":
            variables = list(passed)
        elif cause == "unknown":
            variables = list(_unknown(root.optimizers.alive(), passed.items()))
        if not variables and cause in ("unknown", "other") and call.failing is not None:
            variables = [call.failing]
        graph = call.place.graph
        function = "" if graph is None else root.backend.function_around(graph)
        text = text if len(text) <= _MAX_LENGTH else f"{text[: _MAX_LENGTH - 1]}…"
        failure = Failure(method, text, cause, (), 0, function)
        key = failure, tuple(dict.fromkeys(variables))
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
                variables=tuple(names[each] for each in variables),
                after=after,
                last=steps <= begun,
            )
            for (failure, variables), (after, begun) in list(self._begun.items())
        )
        return replace(record, failures=tuple(failures))


def _one_line(error: Exception) -> str:
    said = ""
    with suppress_faults():  # `str` of a program's exception may raise
        said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    said = message(" ".join(said.split()))
    return f"{type(error).__name__}{': ' if said else ''}{said}"


def _unknown(optimizers: Iterable[Any], passed: Iterable[tuple[int, Any]]) -> Iterator[int]:
    """Yield the variables passed to a step that no optimizer was built for."""
    indices = [
        (each, known)
        for each in optimizers
        for name in ("_trainable_variables_indices", "_index_dict")  # Keras 3, tf_keras
        if (known := vars(each).get(name))
    ]
    for index, variable in passed if indices else ():
        with suppress_faults():
            if not any(each._var_key(variable) in known for each, known in indices):
                yield index
