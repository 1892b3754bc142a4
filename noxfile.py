"""The versions that `tracer` is tested with: a session for each TensorFlow on each Python.

    nox -l                                              # the sessions
    nox -s "tests(python='3.11', tensorflow='2.15')"    # one of them
    nox -s tests                                        # all for which there is a Python here
    nox -s lint                                         # what a change must pass before it is run
    nox -s release                                      # what goes to the index, built and checked
    nox -s docs                                         # the documentation site
    nox -s "jax(jax='newest')" "torch(torch='newest')"  # other backends, without TensorFlow
    nox -s quick                                        # what `pytest` alone runs
    nox -s everything                                   # and the long tests too, in two processes

A session installs TensorFlow with the Keras 3 that it asks for, the `tf_keras` of the same number
and the package, and runs the tests below, or what follows `--`. A Python that is not installed is
skipped; `nox` finds `python3.12` and the like on the PATH. What was run stands in docs/limits.md.

`.ci/run`, the hosted CI and pre-commit run these sessions, and only here is said what is run with
what. With `--no-venv --no-install` a session uses the environment that is active.
"""

import argparse
import os
import shutil
import tarfile
from datetime import date
from pathlib import Path

import nox

PYTHONS = {
    "2.15": ("3.10", "3.11"),
    "2.16": ("3.10", "3.11", "3.12"),
    "2.17": ("3.10", "3.11", "3.12"),
    "2.18": ("3.10", "3.11", "3.12"),
    "2.19": ("3.10", "3.11", "3.12"),
    "2.20": ("3.10", "3.11", "3.12", "3.13"),
    "2.21": ("3.10", "3.11", "3.12", "3.13"),
}
"""The Pythons for which there are wheels of each TensorFlow, from 3.10 on."""

TRUTH_TABLE = "tests/counts/test_truth_table.py"
EACH = ("-m", "long or not long")
"""Leaves out no test: see `tests/conftest.py`."""

PROJECT = nox.project.load_toml("pyproject.toml")
TEST, DOCS, BACKENDS = (
    ("-e", ".", *nox.project.dependency_groups(PROJECT, group))
    for group in ("test", "docs", "backends")
)
"""The package with a group of what is not published: what a session installs."""

ON_JAX = (
    "tests/backends/jax",
    "tests/backends/optax",
    "tests/truth",
    "tests/twins",
)
ON_TORCH = (
    "tests/backends/torch_optim",
    "tests/backends/keras_torch",
    "tests/truth",
    "tests/twins",
)

LONG = ("-m", "long and not sweep", "-n", "2", "--dist", "loadfile")
"""The long tests, in two processes."""

CHECKS = ("ruff check .", "ruff format --check .", "mypy --strict", "lint-imports")
"""What a change must pass before it is run."""

SHORT = (
    TRUTH_TABLE,
    "-k",
    "(fit and (scale or XLA or steps) or scale and (eager or session))"
    " and not refuses and not used_before",
    *EACH,
)
"""Of the truth table of counts the rows where most can differ: eager, in functions, loops and
branches, compiled, in `fit`, in sessions, and on two replicas."""

ALL = (
    TRUTH_TABLE,
    "tests/counts/test_failing_steps.py",
    "tests/counts/test_graphs_and_sessions.py",
    "tests/counts/test_late_wrapping.py",
    "tests/counts/test_options.py",
    "tests/counts/test_strategies.py",
    "tests/counts/test_threads_and_forks.py",
    "tests/counts/test_unusual_methods.py",
    "tests/fuzz/test_fuzz.py",
    "tests/hooks/test_recording.py",
    "tests/hooks/test_transparency.py",
    "tests/hooks/test_unusual_classes.py",
    "tests/hooks/test_wrapping.py",
    "tests/backends/tensorflow/test_counters.py",
    "tests/backends/tensorflow/test_ledger.py",
    "tests/test_imports.py",
    *EACH,
)
"""What depends on the version of TensorFlow or Keras."""

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv|virtualenv"
nox.options.tags = ["change"]  # what a change is tested with; `weekly` takes longer


