"""Assertions for tests: what an optimizer does in a block.

Each assertion is a context manager. It counts only what runs in its block, and yields an
`Assertion`, whose `trace` can be read in the block and after it. If an exception leaves the block,
nothing is asserted. If the block never begins or never ends, a warning says so when the object is
deleted or the program ends, as for a coroutine that was never awaited. An incomplete trace fails
every assertion, because it may have missed something.
"""

import sys
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from types import FrameType, TracebackType
from typing import Any, NamedTuple

from tracer.api import CallTrace, Recording, record, recording_of
from tracer.backends.objects import frozen_in, frozen_near, leaves_of, name_of, names_alive
from tracer.check import failure
from tracer.check.expectation import (
    Expectation,
    Limits,
    Target,
    each_given,
    indices,
    known_methods,
    of_given,
    read_once,
    require_sense,
    targets_meant,
    variables_in,
    why_no_variable,
    why_unknown,
)
from tracer.check.failure import are_frozen, names_in, not_passed, together
from tracer.errors import UnknownName, UnsupportedOptimizer, unknown_name
from tracer.model.names import is_meant
from tracer.model.trace import Trace

Check = Callable[[Trace], str]
"""Returns why a trace is not as expected; empty if it is."""

__tracebackhide__ = True  # pytest shows the line of the assertion, without these frames


class Assertion:
    """What the assertions yield; `trace` is the trace of the block.

    Raises `tracer.UnsupportedOptimizer` if `optimizer` is not a supported optimizer. An assertion
    that is never used in a `with` asserts nothing; there is a warning.
    """

    def __init__(self, optimizer: object, check: Check) -> None:
        self._optimizer = optimizer
        self._check = check
        self._recording = Recording()
        self._stack = ExitStack()
        if optimizer is not None:
            from tracer.hooks import wrapping

            wrapping.require_optimizer(optimizer)
        self._made = _being_made()
        self._watch = _watch_use(self, self._made)

    @property
    def check(self) -> Check:
        """What is asserted when the block ends."""
        self._watch.detach()
        return self._check

    @property
    def trace(self) -> CallTrace:
        """The trace of the block: so far or, after the block, all of it."""
        return self._recording.trace()

    def __enter__(self) -> "Assertion":
        self._watch.detach()
        block = record() if self._optimizer is None else recording_of(self._optimizer)
        try:
            self._recording = self._stack.enter_context(block)
        except UnsupportedOptimizer as error:
            raise error.with_traceback(None) from None  # hides frames of contextlib
        why = "its block was entered and never left"
        self._watch = _watch_use(self, self._made._replace(why=why))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        __tracebackhide__ = True
        self.close()
        if isinstance(error, GeneratorExit):
            why = "its block is in a generator that was closed before it ended"
            _say_unused(self._made._replace(why=why), _made_in_test())
        if error is None:
            message = self.failure()
            if message:
                raise AssertionError(message)

    def failure(self) -> str:
        """Why what ran so far is not as expected; empty if it is."""
        return judged(self._check, self.trace, self._optimizer)

    def close(self) -> None:
        """End the block without asserting anything."""
        self._watch.detach()
        self._stack.close()


def judged(check: Check, trace: CallTrace, optimizer: object = None) -> str:
    """The result of `check` for `trace`, with the frozen layers of living models.

    `optimizer` is the optimizer of the trace, if one was given.
    """
    frozen = partial(frozen_near, trace, optimizer)
    return check(CallTrace(trace.data, trace.objects._replace(frozen=frozen)))


