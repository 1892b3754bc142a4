"""The pytest plugin: counts what optimizers do in tests. Inert until a test asks.

A test is traced if it has the marker `optimizer_updates` (every optimizer that it uses), or if it
wraps an optimizer with the fixture `optimizer_tracer`. Before that, this module imports nothing
else of `tracer`; it never imports TensorFlow.
"""

import os
import re
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import pytest

import tracer

if TYPE_CHECKING:
    from tracer.api import Recording
    from tracer.model.trace import Trace

T = TypeVar("T")

MARKER = "optimizer_updates"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--tracer-save`."""
    save = "save the trace of every traced test in this folder, one file a test"
    group = parser.getgroup("tracer", "optimizer-tracer")
    group.addoption("--tracer-save", metavar="DIR", type=os.path.abspath, help=save)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(dense=, sparse=, total=, per_step=, variable=, at_least=, at_most=, "
        "effects=): the updates that optimizers make in this test, as for tracer.assert_updates; "
        "with effects=True the weights are compared, too",
    )


@pytest.fixture
def optimizer_tracer(request: pytest.FixtureRequest) -> "Iterator[OptimizerTracer]":
    """Trace the optimizers that `optimizer_tracer.wrap` is given, until the test ends."""
    from tracer.api import recording_of

    with recording_of() as recording:
        traced = OptimizerTracer(recording)
        request.node.stash[_fixture] = traced
        yield traced


class OptimizerTracer:
    """What the fixture `optimizer_tracer` gives: `wrap` and `trace`."""

    def __init__(self, recording: "Recording") -> None:
        self.recording = recording

    def wrap(self, optimizer: T, *, effects: bool = False) -> T:
        """Trace `optimizer` until the test ends; returns the same object.

        With `effects=True`, the trace also says which weights each step changed. If the trace is
        incomplete when the body of the test has ended, the test fails.
        """
        __tracebackhide__ = True
        self.recording.take(optimizer, effects=effects)
        return optimizer

    @property
    def trace(self) -> "Trace":
        """The trace of the wrapped optimizers so far, each since it was wrapped."""
        return self.recording.trace()


_fixture = pytest.StashKey[OptimizerTracer]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Trace the body of a test that asks for it, and check what it did if it passed."""
    failures: list[str] = []
    body, instance = _body(item, _checks(item), failures), getattr(item, "instance", None)
    call = getattr(instance, "_callTestMethod", None)
    with pytest.MonkeyPatch.context() as patch, nullcontext() if call else body:
        if call:  # `unittest.TestCase.run` calls it between `setUp` and `tearDown`
            patch.setattr(instance, "_callTestMethod", body(call))
        result = yield
    if failures:
        pytest.fail("\n\n".join(failures), pytrace=False)
    return result


@contextmanager
def _body(
    item: pytest.Item, checks: "list[Callable[[Trace], str]]", failures: list[str]
) -> Iterator[None]:
    """Trace the body of a test, and add to `failures` why it should fail although it passed."""
    __tracebackhide__ = True
    traced = item.stash.get(_fixture, None)
    effects = any(marker.kwargs.get("effects") for marker in item.iter_markers(MARKER))
    recording: Recording | None = None
    try:
        with tracer.record(effects=effects) if checks else nullcontext() as recording:
            yield
    finally:
        unsaved = _save(item, recording or (traced.recording if traced else None))
    found = [check(recording.trace()) for check in checks if recording]
    if traced is not None and traced.trace.optimizers:
        from tracer.check import incomplete

        found.append(incomplete(traced.trace, []))
    failures += filter(None, [*found, unsaved])


def _checks(item: pytest.Item) -> "list[Callable[[Trace], str]]":
    """The checks of the markers. Fails the test, at its line, for wrong arguments."""
    markers = list(item.iter_markers(MARKER))
    if not markers:
        return []
    from tracer.testing import expect_updates

    try:
        return [
            expect_updates(
                *each.args, **{key: own for key, own in each.kwargs.items() if key != "effects"}
            )
            for each in markers
        ]
    except (TypeError, ValueError) as error:
        path, line, _ = item.location
        reason = str(error).replace("expect_updates", MARKER)
        message = f"{path}:{(line or 0) + 1}: marker {MARKER}: {reason}"
        raise pytest.fail.Exception(message, pytrace=False) from None


# The option `--tracer-save`.


def _save(item: pytest.Item, recording: "Recording | None") -> str:
    """Save what a test did, if the option asks for it; return why it could not be saved."""
    folder: str | None = item.config.getoption("tracer_save")
    try:
        if folder and recording and (trace := recording.trace()).optimizers:
            os.makedirs(folder, exist_ok=True)
            trace.save(Path(folder, _file_name(item.nodeid)))
    except (OSError, tracer.TraceFileError) as error:
        return f"--tracer-save: {error}"
    return ""


def _file_name(nodeid: str) -> str:
    """A unique file name for a test.

    >>> _file_name("tests/test_a.py::TestB::test_c[1-x]")
    'tests.test_a.py.TestB.test_c[1-x].json'
    >>> _file_name("test_a.py::test_c[a/b c]")
    'test_a.py.test_c[a.b_c].0e5a234d.json'
    """
    path, _, name = nodeid.partition("::")
    plain = f"{path.replace('/', '.')}.{name.replace('::', '.')}"
    safe = re.sub(r"[^\w.,=+\[\]-]", "_", plain.replace("/", "."))[:180]
    code = "" if safe == plain else f".{zlib.crc32(nodeid.encode()):08x}"
    return f"{safe}{code}.json"
