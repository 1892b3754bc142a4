"""The machine that every test finds: three CPU devices, a clean Keras, and a hard time limit.

TensorFlow reads the environment when it is imported, so it is set here, before any test module.

`pytest` alone runs the quick tests, in two processes, and says at its end what it left out: the
tests marked `long`, those marked `sweep`, which `nox -s sweep` runs, and of a file's tests marked
`wide` all but a covering, in which each of the tests and each value of a parameter occurs. With
any `-m`, or if a test is named (`FILE::TEST`), nothing is left out; `-m "long or not long"` runs
all.
"""

import doctest
import faulthandler
import gc
import importlib.util
import inspect
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import metadata
from typing import Any, TextIO
from zlib import crc32

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
# With fewer threads, MirroredStrategy over logical CPUs can wait for itself for good on 2 cores.
os.environ["TF_NUM_INTEROP_THREADS"] = "16"
# It is for this run, not for those that tests of the plugin start.
os.environ.pop("PYTEST_ADDOPTS", None)

import pytest
from hypothesis import settings

settings.register_profile("busy", deadline=None)  # a machine that is busy is no failure
settings.load_profile("busy")

collect_ignore = ["programs"]  # other processes run these: no tests

DEVICES = 3
"""Logical CPU devices: enough for `MirroredStrategy` over two and over three."""

LIMIT = 600
"""Seconds after which a test hangs. Quiet, none needs a tenth of it; a busy machine needs more."""

_stderr: TextIO | None = None


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    """Run the quick tests in two processes, if all of them were asked for and nothing else was."""
    options, inside = config.option, hasattr(config, "workerinput")  # one of the two asks, too
    plain = config.args_source.name != "ARGS" and not (options.keyword or options.markexpr)
    if plain and not inside and getattr(options, "numprocesses", 0) is None:
        options.numprocesses, options.dist = 2, "loadfile"


def pytest_configure(config: pytest.Config) -> None:
    global _stderr
    config.pluginmanager.register(WithoutFrameworks())
    # The real stderr: while a test runs, pytest holds file descriptor 2.
    _stderr = os.fdopen(os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2), "w")


def pytest_unconfigure() -> None:
    faulthandler.cancel_dump_traceback_later()
    if _stderr is not None:
        _stderr.close()


def pytest_report_header() -> str:
    """What the tests run with, read without importing it."""
    names = (*FRAMEWORKS, "numpy", "msgspec", "rich", "wrapt")
    versions = {d.name.lower().replace("-", "_"): d.version for d in metadata.distributions()}
    return ", ".join(f"{name} {versions[name]}" for name in names if name in versions)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the devices once, before any test can start TensorFlow's runtime."""
    _put_out_of_sight()
    if session.config.option.collectonly or "tensorflow" not in sys.modules:
        return  # no module of a test imported it, so no test here trains
    import tensorflow as tf

    tf.config.set_logical_device_configuration(
        tf.config.list_physical_devices("CPU")[0],
        [tf.config.LogicalDeviceConfiguration() for _ in range(DEVICES)],
    )


FRAMEWORKS = ("jax", "keras", "optax", "tensorflow", "tf_keras", "torch")
"""What a test may need that is not installed here."""


def _missing_framework(error: BaseException | None) -> str:
    """The framework that is not installed and was imported all the same; empty if that is none."""
    while error is not None:
        for failure in getattr(error, "failures", [error]):  # of the examples of a docstring
            if isinstance(failure, doctest.UnexpectedException):
                error = failure.exc_info[1]
        if isinstance(error, ModuleNotFoundError) and error.name is not None:
            root = error.name.partition(".")[0]
            if root in FRAMEWORKS and importlib.util.find_spec(root) is None:
                return root
        error = error.__cause__ or error.__context__
    return ""


