"""The pytest plugin, in real runs of pytest, each in a process of its own."""

import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import forked

import tracer

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def _fork_for_each_run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """`pytester.runpytest_subprocess` runs pytest in a fork that has imported TensorFlow."""
    in_a_process = pytester.run

    def run(*command: Any, **options: Any) -> pytest.RunResult:
        if command[:2] != (sys.executable, "-mpytest"):
            return in_a_process(*command, **options)
        start = time.perf_counter()
        done = forked.run(["pytest", *map(str, command[2:])], Path.cwd(), os.environ)
        seconds = time.perf_counter() - start
        lines = done.stdout.splitlines(), done.stderr.splitlines()
        return pytest.RunResult(done.returncode, *lines, seconds)

    monkeypatch.setattr(pytester, "run", run)


HELPERS = """
import logging
import os
import unittest

import pytest
import tensorflow as tf

import tracer

logging.getLogger("asyncio").setLevel("ERROR")  # it prints the lines of slow coroutines


def train(steps=3, variables=2, optimizer=None):
    optimizer = optimizer or tf.compat.v1.train.GradientDescentOptimizer(0.1)
    weights = [tf.Variable([1.0], name=f"w{number}") for number in range(variables)]

    @tf.function
    def step():
        optimizer.apply_gradients([(tf.ones(1), weight) for weight in weights])

    for _ in range(steps):
        step()
"""

SUITE = """
from helpers import *

updates = pytest.mark.optimizer_updates


def test_untraced():
    train()


@updates(dense=2, sparse=0, per_step=True)
def test_exactly():
    train()


@updates(dense=1, per_step=True)
def test_one_too_many():
    train()


@pytest.mark.parametrize(
    "variables",
    [
        pytest.param(1, marks=updates(total=3)),
        pytest.param(2, marks=updates(total=6)),
        pytest.param(3, marks=updates(total=8)),
    ],
)
def test_parametrized(variables):
    train(variables=variables)


@updates(dense=6)
class TestClass:
    def test_of_the_class(self):
        train()

    @updates(dense=3, variable="w0")
    @updates(dense=2, variable="w1")
    def test_of_both(self):
        train()


class TestUnittest(unittest.TestCase):
    def setUp(self):
        train(steps=1)

    def tearDown(self):
        train(steps=2)

    @updates(dense=6)
    def test_good(self):
        train()

    @updates(dense=7)
    def test_bad(self):
        train()

    @updates(dense=7)
    def test_own_error(self):
        train()
        self.assertEqual("mine", "yours")

class TestCoroutines(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        train(steps=1)

    @updates(dense=6)
    async def test_good(self):
        train()

    @updates(dense=8)
    async def test_bad(self):
        train()


@updates(dense=7)
def test_own_error():
    train()
    raise ZeroDivisionError("mine")


def test_own_error_in_a_block():
    with tracer.assert_updates(dense=7):
        train()
        raise ZeroDivisionError("mine")


def test_block():
    with tracer.assert_updates(dense=7):
        train()


@updates(dense=7)
def test_own_skip():
    pytest.skip("not today")


@pytest.mark.xfail(strict=True)
@updates(dense=7)
def test_expected_to_fail():
    train()


@pytest.fixture(params=[6, 7])
def marked(request):
    request.node.add_marker(updates(dense=request.param))


def test_marked(marked):
    train()


@pytest.fixture
def optimizer(optimizer_tracer):
    optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    return optimizer_tracer.wrap(optimizer)


def test_fixture(optimizer, optimizer_tracer):
    train()  # another optimizer: it does not count
    train(optimizer=optimizer)
    assert optimizer_tracer.trace.updates() == 6


def test_fixture_fails(optimizer):
    train(optimizer=optimizer)
    called_on_the_class = tf.compat.v1.train.GradientDescentOptimizer.apply_gradients
    called_on_the_class(optimizer, [(tf.ones(1), tf.Variable([1.0]))])


def still():
    return tf.compat.v1.train.GradientDescentOptimizer(0.0)


@updates(total=6, effects=True)
def test_marker_with_effects():
    train(optimizer=still())


def test_fixture_with_effects(optimizer_tracer):
    train(optimizer=optimizer_tracer.wrap(still(), effects=True))
    assert optimizer_tracer.trace.count("unchanged", by="variable") == {("w0",): 3, ("w1",): 3}


class TestFixtureUnittest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, optimizer):
        self.optimizer = optimizer

    def test_passes(self):
        train(optimizer=self.optimizer, variables=1)
"""

