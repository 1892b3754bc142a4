"""The pytest plugin: counts what optimizers do in tests. Inert until a test or an option asks.

A test is traced if it has the marker `optimizer_updates` (then every optimizer that it uses is), if
it wraps an optimizer by the fixture `optimizer_tracer`, or with the option `--tracer-trace-all`.
Nothing else of `tracer` is imported before, and no TensorFlow at all.
"""

import ast
import inspect
import re
import zlib
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

if TYPE_CHECKING:
    from tracer.api import CallTrace, Recording
    from tracer.testing.assertions import Assertion, Check
    from tracer.testing.unused import Unused

T = TypeVar("T")

MARKER = "optimizer_updates"
_ARGUMENTS = "dense, sparse, total, per_step, per_replica, variable, at_least, at_most, effects"
_WHOM = (
    f"a test is traced if it has the marker {MARKER} or uses the fixture optimizer_tracer, or with "
    "--tracer-trace-all"
)

unused_assertions: "list[Unused] | None" = None
"""While a test's body runs: the assertions that were made in it and are gone, and no block was ever
run in them. `tracer.testing.unused` puts them here."""

_row = pytest.StashKey[dict[str, Any]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options, and the ini options that do the same."""
    group = parser.getgroup("tracer", "optimizer-tracer")
    report = "show a table of every traced test in the terminal summary"
    group.addoption("--tracer-report", action="store_true", help=report)
    parser.addini("tracer_report", report, "bool", False)
    save = "save the trace of every traced test in this folder, one file a test"
    group.addoption("--tracer-save", metavar="DIR", help=save)
    parser.addini("tracer_save", f"{save}; relative to the ini file", "string", "")
    trace_all = "trace every optimizer in every test"
    group.addoption("--tracer-trace-all", action="store_true", help=trace_all)
    parser.addini("tracer_trace_all", trace_all, "bool", False)
    update = "write the snapshots that optimizer_tracer.matches() compares with"
    group.addoption("--tracer-update", action="store_true", help=update)


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker, and make the folder for traces."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}({_ARGUMENTS.replace(',', '=,')}=): the updates that optimizers make in this "
        "test, as for tracer.assert_updates; with effects=True the weights are compared, too",
    )
    folder = _folder(config)
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise pytest.UsageError(f"--tracer-save={folder}: {error.strerror}") from error


@pytest.fixture
def optimizer_tracer(request: pytest.FixtureRequest) -> "Iterator[OptimizerTracer]":
    """Trace the optimizers that `optimizer_tracer.wrap` is given, until the test ends."""
    traced = OptimizerTracer(request.node)
    request.node.stash[_fixture] = traced
    yield traced
    traced.close()


class OptimizerTracer:
    """What the fixture `optimizer_tracer` gives: `wrap`, `trace` and `matches`."""

    def __init__(self, item: pytest.Item) -> None:
        from tracer.api import recording_of

        self._item = item
        self._stack = ExitStack()
        self._recording = self._stack.enter_context(recording_of())
        self._assertions: list[Assertion] = []
        self.used = False
        """Whether any optimizer was wrapped."""

    def wrap(self, optimizer: T, *, effects: bool = False, **expected: Any) -> T:
        """Trace `optimizer` until the test ends; returns the same object.

        With arguments of `tracer.assert_updates`, they are checked when the test's body has ended.
        With `effects=True` the weights are compared before and after each step: `trace` has them.
        """
        __tracebackhide__ = True
        from tracer.testing.assertions import assert_updates

        self._recording.take(optimizer, effects=effects)
        self.used = True
        if expected:
            assertion = assert_updates(optimizer, **expected)
            assertion.__enter__()
            self._stack.callback(assertion.close)
            self._assertions.append(assertion)
        return optimizer

    @property
    def trace(self) -> "CallTrace":
        """What the wrapped optimizers did so far, each since it was wrapped."""
        return self._recording.trace()

    def matches(self, name: str) -> None:
        """Assert that the trace is as in the snapshot `name`, kept beside the test.

        Compared are the executions of each method on each variable, with their kind, their steps
        and their replica; not times, versions or Python calls. `--tracer-update` writes it.
        """
        __tracebackhide__ = True
        from tracer.testing.assertions import compare_with_snapshot

        if not self.used:
            raise ValueError("there is nothing to compare: call optimizer_tracer.wrap(optimizer)")
        if not re.fullmatch(r"[\w.,=+\[\]-]+", name) or name.startswith("."):
            raise ValueError(f"the name of a snapshot is part of a file name, not {name!r}")
        test = self._item.path
        path = test.parent / "__traces__" / test.stem / f"{name}.json"
        message = compare_with_snapshot(
            self.trace,
            path,
            path.relative_to(test.parent).as_posix(),
            update=self._item.config.getoption("tracer_update"),
            command=f'pytest --tracer-update "{self._item.nodeid}"',
        )
        if message:
            raise AssertionError(message)

    def failures(self) -> Iterator[str]:
        """Why the trace is not as expected; the test has ended."""
        from tracer.testing.assertions import incomplete

        messages = [message for each in self._assertions if (message := each.failure())]
        yield from messages
        if not messages and self.used:
            yield from filter(None, [incomplete(self.trace)])

    def close(self) -> None:
        """Unwrap what was wrapped; the trace stays readable."""
        self._stack.close()


_fixture = pytest.StashKey[OptimizerTracer]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    """Trace the body of a test that asks for it, and check what it did if it passed."""
    checks: list[Check] = []
    effects, wrong = False, ""
    try:
        checks, effects = _checks(item)
    except _WrongMarker as error:
        wrong = str(error)
    if wrong:
        pytest.fail(wrong, pytrace=False)
    traced = item.stash.get(_fixture, None)
    with ExitStack() as stack:
        recording: Recording | None = None
        unused = stack.enter_context(_told_of_unused_assertions())
        if checks or _option(item.config, "tracer_trace_all"):
            from tracer.api import record

            recording = stack.enter_context(record(effects=effects))
        try:
            result = yield
        finally:
            stack.close()
            trace = recording.trace() if recording else traced.trace if traced else None
            if trace is not None and trace.optimizers:
                _keep(item, trace)
    messages = [f"{_relative(item, each.path)}:{each.line}: {each}" for each in unused]
    if recording is not None and checks:
        from tracer.testing.assertions import judged

        messages += [judged(check, recording.trace()) for check in checks]
    messages += [] if traced is None else traced.failures()
    if any(messages):
        pytest.fail("\n\n".join(filter(None, messages)), pytrace=False)
    return result


@contextmanager
def _told_of_unused_assertions() -> "Iterator[list[Unused]]":
    """Yields `unused_assertions` of a test, for the time of its body."""
    global unused_assertions
    before = unused_assertions
    told: list[Unused] = []
    unused_assertions = told
    try:
        yield told
    finally:
        unused_assertions = before


class _WrongMarker(Exception):
    """A marker whose arguments make no sense; says where it stands."""


def _checks(item: pytest.Item) -> "tuple[list[Check], bool]":
    """The checks that the markers ask for, and whether one of them asks for effects.

    Raises `_WrongMarker` for wrong arguments.
    """
    markers = list(item.iter_markers_with_node(MARKER))
    if not markers:
        return [], False
    from tracer.testing.assertions import expect_updates

    known = inspect.signature(expect_updates).parameters
    checks = []
    effects = False
    for node, marker in markers:
        expected = dict(marker.kwargs)
        asked = expected.pop("effects", False)
        wrong = [*marker.args, *(name for name in expected if name not in known)]
        try:
            if not isinstance(asked, bool):
                raise TypeError(f"effects is True or False, not {asked!r}")
            effects = effects or asked
            if wrong:
                near = get_close_matches(str(wrong[0]), [*known, "effects"], n=1)
                meant = f" (did you mean {near[0]}=?)" if near else ""
                raise TypeError(f"no argument {wrong[0]!r}{meant}: it takes {_ARGUMENTS}, by name")
            checks.append(expect_updates(**expected))
        except (TypeError, ValueError) as error:
            where = f"{_relative(item, item.path)}:{_line_of(marker, node, item)}"
            raise _WrongMarker(f"{where}: marker {MARKER}: {error}") from None
    return checks, effects


def _relative(item: pytest.Item, path: str | Path) -> str:
    """The path as pytest shows paths: seen from its root folder."""
    path = Path(path)
    root = item.config.rootpath
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()


def _line_of(marker: pytest.Mark, node: Any, item: pytest.Item) -> int:
    """The line in which `marker` of `node` was written; that of the test if it cannot be found.

    A marker does not know its line. It is looked for among the calls with the same arguments: in
    the lines of the test or the class that is marked, or else in all of the file.
    """
    first = (item.location[1] or 0) + 1
    try:
        lines, start = inspect.getsourcelines(node.obj)
        tree = ast.parse(item.path.read_text(encoding="utf-8"))
    except (AttributeError, OSError, SyntaxError, TypeError, ValueError):
        return first
    every = list(ast.walk(tree))
    decorators = {id(each) for one in every for each in getattr(one, "decorator_list", ())}
    like_it = [
        each.lineno
        for each in every
        if isinstance(each, ast.Call) and _may_have_made(marker, each, id(each) in decorators)
    ]
    of_node = [line for line in like_it if start <= line < start + len(lines)]
    return next(iter([*of_node, *like_it]), first)


def _may_have_made(marker: pytest.Mark, call: ast.Call, decorates: bool) -> bool:
    """Whether a call has the arguments of `marker`, as far as their values are written there."""
    named = {each.arg: each.value for each in call.keywords}
    if len(call.args) != len(marker.args) or set(named) != set(marker.kwargs):
        return False
    if not call.args and not named and not decorates:  # there are many such calls
        return isinstance(call.func, ast.Attribute) and call.func.attr == MARKER
    written = [*zip(call.args, marker.args, strict=True)]
    written += [(named[name], value) for name, value in marker.kwargs.items()]
    return all(_may_be(source, value) for source, value in written)


def _may_be(source: ast.expr, value: object) -> bool:
    try:
        return bool(ast.literal_eval(source) == value)
    except ValueError:  # it is worked out when the file is run
        return True


# What the options ask for.


def _option(config: pytest.Config, name: str) -> Any:
    return config.getoption(name) or config.getini(name)


def _folder(config: pytest.Config) -> Path | None:
    given: str | None = config.getoption("tracer_save")
    if given:
        return config.invocation_params.dir / given
    given = config.getini("tracer_save")
    home = config.inipath.parent if config.inipath else config.rootpath
    return home / given if given else None


def _keep(item: pytest.Item, trace: "CallTrace") -> None:
    """Save the trace and remember its row of the report, as far as the options ask for them."""
    folder = _folder(item.config)
    if folder is not None:
        trace.save(folder / _file_name(item.nodeid))
    if _option(item.config, "tracer_report"):
        item.stash[_row] = {
            "steps": trace.steps,
            "updates": trace.updates(),
            "dense": trace.updates(kind="dense"),
            "sparse": trace.updates(kind="sparse"),
            "note": "" if trace.complete else "INCOMPLETE",
        }


def _file_name(nodeid: str) -> str:
    """A file name for a test; other tests have others.

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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give a traced test's row to its report, which pytest-xdist sends to the first process."""
    report = yield
    if call.when == "call" and _row in item.stash:
        report.tracer = item.stash[_row]  # type: ignore[attr-defined]  # reports take any attribute
    return report


@pytest.hookimpl
def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Show the table of `--tracer-report`."""
    if not _option(config, "tracer_report"):
        return
    terminalreporter.section("optimizer tracer")
    rows = [
        (report.nodeid, report.tracer)
        for reports in terminalreporter.stats.values()
        for report in reports
        if hasattr(report, "tracer")
    ]
    if not rows:
        terminalreporter.line(f"no test was traced that used an optimizer: {_WHOM}")
        return
    from tracer.layout import Column, Row, Table

    names = ("steps", "updates", "dense", "sparse")
    table = Table("test", [Column(name) for name in names], cut_names=False)
    for nodeid, row in sorted(rows, key=lambda each: each[0]):
        table.rows.append(Row(nodeid, tuple(f"{row[name]:,}" for name in names), row["note"]))
    for line in table.lines(config.get_terminal_writer().fullwidth):
        terminalreporter.line(line.plain)