ENDS = {("3.10", "2.15"), ("3.12", "2.18"), ("3.13", "2.21")}
"""The combinations that each change is tested with; the others are tested weekly."""

combinations = nox.parametrize(
    "python, tensorflow",
    [
        nox.param(python, tensorflow, tags=["change"] if (python, tensorflow) in ENDS else [])
        for tensorflow, pythons in PYTHONS.items()
        for python in pythons
    ],
)
all_combinations = nox.parametrize(
    "python, tensorflow",
    [(python, tensorflow) for tensorflow, pythons in PYTHONS.items() for python in pythons],
)


@nox.session
@combinations
def tests(session: nox.Session, tensorflow: str) -> None:
    """One TensorFlow on one Python, with its Keras 3 and its tf_keras: the short tests."""
    _run(session, tensorflow, SHORT)


@nox.session(tags=["weekly"])
@all_combinations
def thorough(session: nox.Session, tensorflow: str) -> None:
    """The same: all the tests that depend on the version of TensorFlow or Keras."""
    _run(session, tensorflow, ALL)


def _run(session: nox.Session, tensorflow: str, tests: tuple[str, ...]) -> None:
    session.install(f"tensorflow=={tensorflow}.*", f"tf_keras=={tensorflow}.*", *TEST)
    session.run("pytest", *(session.posargs or tests))


@nox.session(python="3.11")
def lint(session: nox.Session) -> None:
    """Style, types and which way imports run: all of `CHECKS`, even if one fails."""
    session.install(*TEST)
    failed = []
    for check in CHECKS:
        try:
            session.run(*check.split())
        except nox.command.CommandFailed:
            failed.append(check)
    if failed:
        session.error(f"failed: {', '.join(failed)}")


@nox.session
def release(session: nox.Session) -> None:
    """What goes to the package index, built and checked: `-- [--tag v1.2.3] [FOLDER]`.

    The sdist, the wheel that is built from it, the citation file, and the workflows. With a tag, it
    and the changelog must name the version that was built.
    """
    parser = argparse.ArgumentParser(prog="nox -s release --")
    parser.add_argument("--tag")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(session.create_tmp(), "dist"))
    options = parser.parse_args(session.posargs)
    shutil.rmtree(options.folder, ignore_errors=True)
    session.install("build>=1.2", "twine>=6.1", "check-jsonschema>=0.33", "zizmor>=1.5")
    session.run("python", "-m", "build", "--outdir", str(options.folder))
    session.run("twine", "check", "--strict", *map(str, options.folder.iterdir()))
    workflows = sorted(map(str, Path(".github", "workflows").glob("*.yml")))
    for schema, files in (
        ("vendor.citation-file-format", ["CITATION.cff"]),
        ("vendor.github-workflows", workflows),
        ("custom.github-workflows-require-timeout", workflows),
    ):
        session.run("check-jsonschema", "--builtin-schema", schema, *files)
    session.run("zizmor", "--offline", "--no-progress", "--persona", "pedantic", *workflows)
    (sdist,) = options.folder.glob("*.tar.gz")
    if Path(".git").exists():
        with tarfile.open(sdist) as archive:
            packed = {each.partition("/")[2] for each in archive.getnames()}
        tracked = str(session.run("git", "ls-files", external=True, silent=True)).splitlines()
        differ = packed.symmetric_difference(tracked) - {"PKG-INFO"}
        if differ:
            session.error(f"in the sdist or in git, not in both: {', '.join(sorted(differ))}")
    version = sdist.name.removesuffix(".tar.gz").rpartition("-")[2]
    if options.tag and options.tag != f"v{version}":
        session.error(f"the tag is {options.tag}, the version {version}")
    if options.tag and f"\n## {version} - 20" not in Path("CHANGELOG.md").read_text("utf-8"):
        session.error(f"CHANGELOG.md has no '## {version} - DATE'")


