"""The package's public names, and what is imported with it."""

import importlib.util
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import tracer

FRAMEWORKS = [name for name in ("tensorflow", "jax", "torch") if importlib.util.find_spec(name)]
BACKEND = FRAMEWORKS[0] if FRAMEWORKS else ""


def _python(code: str, folder: Path | None = None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,  # the first in which Python looks
        env=os.environ | {"KERAS_BACKEND": BACKEND},
    )
    return done.stdout.strip()


def test_importing_imports_nothing_that_takes_long() -> None:
    code = """
        import sys, tracer
        heavy = ("tensorflow", "keras", "tf_keras", "torch", "jax", "numpy", "rich", "jinja2")
        print([name for name in heavy if name in sys.modules])
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
        later = {name for name in sys.modules if "keras" in name} - before
        print({name for name in later if not name.startswith("tracer.")})
    """
    assert _python(code).split("\n") == ["1", "set()"]


def test_the_public_names_resolve() -> None:
    assert sorted(tracer.__all__) == dir(tracer)
    assert all(getattr(tracer, name) is not None for name in tracer.__all__)


ALONE = """
    import importlib, pkgutil, keras, numpy, tracer
    for module in pkgutil.walk_packages(tracer.__path__, "tracer."):
        known = ("backends.jax", "backends.optax", "backends.tensorflow", "backends.torch")
        if not module.name.startswith(tuple(f"tracer.{name}" for name in known)):
            if module.name not in ("tracer.__main__", "tracer.pytest_plugin"):
                importlib.import_module(module.name)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(tracer.wrap(keras.optimizers.SGD(0.1)), "mse")
    with tracer.record() as recording:
        model.fit(numpy.ones((6, 2)), numpy.ones((6, 1)), batch_size=2, verbose=0)
    traces = recording.trace(), tracer.trace_of(model.optimizer)
    print(tracer.__file__, *((trace.steps, trace.updates(), trace.complete) for trace in traces))
"""


@pytest.mark.long
@pytest.mark.skipif(importlib.util.find_spec("keras") is None, reason="needs Keras")
@pytest.mark.parametrize(
    "deleted",
    [
        ("torch",),
        pytest.param(("optax",), marks=pytest.mark.sweep),
        pytest.param(("tensorflow",), marks=pytest.mark.sweep),
        ("optax", "jax"),
    ],
)
def test_a_backend_is_a_folder_that_can_be_deleted(
    deleted: tuple[str, ...], tmp_path: Path
) -> None:
    if BACKEND in deleted:
        pytest.skip("Keras runs on it")
    shutil.copytree(Path(tracer.__file__).parent, tmp_path / "tracer")
    for name in deleted:
        shutil.rmtree(tmp_path / "tracer" / "backends" / name)
    place, counts = _python(ALONE, tmp_path).split(" ", 1)
    assert place.startswith(str(tmp_path))
    assert counts == "(3, 6, True) (3, 6, True)"
