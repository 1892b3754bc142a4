"""Each trouble of the table is said, and nothing of its healthy twin.

The programs are those of the framework that is installed, or that `KERAS_BACKEND` asks for. Some
also run under `tracer run`, as their owners would: see `test_the_first_screen_of_a_run`.
"""

import importlib
import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from support.findings_of import bad, found, of_workers, traced
from support.framework import FRAMEWORK
from support.rules_by_backend import rules_of
from twins.table import TWINS, Twin

import tracer
from tracer.model.records import Program
from tracer.model.trace import Trace
from tracer.reporters.text import render

MODULES = {"tensorflow": "tensorflow", "torch": "torch", "jax": "optax"}
"""What the programs of each framework import: they are in the module `on_` it, or `on_keras`."""

FOREIGN = {
    "on_torch": ("tf.", "GradientTape", "TensorFlow", "graph", "apply_gradients", "compile"),
    "on_optax": ("tf.", "GradientTape", "TensorFlow", "apply_gradients", "Keras", "dataset"),
    "on_keras": ("tf.func", "GradientTape", "TensorFlow"),
}
"""Words that no finding of these programs has, nor its advice."""

ELSEWHERE = {
    "torch.optim": {"replicas-disagree"},
    "torch": {"replicas-disagree", "never-used"},
    "jax": {"replicas-disagree", "never-used", "graph-never-ran", "retraced"},
    "optax": set[str](),
}
"""Rules of a backend that another test is about."""

ON_JAX = {"apply-raised", "gradients-left", "updated-twice"}
"""The rules for Keras that rest on what is so on JAX alone."""

for name in (MODULES[FRAMEWORK], "keras") if FRAMEWORK else ():
    if importlib.util.find_spec(name) is not None:
        importlib.import_module(f"twins.on_{name}")
importlib.import_module("twins.with_packages")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Keras says some of it, too


def rows(mark: Callable[[Twin], str | None]) -> list[Any]:
    """The rows for which `mark` is not None, with that mark."""
    chosen = [(row, mark(row)) for row in TWINS]
    return [
        pytest.param(
            row, id=f"{row.name}-{row.backend}", marks=[getattr(pytest.mark, m)] if m else []
        )
        for row, m in chosen
        if m is not None
    ]


def trained(row: Twin, *, healthy: bool) -> tuple[Trace, Any]:
    """The trace as `tracer run` has it when the program has ended, and what it returned."""
    error, result = "", None
    with tracer.record(effects=row.effects) as recording:
        try:
            result = row.run(healthy)
        except (KeyError, TypeError, ValueError) as raised:
            assert not healthy, raised
            error = f"{type(raised).__name__}: {raised}"
            assert any(text in error for text in row.raises.split("|"))
    program = Program("train.py", 0.0, status=1 if error else 0, error=error)
    return Trace(msgspec.structs.replace(recording.trace().data, programs=(program,))), result


def check_result(row: Twin, result: Any, *, healthy: bool) -> None:
    """It hurts or does not, and the weights are those of training without the tracer."""
    if isinstance(result, tuple):
        result, *weights = result
        for traced_weight, weight in zip(weights, row.run(healthy)[1:], strict=True):
            assert np.asarray(traced_weight).tobytes() == np.asarray(weight).tobytes()
    if not row.raises and result is not None:
        assert result == (not healthy)


def plain(text: str) -> str:
    """The text without the folders of files."""
    return re.sub(r"[^\s(]*/", "", text)


def slow(row: Twin) -> str | None:
    """How often it runs; most programs of Keras say on JAX what they say on PyTorch."""
    if FRAMEWORK == "jax" and row.backend == "on_keras" and row.code not in ON_JAX:
        return "sweep"
    return None if row.packages else row.slow


