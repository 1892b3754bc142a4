"""Runs Keras's own tests without and with the tracer, and fails if any of them ends otherwise.

Expected to end otherwise are only those that compare `type(optimizer)`: see `BY_TYPE`.

    python tests/upstream/compare.py                        # of the Keras 3 that is installed
    python tests/upstream/compare.py --tf-keras CHECKOUT    # of tf_keras, from its source

The tests of Keras 3 come with its wheel; one file imports `jax`, but does not run it. Those of
`tf_keras` are in neither its wheel nor its source distribution, so they are read from a checkout of
its repository at the version that is installed, and their imports are changed as its own build
does it. None of them is copied to this repository.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

TESTS = Path(__file__).parents[1]
KERAS3 = (
    "optimizers",
    "trainers/trainer_test.py",
    "trainers/compile_utils_test.py",
    "backend/tensorflow/optimizer_distribute_test.py",
    "backend/tensorflow/distribute_test.py",
    "backend/tensorflow/saved_model_test.py",
    "callbacks/swap_ema_weights_test.py",
    "callbacks/learning_rate_scheduler_test.py",
)
TF_KERAS = (
    "optimizers",
    "mixed_precision/loss_scale_optimizer_test.py",
    "engine/training_test.py",
)
NO_PROCESSES = "not MultiWorker and not ParameterServer"
"""Such tests of tf_keras start a cluster from a `__main__` that pytest does not give them."""

BY_TYPE = ("testConvertToLegacyOptimizer", "testSerializationWithBuiltInOptimizer")
"""Such tests of tf_keras want `type(optimizer) == LossScaleOptimizer`: no traced one can be it."""


def main() -> int:
    """Compare; the exit status is 1 if an outcome differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tf-keras", type=Path, help="a checkout of keras-team/tf-keras")
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if options.tf_keras is None:
            root = Path(importlib.util.find_spec("keras").origin).parent / "src"  # type: ignore[union-attr, arg-type]
            title = f"keras {importlib.metadata.version('keras')}"
            paths = [root / path for path in KERAS3]
        else:
            root = work / "tf_keras_tests"
            title = f"tf_keras {importlib.metadata.version('tf_keras')}"
            paths = _converted(options.tf_keras / "tf_keras", root)
            more = ["-k", NO_PROCESSES, *more]
        outcomes = [
            _run(root, paths, work / f"{name}.json", [*flags, *more])
            for name, flags in (("untraced", []), ("traced", ["--traced"]))
        ]
    return _compare(title, *outcomes)


def _converted(source: Path, target: Path) -> list[Path]:
    """The tests of a checkout, with the imports that the wheel's layout needs."""
    found = []
    for path in TF_KERAS:
        for test in sorted(
            (source / path).rglob("*_test.py") if (source / path).is_dir() else [source / path]
        ):
            text = test.read_text()
            text = re.sub(r"^(\s*from tf_keras)(?!\.src)\b", r"\1.src", text, flags=re.MULTILINE)
            text = re.sub(r"^(\s*import tf_keras) as", r"\1.src as", text, flags=re.MULTILINE)
            copy = target / test.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_text(text)
            found.append(copy)
    return found


def _run(root: Path, paths: list[Path], outcomes: Path, options: list[str]) -> dict[str, Any]:
    """The outcome of each test, from a process of its own."""
    command = [sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(root)]
    command += ["-q", "--tb=no", "--disable-warnings"]
    command += ["--continue-on-collection-errors"]
    command += ["-p", "no:cacheprovider", "-p", "upstream.conftest", "--outcomes", str(outcomes)]
    places = [str(TESTS), str(TESTS.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, places)),
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTEROP_THREADS": "16",
    }
    outcomes.unlink(missing_ok=True)
    subprocess.run([*command, *options, *map(str, paths)], env=environment, check=False)
    if not outcomes.exists():
        sys.exit(f"pytest did not finish, so there is nothing to compare: {' '.join(options)}")
    found: dict[str, Any] = json.loads(outcomes.read_text())
    return found


def _compare(title: str, untraced: dict[str, Any], traced: dict[str, Any]) -> int:
    names = sorted(untraced.keys() | traced.keys())
    nothing = {"outcome": "not run"}
    differing = [
        (name, before, after)
        for name in names
        if (before := untraced.get(name, nothing)["outcome"])
        != (after := traced.get(name, nothing)["outcome"])
    ]
    counts = Counter(each["outcome"].partition(":")[0] for each in untraced.values())
    said = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
    print(f"{title}: {len(names)} tests ({said}), {len(differing)} of them otherwise when traced")
    for name, before, after in differing:
        reason = " (it compares type(optimizer))" * _by_type(name, before, after)
        print(f"  {name}{reason}\n    untraced: {before}\n    traced:   {after}")
    traces = [each["trace"] for each in traced.values() if "trace" in each]
    sums = {key: sum(trace[key] for trace in traces) for key in ("optimizers", "steps", "updates")}
    print(", ".join(f"{number:,} {key}" for key, number in sums.items()), "were counted")
    notes = Counter(note for trace in traces for note in trace["notes"])
    for note, number in notes.most_common():
        print(f"  {number} x {note}")
    if not sums["updates"] or counts["not collected"]:
        print("a file was not collected, or nothing was traced: this proves nothing")
        return 1
    return 0 if all(_by_type(*each) for each in differing) else 1


def _by_type(name: str, before: str, after: str) -> bool:
    """Whether a test ends otherwise only because it compares the type of a traced optimizer."""
    known = name.rpartition("::")[2].startswith(BY_TYPE)
    return known and before == "passed" and after.startswith("failed: AssertionError: <class")


if __name__ == "__main__":
    sys.exit(main())