@nox.session
def sdist(session: nox.Session) -> None:
    """The tests in the sdist that `nox -s release -- FOLDER` built, with its code: `-- FOLDER`."""
    root = _unpacked(session)
    session.install(*TEST)
    session.chdir(root)
    command = ("pytest", "-p", "no:cacheprovider")
    code = {"PYTHONPATH": str(root)}
    session.run(*command, "tests/repository", env=code)
    session.run(*command, "--collect-only", "-qq", *EACH, env=code)


@nox.session(venv_backend="venv")
def wheel(session: nox.Session) -> None:
    """The wheel that `nox -s release -- FOLDER` built, alone and then beside JAX: `-- FOLDER`."""
    smoke = str(Path(".ci", "smoke.py").absolute())
    (built,) = (str(each.absolute()) for each in Path(session.posargs[0]).glob("*.whl"))
    root = _unpacked(session)
    elsewhere = root.with_name("elsewhere")
    elsewhere.mkdir()
    session.chdir(elsewhere)
    session.install(built)
    session.run("tracer", "--version")
    session.run("python", smoke)
    Path("hello.py").write_text('print("hello")')
    for command in ("run hello.py", "report tracer.json", "check tracer.json --findings error"):
        session.run("tracer", *command.split())
    # It works with other frameworks, too, and without TensorFlow.
    _, _, *needed = BACKENDS
    session.install("jax", "keras", "optax", *needed)
    session.chdir(root)
    session.run("pytest", "-p", "no:cacheprovider", "-m", "not sweep", *ON_JAX)


def _unpacked(session: nox.Session) -> Path:
    """The folder of the sdist in the folder that follows `--`, unpacked."""
    (built,) = Path(session.posargs[0]).absolute().glob("*.tar.gz")
    folder = built.with_name(f"in-{session.name}")
    shutil.rmtree(folder, ignore_errors=True)
    with tarfile.open(built) as archive:
        archive.extractall(folder)
    (root,) = folder.iterdir()
    return root


@nox.session(python="3.11")
def docs(session: nox.Session) -> None:
    """The documentation site, in `site/`; `-- --site-dir FOLDER` writes it elsewhere."""
    session.install(*DOCS)
    session.run("mkdocs", "build", "--strict", *session.posargs)


@nox.session(python="3.11")
def quick(session: nox.Session) -> None:
    """What `pytest` alone runs: all but the long tests."""
    session.install(*TEST)
    session.run("pytest", *session.posargs)


@nox.session(python="3.11", tags=["weekly"])
def sweep(session: nox.Session) -> None:
    """What measures again, and what repeats other tests with each kind of optimizer."""
    session.install(*TEST)
    session.run("pytest", "-m", "sweep", "-n", "2", *session.posargs)


@nox.session(python="3.11")
def long(session: nox.Session) -> None:
    """The long tests, in two processes."""
    session.install(*TEST)
    session.run("pytest", *LONG, *session.posargs)


@nox.session(python="3.11", tags=["weekly"])
def coverage(session: nox.Session) -> None:
    """The branches that the quick tests enter, at least 90 %, and those that none enters.

    Not those of processes that tests start, nor of backends that have a session of their own.
    """
    session.install("pytest-cov>=6", *TEST)
    shown = ("--cov", "--cov-report=term-missing:skip-covered", "--cov-fail-under=90")
    session.run("pytest", "-n", "2", "--dist", "loadfile", *shown, *session.posargs)


@nox.session(python="3.11")
def everything(session: nox.Session) -> None:
    """All tests: the quick ones as people run them, then the long ones."""
    session.install(*TEST)
    session.run("pytest", *session.posargs)
    session.run("pytest", *LONG, *session.posargs)


PYTHON = (
    "tests/model",
    "tests/core/test_settle.py",
    "tests/evidence/test_inspection.py",
    "tests/findings/test_rules.py",
    "tests/reporters",
    "tests/repository/test_code_blocks.py",
    "tests/testing/test_assertions.py",
    "tests/testing/test_expressions.py",
    "tests/cli/test_autosave.py",
    "tests/cli/test_commands.py",
    "tests/test_pytest_plugin.py",
    "tracer",
    *EACH,
)
"""What depends on the version of Python or of another dependency."""