class WithoutFrameworks:
    """Skips what needs a framework that is not installed, in `tracer/` too, and says so."""

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self) -> Iterator[None]:
        """Skip a file."""
        report: Any = yield
        call = report.call
        missing = _missing_framework(call.excinfo.value) if call.excinfo else ""
        if missing:
            # pytest keeps what it could not import, of which others would see a part.
            sys.modules.pop(report.nodeid.removesuffix(".py").replace("/", "."), None)
            report.outcome, report.result = "skipped", []
            report.longrepr = (report.nodeid, 0, f"Skipped: {missing} is not installed")
        return report  # type: ignore[no-any-return]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Iterator[None]:
        """Skip a test."""
        try:
            return (yield)
        except Exception as error:
            missing = _missing_framework(error)
            if missing:
                pytest.skip(f"{missing} is not installed")
            raise


@pytest.hookimpl(tryfirst=True)  # before what shuffles or selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what needs another Keras, and leave out what is long if nobody asked for it."""
    _skip_without_keras3(items)
    _mark_long_cells(items)
    if _leaves_out(config):
        config.hook.pytest_deselected(items=[item for item in items if _is_long(item)])
        items[:] = [item for item in items if not _is_long(item)]


def _leaves_out(config: pytest.Config) -> bool:
    return not config.option.markexpr and not any("::" in argument for argument in config.args)


def _skip_without_keras3(items: list[pytest.Item]) -> None:
    """Skip what is parametrized by `keras3` where the package `keras` is Keras 2."""
    keras = [each for each in metadata.distributions() if each.name == "keras"]
    if not keras or not keras[0].version.startswith("2."):
        return
    for item in items:
        callspec = getattr(item, "callspec", None)
        if callspec and re.search(r"\bkeras3\b", callspec.id):
            item.add_marker(pytest.mark.skip(reason="this TensorFlow has no Keras 3"))


def _is_long(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(tier) for tier in ("long", "sweep"))


def _mark_long_cells(items: list[pytest.Item]) -> None:
    """Of the tests marked `wide` in a file mark all but a covering `long`, or what `rest` says.

    Each cell of the covering has a value that none before it has. They come in an order by their
    names that is as good as random, so that the columns of a table take turns.
    """
    covered: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for item in sorted(items, key=lambda item: crc32(item.nodeid.encode())):
        marks = {mark.name: mark for mark in item.iter_markers()}
        if "wide" in marks and marks.keys().isdisjoint({"long", "skip", "sweep"}):
            callspec = getattr(item, "callspec", None)
            values = (callspec.params if callspec else {}).items()
            file, _, test = item.nodeid.partition("::")
            new = {("", test.partition("[")[0]), *((name, repr(value)) for name, value in values)}
            if new <= covered[file]:
                item.add_marker(marks["wide"].kwargs.get("rest", "long"))
            covered[file] |= new


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if _leaves_out(config):
        terminalreporter.write_line(
            "long tests were left out; `nox -s everything`, or `pytest -m 'long or not long'`, "
            "runs them too."
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End the whole run with a traceback if a test hangs; leave nothing that the next one sees.

    A hang in TensorFlow's C++ cannot be interrupted, neither by a signal nor by an exception.
    """
    assert _stderr is not None
    faulthandler.dump_traceback_later(LIMIT, exit=True, file=_stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
        _put_out_of_sight()


def _put_out_of_sight() -> None:
    """Collect the garbage, and let the garbage collector look at nothing any more that is left.

    `gc.get_objects` does not give what is left, so that no test finds an optimizer or a layer of
    another one, and neither it nor a collection takes the longer, the more tests came before.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_keras() -> Iterator[None]:
    """Give each test the automatic names and the graph of a fresh process."""
    yield
    for name in ("keras", "tf_keras"):
        clear = getattr(getattr(sys.modules.get(name), "backend", None), "clear_session", None)
        if clear is not None:  # collecting the garbage each time takes minutes
            quick = "free_memory" in inspect.signature(clear).parameters
            clear(**{"free_memory": False} if quick else {})


@pytest.fixture(autouse=True)
def _on_the_device_that_is_asked_for(request: pytest.FixtureRequest) -> Iterator[None]:
    """Train where `TRACER_TEST_DEVICE` says; TensorFlow, JAX and Keras take a GPU by themselves."""
    asked = os.environ.get("TRACER_TEST_DEVICE")
    with ExitStack() as device:
        if asked and "torch_optim" in request.path.parts:
            import torch

            device.enter_context(torch.device("cuda" if asked == "gpu" else asked))
        yield