def assert_updates(
    optimizer: object = None,
    *,
    dense: int | None = None,
    sparse: int | None = None,
    total: int | None = None,
    per_step: bool = False,
    per_replica: bool = False,
    variable: object = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> Assertion:
    """Assert how many updates run in the block.

    `optimizer` is wrapped for the block; without one, every optimizer used in the block counts.
    `dense`, `sparse` and `total` (both kinds) are exact numbers; `at_least` and `at_most` are
    inclusive limits of the total.

    The numbers are for the whole block or, with `per_step`, for each step of each optimizer; for
    all replicas together or, with `per_replica`, for each replica. A step that loss scaling skips,
    or that only accumulates gradients, has 0 updates. `per_step` fails if there is an update
    outside any step, or no step. `variable` (a name, a glob, a variable, or a layer or model, for
    all its variables) selects the updates that count.

    Raises `TypeError` if no number is given, and `AssertionError` when the block ends, with the
    expected and the actual numbers, the variables and steps that differ, and the likely cause.

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
        per_replica=per_replica,
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
    per_replica: bool = False,
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
    expected = Expectation(
        "executions", (), method, variable, per_step=per_step, per_replica=per_replica
    )
    return Assertion(optimizer, _of_method(expected, count, at_least, at_most))


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
    expected = Expectation("calls", (), method, variable)
    return Assertion(optimizer, _of_method(expected, count, at_least, at_most))


def assert_all_updated(model_or_variables: object, *, optimizer: object = None) -> Assertion:
    """Assert that each variable is updated at least once in the block.

    Takes models, layers (for their trainable variables) and variables, one or several; for optax
    a tree of parameters. The variables are looked up when the block ends, so the block may build
    the model. A layer that is frozen as a whole fails, unless the block trained it before. A name
    raises `TypeError`, because it does not say which variables there should be.

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

    given = read_once(model_or_variables)

    def check(trace: Trace) -> str:
        targets, idle = targets_meant(trace, given, "trainable_variables"), []
        for each in () if leaves_of(given) else each_given(given):
            if not variables_in(each, "trainable_variables"):
                own = [of for of in targets_meant(trace, each, "variables") if of.index is not None]
                targets += own  # it was trained and then frozen, as a GAN's discriminator is
                idle += [] if own else [each]
        expected = Expectation("updates", (Limits("updates", 1, None),), targets=tuple(targets))
        layers = [layer for each in idle for layer in frozen_in(each)]
        frozen = [
            each
            for each in idle
            if not getattr(each, "trainable", False) and variables_in(each, "variables")
        ]
        if trace.complete and (layers or frozen):
            cause = (
                f"{are_frozen(layers)}, with {together(names_in(layers))}"
                if layers
                else f"frozen: {of_given(frozen[0], '')}"
            )
            why = "there is no trainable variable"
            return failure.not_judged(trace, expected.wanted, why, causes=[cause])
        return _of_targets(trace, expected, targets, given)

    return Assertion(optimizer, check)


def _of_targets(
    trace: Trace, expected: Expectation, targets: Sequence[Target], given: object
) -> str:
    """Why the trace is not as `expected` for the targets in `given`; empty if it is."""
    why, instead = why_unknown(trace, targets, leaves_of(given))
    if trace.complete and not targets:
        why = "there is no variable"
    if why:
        return failure.not_judged(trace, expected.wanted, why, instead)
    return failure.of_expected(trace, expected)


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
    given = read_once(variables)

    def check(trace: Trace) -> str:
        targets = targets_meant(trace, given, "variables")
        names = [each.given if isinstance(each.given, str) else each.name for each in targets]
        named = f" of {together(list(dict.fromkeys(names)))}" if names else ""
        wanted = (Limits(f"updates{named}", 0, 0),)
        expected = Expectation("updates", wanted, indices=indices(targets))
        message = _of_targets(trace, expected, targets, given)
        if message or trace.updates():
            return message
        why = "nothing at all was updated, which proves nothing"
        return failure.not_judged(trace, wanted, why)

    return Assertion(optimizer, check)


def expect_updates(
    *,
    dense: int | None = None,
    sparse: int | None = None,
    total: int | None = None,
    per_step: bool = False,
    per_replica: bool = False,
    variable: object = None,
    at_least: int | None = None,
    at_most: int | None = None,
) -> Check:
    """The check of `assert_updates`, for the marker and the fixture of the pytest plugin."""
    what = f"updates{of_given(variable)}"
    wanted = [
        Limits(f"dense {what}", dense, dense, frozenset({"dense"})),
        Limits(f"sparse {what}", sparse, sparse, frozenset({"sparse"})),
        Limits(what, total, total),
        Limits(what, at_least, at_most),
    ]
    needed = "give one of dense=, sparse=, total=, at_least= and at_most="
    given = require_sense(wanted, needed)
    return _check(
        Expectation("updates", given, variable=variable, per_step=per_step, per_replica=per_replica)
    )


# Checks.


def _check(expected: Expectation) -> Check:
    """The check that a trace is as `expected`; fails for a variable that the trace lacks."""

    def check(trace: Trace) -> str:
        if why := why_no_variable(trace, expected):
            return failure.not_judged(trace, expected.wanted, f"{why}: use assert_updates")
        try:
            return failure.of_expected(trace, expected)
        except UnknownName as error:
            why, names = "no such variable was passed", _alive(expected.variable)
            known = names and trace.complete
            causes = [not_passed(trace, names)] if known else []
            instead = "" if known else error.instead
            return failure.not_judged(trace, expected.wanted, why, instead, causes)

    return check


def _alive(variable: object) -> list[str]:
    """The names of living variables that `variable` means."""
    if isinstance(variable, str):
        return sorted(name for name in names_alive() if is_meant(variable, name))
    return [name_of(each) for each in variables_in(variable, "variables")]


def _of_method(
    expected: Expectation, count: int | None, at_least: int | None, at_most: int | None
) -> Check:
    """The check of the `expected` count of a method, with its limits."""
    what, method = expected.what, expected.method
    if method not in known_methods():
        raise unknown_name("method", method, known_methods(), "tracer counts")
    if count is not None and (at_least, at_most) != (None, None):
        raise TypeError(f"assert_{what}() takes a count or limits (at_least=, at_most=), not both")
    noun = f"{what} of {method}{of_given(expected.variable, ' on ')}"
    limits = (at_least, at_most) if count is None else (count, count)
    needed = f"assert_{what}() needs a count, at_least= or at_most="
    return _check(replace(expected, wanted=require_sense([Limits(noun, *limits)], needed)))


# Assertions whose block never began or never ended: they assert nothing, which is reported.
#
# Like Python for a coroutine that was never awaited, this reports it when the object is deleted or
# the program ends: by a `RuntimeWarning` at the line of the assertion, or to the pytest plugin,
# which fails the test, at its end at the latest. A closed generator leaves the block early, which
# is reported at once.

_PLUGIN = "tracer.pytest_plugin"
"""Looked up in `sys.modules`, because the plugin imports `tracer` only when a test needs it."""


class Unused(NamedTuple):
    """An assertion that asserted nothing."""

    function: str
    """The function that made it: `assert_updates`."""
    path: str
    line: int
    why: str = ""
    """How its block ended; empty if it never began."""

    def __str__(self) -> str:
        call = f"tracer.{self.function}"
        never = f" without `with`: write `with {call}(...):` above the code that trains"
        return f"{call}() asserts nothing{f': {self.why}' if self.why else never}"


def _being_made() -> Unused:
    """The assertion being made, with the line of the program that makes it."""
    frame: FrameType | None = sys._getframe(1)
    function = ""
    while frame is not None and frame.f_globals.get("__name__", "").startswith("tracer."):
        function, frame = frame.f_code.co_name, frame.f_back
    place = (frame.f_code.co_filename, frame.f_lineno) if frame else ("", 0)
    return Unused(function, *place)


def _watch_use(assertion: object, unused: Unused) -> "weakref.finalize[[Unused, Any], Any]":
    """Report `unused` when the assertion is deleted, unless this is detached first."""
    made = _made_in_test()
    watch = weakref.finalize(assertion, _say_unused, unused, made)
    if made is not None:
        made.watches.append(watch)
    return watch


def _made_in_test() -> Any:
    """The pytest plugin's `MadeInTest` of the current test; None outside tests."""
    return getattr(sys.modules.get(_PLUGIN), "made_in_test", None)


def _say_unused(unused: Unused, made: Any) -> None:
    """Report that an assertion asserted nothing: to the pytest plugin, or as a warning."""
    if made is None:
        warnings.warn_explicit(str(unused), RuntimeWarning, unused.path, unused.line)
    else:
        made.unused.append(unused)