@nox.session(python=["3.10", "3.11", "3.12", "3.13"], tags=["change", "weekly"])
def python(session: nox.Session) -> None:
    """What reads and shows traces, the doctests and the plugin, with the newest of everything."""
    session.install(*TEST)
    session.run("pytest", *(session.posargs or PYTHON))


@nox.session(python=["3.10", "3.13"], venv_backend="uv", tags=["weekly"])
def lowest(session: nox.Session) -> None:
    """The same with the lowest versions that `pyproject.toml` allows; needs uv."""
    # The lowest TensorFlow for Python 3.13 is 2.20, of which a lower tf_keras knows nothing.
    more = ["tf_keras>=2.20"] if session.python == "3.13" else []
    session.install("--resolution", "lowest-direct", *TEST, *more)
    session.run("pytest", *(session.posargs or PYTHON))


@nox.session(python="3.12", tags=["weekly"])  # JAX 0.11 and later have no wheels for 3.11
@nox.parametrize("jax", ["0.10", "newest"])
def jax(session: nox.Session, jax: str) -> None:
    """Keras 3 and optax on one JAX, without TensorFlow."""
    version = "jax" if jax == "newest" else f"jax=={jax}.*"
    session.install(version, "keras", "optax", *BACKENDS)
    _run_backends(session, *ON_JAX)


@nox.session(python="3.11", tags=["weekly"])
@nox.parametrize("torch", ["2.6", "newest"])
def torch(session: nox.Session, torch: str) -> None:
    """PyTorch's own optimizers, and Keras 3 on one PyTorch, without TensorFlow."""
    version = "torch" if torch == "newest" else f"torch=={torch}.*"
    # Inductor of PyTorch 2.6 imports setuptools, which nothing installs.
    session.install(version, "keras", "numpy", "setuptools", *BACKENDS)
    _run_backends(session, *ON_TORCH)


def _run_backends(session: nox.Session, *tests: str) -> None:
    """Run the tests: all, or as the options that follow `--` say; or other tests that follow it."""
    given = session.posargs or EACH
    session.run("pytest", *(tests if given[0].startswith("-") else ()), *given)


ON_GPU = (
    ("tensorflow", SHORT),
    ("tensorflow", ("tests/gpu/test_tensorflow.py",)),
    ("torch", ("tests/backends/torch_optim/test_truth_table.py", "tests/gpu/test_torch.py")),
    ("torch", ("tests/backends/torch_optim/test_effects.py",)),
    ("torch", ("tests/truth/test_keras.py", "tests/backends/keras_torch/test_effects.py")),
    ("jax", ("tests/truth/test_keras.py", "tests/backends/jax/test_effects.py")),
    ("jax", ("tests/backends/optax/test_truth_table.py",)),
)
"""The backend of Keras and the tests: a process each, which may take all memory of the GPU."""


@nox.session(python="3.11")
def gpu(session: nox.Session) -> None:
    """The truth tables of each backend on a GPU, and a benchmark of each; no other session does.

    `TRACER_TEST_DEVICE=cpu nox -s gpu` tries the tests themselves without one.
    """
    session.install("tensorflow[and-cuda]", "torch", "jax[cuda12]", "optax", "keras", *TEST)
    device = os.environ.get("TRACER_TEST_DEVICE", "gpu")
    for keras, tests in ON_GPU:
        env = {"KERAS_BACKEND": keras, "TRACER_TEST_DEVICE": device}
        given = () if "-m" in tests else EACH
        session.run("pytest", *tests, *given, *session.posargs, env=env)
    session.run("python", "benchmarks/effects.py", "tensorflow", env={"TRACER_TEST_DEVICE": device})
    session.run("python", "benchmarks/gpu.py")


@nox.session(python="3.11", tags=["weekly"])
def trainers(session: nox.Session) -> None:
    """Lightning, Accelerate, Ray and the trainer of transformers, with PyTorch's own optimizers."""
    trainers = ("lightning>=2.5", "accelerate>=1.9", "transformers>=4.50", "ray[train]>=2.60")
    session.install("torch", *trainers, *BACKENDS)
    session.run("pytest", *(session.posargs or ("tests/backends/torch_optim", "-m", "sweep")))


