"""The pytest plugin: counts what optimizers do in tests. Inert until a test asks.

A test is traced if it has the marker `optimizer_updates` (every optimizer that it uses), or if it
wraps an optimizer with the fixture `optimizer_tracer`. Before that, this module imports nothing
else of `tracer`; it never imports TensorFlow.
"""

import os
import re
import sys
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

import tracer

if TYPE_CHECKING:
    from tracer.api import CallTrace, Recording
    from tracer.testing.assertions import Assertion, Unused

T = TypeVar("T")

MARKER = "optimizer_updates"

unused_assertions: "list[Unused] | None" = None
"""While a test's body runs, its assertions that were deleted without running a block.
`tracer.testing.assertions` adds them.
"""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--tracer-save`."""
    save = "save the trace of every traced test in this folder, one file a test"
    group = parser.getgroup("tracer", "optimizer-tracer")
    group.addoption("--tracer-save", metavar="DIR", type=os.path.abspath, help=save)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and make the folder for traces."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(dense=, sparse=, total=, per_step=, per_replica=, variable=, at_least=, "
        "at_most=, effects=): the updates that optimizers make in this test, as for "
        "tracer.assert_updates; with effects=True the weights are compared, too",
    )
    folder = _folder(config)
    if folder is not None:
        if re.search(r"[\w+.-]{2,}:/", str(folder)):  # a path has one slash of each two
            raise pytest.UsageError("--tracer-save: must be a folder of this machine, not a URL")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--tracer-save={folder}: {error.strerror}") from error


def pytest_collection_finish(session: pytest.Session) -> None:
    """Observe what fixtures make with optax, if a test has the marker."""
    if any(item.get_closest_marker(MARKER) for item in session.items):
        from tracer.hooks.recording import see_makers

        see_makers(True)
        session.config.add_cleanup(partial(see_makers, False))


@pytest.fixture
def optimizer_tracer(request: pytest.FixtureRequest) -> "Iterator[OptimizerTracer]":
    """Trace the optimizers that `optimizer_tracer.wrap` is given, until the test ends."""
    from tracer.api import recording_of

    with recording_of() as recording, ExitStack() as stack:
        traced = OptimizerTracer(recording, stack)
        request.node.stash[_fixture] = traced
        yield traced


class OptimizerTracer:
    """What the fixture `optimizer_tracer` gives: `wrap` and `trace`."""

    def __init__(self, recording: "Recording", stack: ExitStack) -> None:
        self._recording = recording
        self._stack = stack
        self._assertions: list[Assertion] = []

    def wrap(self, optimizer: T, *, effects: bool = False, **expected: Any) -> T:
        """Trace `optimizer` until the test ends; returns the same object.

        Arguments of `tracer.assert_updates` are checked when the body of the test has ended. With
        `effects=True`, the trace also says which weights each step changed.
        """
        __tracebackhide__ = True
        self._recording.counted.take(optimizer, effects=effects)
        if expected:
            assertion = tracer.assert_updates(optimizer, **expected)
            assertion.__enter__()
            self._stack.callback(assertion.close)
            self._assertions.append(assertion)
        return optimizer

    @property
    def trace(self) -> "CallTrace":
        """The trace of the wrapped optimizers so far, each since it was wrapped."""
        return self._recording.trace()

    def failures(self) -> list[str]:
        """Why the trace is not as expected, once the test has ended."""
        from tracer.testing.failure import incomplete

        messages = [message for each in self._assertions if (message := each.failure())]
        return messages or ([incomplete(self.trace)] if self.trace.optimizers else [])


_fixture = pytest.StashKey[OptimizerTracer]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Trace the body of a test that asks for it, and check what it did if it passed."""
    checks = _checks(item)
    effects = any(marker.kwargs.get("effects") for marker in item.iter_markers(MARKER))
    traced = item.stash.get(_fixture, None)
    unused: list[Unused] = []
    try:
        block = tracer.record(effects=effects) if checks else nullcontext()
        with pytest.MonkeyPatch.context() as patch, block as recording:
            patch.setattr(sys.modules[__name__], "unused_assertions", unused)
            result = yield
    finally:
        trace = recording.trace() if recording else traced.trace if traced else None
        folder = _folder(item.config)
        if folder is not None and trace is not None and trace.optimizers:
            trace.save(folder / _file_name(item.nodeid))
    root = item.config.rootpath
    messages = [f"{os.path.relpath(each.path, root)}:{each.line}: {each}" for each in unused]
    messages += [check(recording.trace()) for check in checks if recording]
    messages += [] if traced is None else traced.failures()
    if any(messages):
        pytest.fail("\n\n".join(filter(None, messages)), pytrace=False)
    return result


def _checks(item: pytest.Item) -> "list[Callable[[CallTrace], str]]":
    """The checks of the markers. Fails the test, at its line, for wrong arguments."""
    markers = list(item.iter_markers(MARKER))
    if not markers:
        return []
    from tracer.testing.assertions import expect_updates, judged

    try:
        return [
            partial(
                judged,
                expect_updates(
                    *each.args, **{k: v for k, v in each.kwargs.items() if k != "effects"}
                ),
            )
            for each in markers
        ]
    except (TypeError, ValueError) as error:
        path, line, _ = item.location
        reason = str(error).replace("expect_updates", MARKER)
        message = f"{path}:{(line or 0) + 1}: marker {MARKER}: {reason}"
        raise pytest.fail.Exception(message, pytrace=False) from None


# The option `--tracer-save`.


def _folder(config: pytest.Config) -> Path | None:
    folder: str | None = config.getoption("tracer_save")
    return Path(folder) if folder else None


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
    if safe != plain:
        safe += f".{zlib.crc32(nodeid.encode()):08x}"
    return f"{safe}.json"