@pytest.mark.parametrize("row", rows(slow))
def test_it_is_said_and_nothing_of_its_twin(row: Twin) -> None:
    trace, result = trained(row, healthy=False)
    if not row.code:
        assert trace.updates()
        assert not bad(trace)
        return
    check_result(row, result, healthy=False)
    if row.others is None:
        finding = found(trace, row.code)[0]
    else:
        assert trace.complete, trace.notes
        assert [each.code for each in bad(trace)] == [*row.others, row.code]
        finding = bad(trace)[-1]
    for fact in row.facts():
        assert fact in plain(finding.text)
    assert row.fix in finding.advice
    if row.variables is not None:
        ends = zip(finding.variables, row.variables, strict=True)
        assert all(name.endswith(end) for name, end in ends), finding.variables
    said = finding.text + finding.advice
    foreign = FOREIGN.get(row.backend, ()) if FRAMEWORK != "tensorflow" else ()
    assert not any(word in said for word in foreign), said
    if row.fix and not row.raises:
        assert_on_first_screen(render(trace), row)

    trace, result = trained(row, healthy=True)
    check_result(row, result, healthy=True)
    assert trace.complete, trace.notes
    assert trace.updates()
    assert not bad(trace)
    assert not found(trace, row.code)


def assert_on_first_screen(report: str, row: Twin) -> None:
    """What is to be said stands in the first lines of a report, after those of other libraries."""
    _, asked, rest = report.partition("How often did ")
    words = " ".join(" ".join(f"{asked}{rest}".split("\n")[:25]).split())
    codes = [*(row.others or ()), *[row.code] * bool(row.code)]
    assert all(f"[{code}]: " in words for code in codes)
    assert all(fact in plain(words) for fact in row.facts()), words
    assert row.fix in words
    assert "INCOMPLETE" not in words


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """What Python did with the arguments."""
    environment = {
        **os.environ,
        "COLUMNS": "80",
        "OMP_NUM_THREADS": "1",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    if FRAMEWORK == "tensorflow" and arguments[0] == "-m":
        from support import forked

        return forked.run(arguments[1:], folder, environment)
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


PROGRAM = str(Path(__file__).with_name("run.py"))


@pytest.mark.parametrize("healthy", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("row", rows(lambda row: row.screen or None))
def test_the_first_screen_of_a_run(row: Twin, healthy: bool, tmp_path: Path) -> None:
    """It prints what the program prints without the tracer, so the bits are the same."""
    for package in row.packages:
        pytest.importorskip(package)
    program = [PROGRAM, row.backend, row.train.__name__, row.kind, *["healthy"] * healthy]
    done = run(tmp_path, "-m", "tracer", "run", *filter(None, program))
    assert done.returncode == bool(row.raises and not healthy)
    assert done.returncode or f"hurts {not healthy}" == done.stdout.splitlines()[-1]
    if FRAMEWORK != "tensorflow":
        untraced = run(tmp_path, *filter(None, program))
        assert (untraced.returncode, untraced.stdout) == (done.returncode, done.stdout)
    if not healthy:
        assert_on_first_screen(done.stderr, row)
        return
    assert "What looks wrong" not in done.stderr
    assert not row.packages or not any(fact in plain(done.stderr) for fact in row.facts())


@pytest.mark.parametrize("backend", sorted(ELSEWHERE))
def test_each_rule_of_the_table_has_a_program(backend: str) -> None:
    module = {"torch.optim": "on_torch", "optax": "on_optax"}.get(backend, "on_keras")
    codes = {row.code for row in TWINS if row.backend == module} - {""}
    if not codes or (backend in MODULES and backend != FRAMEWORK):
        pytest.skip("another framework")
    assert rules_of(backend) - codes == ELSEWHERE[backend]


@pytest.mark.parametrize("backend", ["keras", "torch"])
def test_workers_that_did_not_do_the_same(backend: str) -> None:
    module: Any = sys.modules.get(f"twins.on_{backend}")
    if module is None:
        pytest.skip("another framework")
    one, other = (traced(partial(module.steps, number)) for number in (3, 2))
    (finding,) = of_workers(one, other).findings()
    assert finding.code == "replicas-disagree"
    assert "rank 1 ran 2 steps, rank 0 ran 3" in finding.text
    assert not of_workers(one, one).findings()


@pytest.mark.skipif(FRAMEWORK == "tensorflow", reason="`findings` has it")
def test_an_optimizer_that_was_built_and_never_used() -> None:
    """It is said until it steps."""
    from twins import on_keras

    optimizer, variables = tracer.wrap(on_keras.SGD(0.1)), on_keras.two()
    optimizer.build(variables)
    (finding,) = tracer.trace_of(optimizer).findings()
    assert finding.code == "never-used"
    optimizer.apply(on_keras.ones(True, True), variables)
    assert not tracer.trace_of(optimizer).findings()
