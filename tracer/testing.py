"""Assertions for tests: what an optimizer does in a block.

Each assertion is a context manager. It counts only what runs in its block, and yields an
`Assertion`, whose `trace` can be read in the block and after it. If an exception leaves the block,
nothing is asserted. If a block never begins, a warning says so. An incomplete trace fails every
assertion, because it may have missed something.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from tracer.api import Recording, record, recording_of
from tracer.backends.objects import (
    is_loose_tensor,
    leaves_of,
    name_of,
    variables_of,
    weights_of,
)
from tracer.check import (
    METHODS,
    Expectation,
    Quantity,
    failure,
    runs_for_all,
    unknown,
)
from tracer.errors import UnknownName, unknown_name
from tracer.hooks.family import kind_to_trace
from tracer.model.names import variables_meant, with_namesakes
from tracer.model.records import Kind, Variable
from tracer.model.trace import Trace
from tracer.words import shown

Check = Callable[[Trace], str]
"""Returns why a trace is not as expected; empty if it is."""

__tracebackhide__ = True  # pytest shows the line of the assertion, without these frames


class Assertion:
    """What the assertions yield; `trace` is the trace of the block.

    Raises `tracer.UnsupportedOptimizer` if `optimizer` is not a supported optimizer.
    """

    _is_idle = False
    """Whether its block has not begun, and nothing was checked."""

    def __init__(self, optimizer: object, check: Check) -> None:
        if optimizer is not None:
            kind_to_trace(optimizer)
        self._check = check
        self._block = record() if optimizer is None else recording_of(optimizer)
        self._recording = Recording()
        self._is_idle = True

    def __del__(self) -> None:
        """Warn of a block that never began, as Python does of a coroutine never awaited."""
        if self._is_idle and warnings:  # which is None while Python ends
            text = "this assertion asserts nothing: write `with tracer.assert_...(...):` above the "
            warnings.warn(f"{text}code that trains", RuntimeWarning, stacklevel=2)

    @property
    def trace(self) -> Trace:
        """The trace of the block: so far or, after the block, all of it."""
        return self._recording.trace()

    def __enter__(self) -> "Assertion":
        self._is_idle = False
        self._recording = self._block.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, traceback)
        if error is None and (message := self.check(self.trace)):
            raise AssertionError(message)

    def check(self, trace: Trace) -> str:
        """Why a trace is not as expected; empty if it is."""
        self._is_idle = False
        return self._check(trace)


def assert_updates(
    optimizer: object = None,
    *,
    dense: int | None = None,
    sparse: int | None = None,
    total: int | None = None,
    per_step: bool = False,
    variable: object = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> Assertion:
    """Assert how many updates run in the block.

    `optimizer` is wrapped for the block; without one, every optimizer used in the block counts.
    `dense`, `sparse` and `total` (both kinds) are exact numbers; `at_least` and `at_most` are
    inclusive limits of the total.

    The numbers are for the whole block, all replicas together, or with `per_step` for each step of
    each optimizer on each replica. A step that loss scaling skips, or that only accumulates
    gradients, has 0 updates. `per_step` fails if there is an update outside any step, or no step.
    `variable` (a name, a glob, a variable, or a layer or model, for all its variables) selects the
    updates that count.

    Raises `TypeError` if no number is given, and `AssertionError` when the block ends, with the
    expected and the actual numbers, the variables and steps that differ, and the findings on them.

    >>> import tensorflow as tf, tracer
    >>> weight = tf.Variable([1.0])
    >>> optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    >>> with tracer.assert_updates(optimizer, dense=1, per_step=True) as seen:
    ...     for _ in range(3):
    ...         optimizer.apply_gradients([(tf.ones(1), weight)])
    >>> seen.trace.updates()
    3
    """
    check = expect_updates(
        dense=dense,
        sparse=sparse,
        total=total,
        per_step=per_step,
        variable=variable,
        at_least=at_least,
        at_most=at_most,
    )
    return Assertion(optimizer, check)


def assert_executions(
    method: str,
    count: int | None = None,
    *,
    optimizer: object = None,
    per_step: bool = False,
    variable: object = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> Assertion:
    """Assert how often the work of `method` is executed in the block.

    `count` is exact, `at_least` and `at_most` are inclusive limits. The other arguments are those
    of `assert_updates`. A method that is called in a `tf.function` is executed when its graph runs.

    Raises `tracer.UnknownName` for a method that no optimizer has.

    >>> import tensorflow as tf, tracer
    >>> weight = tf.Variable([1.0])
    >>> optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    >>> @tf.function
    ... def run():
    ...     optimizer.apply_gradients([(tf.ones(1), weight)])
    >>> with tracer.assert_executions("_resource_apply_dense", 10, optimizer=optimizer):
    ...     for _ in range(10):
    ...         run()
    """
    check = _of_method("executions", method, (count, at_least, at_most), variable, per_step)
    return Assertion(optimizer, check)


def assert_calls(
    method: str,
    count: int | None = None,
    *,
    optimizer: object = None,
    variable: object = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> Assertion:
    """Assert how often Python calls `method` in the block: the number that a mock counts.

    `count` is exact, `at_least` and `at_most` are inclusive limits. Calls have no steps.

    Raises `tracer.UnknownName` for a method that no optimizer has.

    >>> import tensorflow as tf, tracer
    >>> weight = tf.Variable([1.0])
    >>> optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    >>> @tf.function
    ... def run():
    ...     optimizer.apply_gradients([(tf.ones(1), weight)])
    >>> with tracer.assert_calls("apply_gradients", 1):  # it is not retraced
    ...     for _ in range(10):
    ...         run()
    """
    return Assertion(optimizer, _of_method("calls", method, (count, at_least, at_most), variable))


def assert_all_updated(model_or_variables: object, *, optimizer: object = None) -> Assertion:
    """Assert that each variable is updated at least once in the block.

    Takes models, layers (for all variables that gradients can train) and variables, one or several;
    for optax a tree of parameters. The variables are looked up when the block ends, so the block
    may build the model. A frozen layer fails, unless the block trained it before: where a layer is
    meant to be frozen, give the others. A name raises `TypeError`, because it does not say which
    variables there should be.

    >>> import tensorflow as tf, tracer
    >>> kernel, bias = tf.Variable([1.0]), tf.Variable([1.0])
    >>> optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    >>> with tracer.assert_all_updated([kernel, bias]):
    ...     optimizer.apply_gradients([(tf.ones(1), kernel), (tf.ones(1), bias)])
    """
    if isinstance(model_or_variables, str):
        raise TypeError(
            "assert_all_updated takes a model, a layer or variables, not "
            f"{model_or_variables!r}: a name does not say which variables there should be"
        )
    expected = Expectation("updates", 1, None, per_variable=True)
    return Assertion(optimizer, _check([expected], model_or_variables))


def assert_never_updated(variables: object, *, optimizer: object = None) -> Assertion:
    """Assert that none of these variables is updated in the block, while others are.

    Takes names, globs (`"*embedding*"`), variables, and models or layers (for all their variables),
    one or several. A name or glob must match a variable that the program holds when the block ends.
    A block in which nothing is updated fails, because it proves nothing.

    >>> import tensorflow as tf, tracer
    >>> frozen, head = tf.Variable([1.0]), tf.Variable([1.0])
    >>> optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    >>> with tracer.assert_never_updated(frozen):
    ...     optimizer.apply_gradients([(tf.ones(1), head)])
    """
    return Assertion(optimizer, _check([Expectation("updates", 0, 0)], variables, is_never=True))


def expect_updates(
    *,
    dense: int | None = None,
    sparse: int | None = None,
    total: int | None = None,
    per_step: bool = False,
    variable: object = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> Check:
    """The check of `assert_updates`, for the marker and the fixture of the pytest plugin."""
    wanted: list[tuple[Kind | None, int | None, int | None]] = [
        ("dense", dense, dense),
        ("sparse", sparse, sparse),
        (None, total, total),
        (None, at_least, at_most),
    ]
    names = names_of(variable)
    expected = [
        Expectation("updates", low, high, kind, None, names, None, per_step)
        for kind, low, high in wanted
        if (low, high) != (None, None)
    ]
    if not expected:
        raise TypeError("give one of dense=, sparse=, total=, at_least= and at_most=")
    return _check(expected, variable)


# Checks.


def _check(expected: Sequence[Expectation], variables: object, is_never: bool = False) -> Check:
    """The check of expectations; it fails for variables that the trace lacks.

    If `is_never`, an object that it lacks was never updated; then others must have been updated.
    If a count of each variable is expected, these are the variables that gradients can train.
    """
    given = list(variables) if isinstance(variables, Iterator) else variables  # read once
    method, of_each = expected[0].method, expected[0].per_variable

    def check(trace: Trace) -> str:
        if given is None and not (is_never or of_each):
            return failure(trace, expected)
        targets = targets_of(trace, given, weights=of_each)
        names = (each.given if isinstance(each.given, str) else each.name for each in targets)
        named, rows = () if of_each else tuple(dict.fromkeys(names)), indices(targets)
        lacking = tuple(each.name for each in targets if each.index is None)
        own = [
            replace(each, names=each.names or named, rows=rows, lacking=lacking)
            for each in expected
        ]
        why, instead = why_unknown(trace, targets, given)
        if runs_for_all(trace, method):
            why = f"{method} runs once for all variables: use assert_updates"
        elif is_never and trace.complete and not trace.updates():
            why = why or "nothing at all was updated, which proves nothing"
        elif not (is_never or of_each or rows):
            why = why or "no such variable was passed"
        if why:
            return unknown(trace, own, why, instead)
        return failure(trace, own)

    return check


def _of_method(
    what: Quantity,
    method: str,
    limits: tuple[int | None, int | None, int | None],
    variable: object,
    per_step: bool = False,
) -> Check:
    """The check of the count of a method, which must be known."""
    if method not in METHODS:
        raise unknown_name("method", method, METHODS, "tracer counts")
    count, *others = limits
    if (count is None) == (others == [None, None]):
        raise TypeError(f"assert_{what}() takes either a count, or at_least= and at_most=")
    low, high = others if count is None else (count, count)
    expected = Expectation(what, low, high, None, method, names_of(variable), None, per_step)
    return _check([expected], variable)


# The variables of a trace that variables, layers, models, trees and names mean.


@dataclass(frozen=True)
class Target:
    """A variable that an assertion concerns."""

    name: str
    index: int | None = None
    """Its index in the trace; None if the trace does not have it."""
    given: object = None
    """The argument that means it, a name or a variable; None for a leaf of a tree."""


def names_of(given: object) -> tuple[str, ...]:
    """The names of what `variable=` selects: a name, a glob, or variables, also of layers.

    Raises `TypeError` for any other object.
    """
    variables = () if given is None else variables_in(given, False)
    return tuple(each if isinstance(each, str) else name_of(each) for each in variables)


def targets_of(trace: Trace, given: object, *, weights: bool = False) -> list[Target]:
    """The targets for each given variable or name, and for the variables of layers and models.

    With `weights`, only for variables of these that gradients can train, frozen or not.
    """
    if leaves := leaves_of(given):
        return _leaves(trace, leaves)
    targets: list[Target] = []
    for variable in variables_in(given, weights):
        is_name = isinstance(variable, str)
        try:
            meant = variables_meant(variable, trace.variables, trace.objects)
            meant = with_namesakes(meant, trace.variables) if is_name else meant
            targets += [Target(trace.variables[i].name, i, variable) for i in sorted(meant)]
        except UnknownName:
            targets.append(Target(str(variable) if is_name else name_of(variable), None, variable))
    return targets


def _leaves(trace: Trace, leaves: Iterable[Variable]) -> list[Target]:
    """The targets for these leaves of a tree, in each transformation that has them.

    The tree does not tell which transformation is meant: `kernel` also means `kernel#2` if both
    have its shape. A leaf of a model trained by `vmap` or `pmap` may have more leading dimensions.
    """
    meant: list[Target] = []
    for leaf in leaves:
        path = leaf.name.removesuffix("/value")  # Flax NNX has it, optax does not
        same = re.compile(rf"({re.escape(leaf.name)}|{re.escape(path)})(#\d+)?")
        named = [i for i, each in enumerate(trace.variables) if same.fullmatch(each.name)]
        shapes = [leaf.shape[more:] for more in range(len(leaf.shape) + 1)]
        alike = ([i for i in named if trace.variables[i].shape == shape] for shape in shapes)
        known = next(filter(None, alike), [])
        meant += [Target(trace.variables[i].name, i) for i in known] or [Target(leaf.name)]
    return meant


def indices(targets: Iterable[Target]) -> frozenset[int]:
    """The indices of the targets that the trace has."""
    return frozenset(target.index for target in targets if target.index is not None)


def variables_in(given: Any, weights: bool) -> Iterator[object]:
    """Yield the variables in `given`, also of models, layers and nested lists; names stay names.

    Raises `TypeError` for an object without variables.
    """
    is_layer = hasattr(given, "trainable_variables")  # a Keras layer may be a PyTorch module, too
    variables = getattr(given, "variables", None)
    if callable(getattr(given, "named_parameters", None)) and not is_layer:
        yield from given.parameters()
    elif variables is not None and not callable(variables):
        yield from (
            (weights_of(given) if weights else variables_of(given)) if is_layer else variables
        )
    elif hasattr(given, "dtype") or isinstance(given, str):
        yield given
    elif isinstance(given, Iterable):
        for item in given:
            yield from variables_in(item, weights)
    else:
        words = "a name, a glob, a variable, a layer or a model"
        raise TypeError(f"variable must be {words}, not {given!r}")


def why_unknown(trace: Trace, targets: Sequence[Target], given: object) -> tuple[str, str]:
    """Why the targets cannot be judged, and what the trace has instead.

    Both are empty if each target may be a variable of the program that was never passed: an object,
    as a name that the trace does not hold may be misspelled.
    """
    known = [variable.name for variable in trace.variables]
    others = [each for i, each in enumerate(trace.variables) if i not in indices(targets)]
    shapes = {leaf.name: leaf.shape for leaf in leaves_of(given)}
    if trace.complete and not targets:
        return "there is no variable", ""
    for target in (each for each in targets if each.index is None and trace.complete):
        alike = [variable.name for variable in others if variable.shape == shapes.get(target.name)]
        if is_loose_tensor(target.given):
            return "this tensor is not a parameter: give the parameter itself, not a copy", ""
        if alike or isinstance(target.given, str):
            keys = ": give the whole tree that the optimizer gets, or a part with all its keys"
            why = f"the trace holds no variable {shown(target.name)!r}{keys if alike else ''}"
            return why, unknown_name("variable", target.name, known, meant=alike).instead
    return "", ""