FAILED = {
    "test_one_too_many": "dense updates: expected 1 in each step, got 2 in each of 3 steps",
    "test_parametrized[3]": "updates: expected 8, got 9",
    "TestClass.test_of_both": "dense updates of w1: expected 2, got 3",
    "TestUnittest.test_bad": "dense updates: expected 7, got 6",
    "TestCoroutines.test_bad": "dense updates: expected 8, got 6",
    "TestUnittest.test_own_error": "E       AssertionError: 'mine' != 'yours'",
    "test_own_error": "E       ZeroDivisionError: mine",
    "test_own_error_in_a_block": "E           ZeroDivisionError: mine",
    "test_block": "E       AssertionError: dense updates: expected 7, got 6",
    "test_marked[7]": "dense updates: expected 7, got 6",
    "test_fixture_fails": "what was not seen cannot be asserted",
}
OUTCOMES = {"failed": len(FAILED), "passed": 12, "skipped": 1, "xfailed": 1}


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(helpers=HELPERS, test_suite=SUITE)
    return pytester


def sections(lines: list[str]) -> dict[str, list[str]]:
    """What pytest says of each failed test."""
    found: dict[str, list[str]] = {}
    section: list[str] = []
    for line in lines:
        if match := re.fullmatch(r"_{3,} (\S+) _{3,}", line):
            section = found[match[1]] = []
        elif re.fullmatch(r"=+ .* =+", line):
            section = []
        section.append(line)
    return found


