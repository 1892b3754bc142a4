"""Steps that raised: why, and of which variables.

The messages are those of `keras/src/optimizers/base_optimizer.py`
(`_check_variables_are_known`, `_filter_empty_gradients`), `tf_keras/src/optimizers/optimizer.py`
(`_update_step`), `tf_keras/src/optimizers/utils.py` (`filter_empty_gradients`) and
`tensorflow/python/eager/polymorphic_function/polymorphic_function.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from tracer.core.interrupts import suppress_faults
from tracer.model.records import Failure
from tracer.model.redaction import message

_LONGEST = 200
_MOST = 8  # kinds of failures that are kept

Cause = Literal["unknown", "creation", "none", "other"]

_MESSAGES: tuple[tuple[Cause, tuple[str, ...]], ...] = (
    ("unknown", ("Unknown variable: ", "The optimizer cannot recognize variable ")),
    (
        "creation",
        ("only supports singleton tf.Variables", "variables on a non-first call"),
    ),
    ("none", ("No gradients provided for any variable",)),
)


class _Known(NamedTuple):
    """A failure, with the indices of its variables."""

    method: str
    error: str
    cause: Cause
    variables: tuple[int, ...]
    function: str


class Failures:
    """The steps of one root optimizer that raised, each kind once."""

    def __init__(self) -> None:
        self._after: dict[_Known, tuple[int, int]] = {}

    def add(
        self,
        method: str,
        error: BaseException,
        optimizers: Iterable[Any],
        handed: Sequence[tuple[int, Any]],
        updating: int | None,
        function: str,
        after: int,
        begun: int,
    ) -> None:
        """A step raised that was handed these variables, on the one that it was `updating` then.

        It came `after` so many others; `begun` counts it too, if a part of it ran.
        """
        if not isinstance(error, Exception):
            return  # Ctrl-C, or the end of the program
        text = _one_line(error)
        causes = [cause for cause, parts in _MESSAGES if any(part in text for part in parts)]
        cause: Cause = causes[0] if causes else "other"
        variables = [index for index, _ in handed] if cause == "none" else []
        if cause == "unknown":
            variables = list(_unknown(optimizers, handed))
        if not variables and cause in ("unknown", "other") and updating is not None:
            variables = [updating]
        known = _Known(method, text[:_LONGEST], cause, tuple(dict.fromkeys(variables)), function)
        if known in self._after or len(self._after) < _MOST:
            self._after[known] = after, begun

    def records(self, names: Sequence[str], steps: int) -> tuple[Failure, ...]:
        """What a trace says of them, when so many `steps` have run."""
        return tuple(
            Failure(
                known.method,
                known.error,
                known.cause,
                tuple(names[index] for index in known.variables),
                after,
                known.function,
                steps <= begun,
            )
            for known, (after, begun) in list(self._after.items())
        )


def _one_line(error: Exception) -> str:
    said = ""
    with suppress_faults():  # an exception of the program may not even have a text
        said = str(error.args[0]) if isinstance(error, KeyError) and error.args else str(error)
    said = message(" ".join(said.split()))
    return f"{type(error).__name__}{': ' if said else ''}{said}"


def _unknown(optimizers: Iterable[Any], handed: Iterable[tuple[int, Any]]) -> Iterator[int]:
    """Which of the variables that were handed over none of the optimizers was built for."""
    indices = [
        (each, known)
        for each in optimizers
        for name in ("_trainable_variables_indices", "_index_dict")  # Keras 3, tf_keras
        if (known := vars(each).get(name))
    ]
    for index, variable in handed if indices else ():
        with suppress_faults():
            if not any(each._var_key(variable) in known for each, known in indices):
                yield index