@nox.session(python="3.11", tags=["weekly"])
def packages(session: nox.Session) -> None:
    """Public troubles with Flax, Lightning, Accelerate, transformers and PEFT, each by `run`."""
    stacks = ("lightning>=2.5,<3", "accelerate>=1.9,<2", "transformers>=4.50,<6", "peft>=0.15,<1")
    session.install("torch", "jax", "optax", "flax>=0.10,<0.13", *stacks, *BACKENDS)
    own = ("tests/twins", "-k", "with_packages", "-m", "sweep")
    session.run("pytest", *(session.posargs or own))


@nox.session(python="3.11", tags=["weekly"])
def third_party(session: nox.Session) -> None:
    """Optimizers that others wrote, on the newest TensorFlow that TensorFlow Addons works with."""
    session.install("tensorflow==2.15.*", "tensorflow-addons==0.23.*", *TEST)
    session.install("keras-adamw==1.38", "adabelief-tf==0.2.1", "gin-config==0.5.0")
    session.install("transformers==4.57.*", "tensorflow-recommenders==0.7.7")
    # Of TF Models the optimizers are enough, which need gin-config alone.
    session.install("--no-deps", "tf-models-official==2.15.0")
    # It asks for a NumPy that is older than TensorFlow 2.15 allows, and works with that one.
    session.install("--no-deps", "gradient-accumulator==0.5.2")
    session.run("pytest", "-m", "long or not long", *(session.posargs or ("tests/third_party",)))


@nox.session(python="3.11", tags=["weekly"])
def upstream(session: nox.Session) -> None:
    """Keras's own tests, without and with the tracer; `-- --tf-keras CHECKOUT` for tf_keras's."""
    session.install("tensorflow==2.21.*", "tf_keras==2.21.*", "jax", *TEST)
    session.run("python", "tests/upstream/compare.py", *session.posargs)


@nox.session(python="3.11", tags=["weekly"])
def endurance(session: nox.Session) -> None:
    """Long runs, each without and with the tracer: counts, memory and time. Half an hour."""
    session.install("tensorflow==2.21.*", "tf_keras==2.21.*", *TEST)
    session.run("python", "tests/support/endurance.py", *session.posargs)


def _of_today(seconds: int) -> tuple[str, ...]:
    """The options of a fuzzer: a new seed each day."""
    return ("--seconds", f"{seconds}", "--seed", f"{date.today():%Y%m%d}")


@nox.session(python="3.11", tags=["weekly"])
def benchmark(session: nox.Session) -> None:
    """Fail if tracing adds 10 % more instructions to a step than stored; needs valgrind."""
    session.install("torch", "jax", "optax", *TEST)
    session.run("python", "benchmarks/instructions.py", *(session.posargs or ("--check",)))


@nox.session(python="3.11", tags=["weekly"])
def fuzz(session: nox.Session) -> None:
    """Random programs, `-- --seconds 1800 --seed 1`: counts against odometers and a model."""
    session.install("tensorflow==2.21.*", "tf_keras==2.21.*", *TEST)
    session.chdir("tests")
    session.run("python", "-m", "fuzz.tensorflow", *(session.posargs or _of_today(1800)))


@nox.session(python="3.11", tags=["weekly"])
def optax_fuzz(session: nox.Session) -> None:
    """Random programs of optax, `-- --seconds 900 --seed 1`: counts against plain Python."""
    session.install("jax", "optax", *BACKENDS)
    session.chdir("tests")
    session.run("python", "-m", "fuzz.optax", *(session.posargs or _of_today(900)))


@nox.session(python="3.11", tags=["weekly"])
def torch_fuzz(session: nox.Session) -> None:
    """Random programs for torch.optim, `-- --seconds 900 --seed 1`: counts against odometers."""
    session.install("torch", "numpy", *BACKENDS)
    session.chdir("tests")
    session.run("python", "-m", "fuzz.torch_optim", *(session.posargs or _of_today(900)))