@pytest.mark.long
def test_what_fails_and_how(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-p", "no:cacheprovider")
    result.assert_outcomes(**OUTCOMES)
    found = sections(result.outlines)
    assert found.keys() == FAILED.keys()
    for name, line in FAILED.items():
        assert any(text.startswith(line) for text in found[name]), name
        text = "\n".join(found[name])
        ours = re.search(r"/tracer/(hooks|core|backends|check|testing|pytest_plugin)\b", text)
        assert not ours and "hidden" not in text, f"{name}: a frame of ours"
    marker, block = found["test_one_too_many"], found["test_block"]
    assert {f"w{n}               3          1       3        0" for n in (0, 1)} <= {*marker}
    assert "E       variable   updates   per step   dense   sparse" in block
    assert "E       w1               3          1       3        0" in block
    assert [line for line in block if line.startswith(">")] == [
        ">       with tracer.assert_updates(dense=7):"
    ]
    assert not (suite.path / "traces").exists()


@pytest.mark.long
def test_xdist_saves_the_trace_of_each_traced_test(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("-n2", "--tracer-save=traces", "--disable-warnings")
    result.assert_outcomes(**OUTCOMES)
    assert sections(result.outlines).keys() == FAILED.keys()
    files = {path.name for path in (suite.path / "traces").iterdir()}
    assert not files & {"test_suite.py.test_untraced.json", "test_suite.py.test_block.json"}
    trace = tracer.load(suite.path / "traces" / "test_suite.py.test_parametrized[2].json")
    assert (trace.steps, trace.updates()) == (3, 6)
    trace = tracer.load(suite.path / "traces" / "test_suite.py.test_marker_with_effects.json")
    assert trace.count("unchanged", by="variable") == {("w0",): 3, ("w1",): 3}


# Usage errors: no TensorFlow is needed for them.


@pytest.mark.long
def test_each_test_over_one_function_is_saved(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_again="""
            import pytest, tensorflow as tf
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
            weight = tf.Variable([1.0])

            @tf.function
            def step():
                optimizer.apply_gradients([(tf.ones(1), weight)])

            @pytest.mark.optimizer_updates(total=2)
            @pytest.mark.parametrize("number", [1, 2, 3])
            def test_marker(number):
                step()
                step()

            @pytest.mark.parametrize("number", [1, 2])
            def test_fixture(number, optimizer_tracer):
                optimizer_tracer.wrap(optimizer)
                step()
        """
    )
    result = pytester.runpytest_subprocess("--tracer-save=traces", "--disable-warnings")
    result.assert_outcomes(passed=5)
    files = sorted((pytester.path / "traces").iterdir())
    assert [tracer.load(file).updates() for file in files] == [1, 1, 2, 2, 2]


def test_a_trace_that_cannot_be_saved_fails_a_test_that_passed(pytester: pytest.Pytester) -> None:
    pytester.makefile(".txt", taken="")
    tests = """
        import pytest
        from helpers import train

        pytestmark = pytest.mark.optimizer_updates(dense=6)

        def test_passes():
            train()

        def test_own_error():
            train()
            raise ZeroDivisionError("mine")
    """
    pytester.makepyfile(helpers=HELPERS, test_it=tests)
    result = pytester.runpytest_subprocess("--tracer-save=taken.txt/traces", "-Werror")
    result.assert_outcomes(failed=2)
    found = sections(result.outlines)
    assert any(line.startswith("--tracer-save: ") for line in found["test_passes"])
    assert "E       ZeroDivisionError: mine" in found["test_own_error"]


def test_an_error_of_recording_is_shown_as_it_is(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import tracer

        def record(effects): raise OSError("no recording")

        tracer.record = record
        """
    )
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.optimizer_updates(total=0)
        def test_it(): pass
        """
    )
    result = pytester.runpytest_subprocess()
    assert "OSError: no recording" in result.stdout.str()
    assert "UnboundLocalError" not in result.stdout.str()


# Inert until asked.

PLAIN = """
    import sys

    def test_nothing_is_imported():
        names = ("tracer", "tensorflow", "keras", "rich", "msgspec")
        found = {name for name in sys.modules if name.partition(".")[0] in names}
        assert found == {"tracer", "tracer.errors", "tracer.pytest_plugin", "tracer.words"}
"""


def test_a_suite_that_does_not_ask_imports_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_plain=PLAIN)
    result = pytester.run(sys.executable, "-m", "pytest", "--strict-markers")  # no fork
    result.assert_outcomes(passed=1)


# What is easily written wrongly.

MARKERS = """
import pytest

updates = pytest.mark.optimizer_updates


@pytest.mark.parametrize("x", [1])
@updates(total=0)
@updates(total="0")
@updates(at_least=0)
def test_decorated(x): raise AssertionError("it ran")


@updates()
class TestOfTheClass:
    def test_of_the_class(self): raise AssertionError("it ran")


class TestByPytestmark:
    pytestmark = pytest.mark.optimizer_updates(4)

    def test_by_pytestmark(self): raise AssertionError("it ran")


@pytest.mark.parametrize(
    "x",
    [
        pytest.param(1, marks=updates(total=0)),
        pytest.param(2, marks=updates(total=-1)),
    ],
)
def test_parameter(x): assert x == 1, "it ran"


def test_made_elsewhere(): raise AssertionError("it ran")


test_made_elsewhere = updates(**{"tota" + "l": "none"})(test_made_elsewhere)
"""
WRONG = {
    "denes=4": "optimizer_updates() got an unexpected keyword argument 'denes'",
    "dense='4'": "dense updates: a count is an int, not '4'",
    "at_least=5, at_most=4": "updates: no count is 5 to 4",
}
"""Arguments of the markers of more tests, and what is said of them."""


@pytest.mark.parametrize("workers", [[], pytest.param(["-n2"], marks=pytest.mark.long)])
def test_a_wrong_marker_fails_its_test_with_its_line(
    pytester: pytest.Pytester, workers: list[str]
) -> None:
    tests = (
        f"\n@updates({arguments})\ndef test_wrong_{number}(): raise AssertionError('it ran')\n"
        for number, arguments in enumerate(WRONG)
    )
    pytester.makepyfile(test_it=MARKERS + "".join(tests))
    result = pytester.runpytest_subprocess(*workers)
    result.assert_outcomes(failed=5 + len(WRONG), passed=1)
    lines = {line for line in result.outlines if line.startswith("test_it.py:")}
    wrong = "a count is an int, not"
    expected = {
        f"test_it.py:6: marker optimizer_updates: updates: {wrong} '0'",
        "test_it.py:15: marker optimizer_updates: give one of dense=, sparse=, total=, at_least= "
        "and at_most=",
        "test_it.py:21: marker optimizer_updates: optimizer_updates() takes 0 positional arguments "
        "but 1 was given",
        "test_it.py:24: marker optimizer_updates: updates: no count is -1",
        f"test_it.py:34: marker optimizer_updates: updates: {wrong} 'none'",
    }
    first = 39
    for number, message in enumerate(WRONG.values()):
        expected.add(f"test_it.py:{first + 3 * number}: marker optimizer_updates: {message}")
    assert {line.partition(". Did you mean")[0] for line in lines} == expected
    assert "it ran" not in result.stdout.str()


@pytest.mark.long
def test_a_mistake_shows_the_line_of_the_test_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        import tensorflow as tf
        import tracer

        class Model:
            optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)

        def test_in_a_block():
            with tracer.assert_updates(Model(), total=1):
                pass

        def test_of_the_fixture(optimizer_tracer):
            optimizer_tracer.wrap(Model())

        def test_of_wrap():
            tracer.wrap(Model())

        def test_of_arguments():
            tracer.assert_calls("update_stepp", 1)

        def test_of_a_number():
            tracer.assert_updates(dense="4")

        def test_of_a_query():
            with tracer.record() as recording:
                Model.optimizer.apply_gradients([(tf.ones(1), tf.Variable([1.0], name="a"))])
            recording.trace().updates(variable="b")
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=6)
    assert "tracer/" not in result.stdout.str().replace("optimizer_tracer", "")
    assert "contextlib" not in result.stdout.str()
    asked = "of a model, give `model.optimizer`"
    assert sum(asked in line for line in result.outlines if line.startswith("E ")) == 3
