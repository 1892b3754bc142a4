"""The package's public names, and what is imported with it."""

import subprocess
import sys
import textwrap

import pytest

import tracer


def _python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_importing_is_quick_and_imports_no_tensorflow() -> None:
    code = """
        import sys, time
        start = time.process_time()
        import tracer
        heavy = ("tensorflow", "keras", "tf_keras")
        print(time.process_time() - start, [name for name in heavy if name in sys.modules])
    """
    seconds, modules = min(_python(code).split(" ", 1) for _ in range(3))
    assert float(seconds) < 0.1
    assert modules == "[]"


def test_reading_a_trace_imports_no_tensorflow() -> None:
    code = """
        import sys, tracer.model.tracefile, tracer.api, tracer.cli, tracer.reporters.text
        print([m for m in ("tensorflow", "keras", "tf_keras") if m in sys.modules])
    """
    assert _python(code) == "[]"


@pytest.mark.long
def test_a_keras_that_was_not_imported_stays_so() -> None:
    code = """
        import sys, tensorflow as tf
        train = tf.compat.v1.train
        train.GradientDescentOptimizer(0.1).apply_gradients([(tf.ones(1), tf.Variable([1.0]))])
        before = {name for name in sys.modules if "keras" in name}
        import tracer
        optimizer = tracer.wrap(train.GradientDescentOptimizer(0.1))
        optimizer.apply_gradients([(tf.ones(1), tf.Variable([1.0]))])
        print(tracer.trace_of(optimizer).updates())
        print({name for name in sys.modules if "keras" in name} - before)
    """
    assert _python(code).split("\n") == ["1", "set()"]


def test_the_public_names_resolve() -> None:
    assert sorted(tracer.__all__) == dir(tracer)
    assert all(getattr(tracer, name) is not None for name in tracer.__all__)
