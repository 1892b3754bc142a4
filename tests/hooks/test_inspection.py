"""What is remarked of a class: small classes under a base that looks like the one of Keras 3."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tracer.hooks import inspection
from tracer.kinds import KINDS, OptimizerKind

KERAS3 = next(kind for kind in KINDS if kind.name == "keras3")


@pytest.fixture(autouse=True)
def no_embeddings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers of other tests may be alive."""
    monkeypatch.setattr(inspection, "_embeddings", list)


def base_of(kind: OptimizerKind) -> Any:
    """A class that `kinds` takes for the base class of a kind, with nothing in it."""
    return type(kind.base, (), {"__module__": kind.homes[0]})


def remarks(body: str, tmp_path: Path, kind: OptimizerKind = KERAS3) -> list[tuple[str, str]]:
    """The remarks on a class with this body, in a file of its own so that there is a source."""
    path = tmp_path / "mine.py"
    path.write_text("class Mine(Base):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    space: dict[str, Any] = {"Base": base_of(kind), "__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    return [(each.code, each.detail) for each in inspection.remarks_of(space["Mine"], kind)]


def effects(body: str, tmp_path: Path) -> list[tuple[str, str]]:
    """The remarks on an `update_step` with this body."""
    head = "def update_step(self, gradient, variable, learning_rate):\n"
    return remarks(head + textwrap.indent(textwrap.dedent(body), "    "), tmp_path)


@pytest.mark.parametrize(
    "statement",
    [
        "self.seen += 1",
        "self.seen = self.seen + 1",
        "self.last = gradient",
        "self.seen[variable.name] += 1",
        "self.names.append(variable.name)",
        "self.a, self.b = (1, 2)",
        "global count; count += 1",
        "if learning_rate: self.seen += 1",
    ],
)
def test_python_side_effect(statement: str, tmp_path: Path) -> None:
    found = effects(statement, tmp_path)
    assert {code for code, _ in found} == {"python-side-effect"}
    assert found[0][1].replace("(self.a, self.b)", "self.a, self.b") in statement  # Python 3.10


@pytest.mark.parametrize(
    "body",
    [
        "count = 0\ncount += 1",
        "names = []\nnames.append(1)",
        "if self.m is None:\n    self.m = 1",
        "if not hasattr(self, 'm'):\n    self.m = 1",
        "if variable.name not in self.m:\n    self.m[variable.name] = 1",
        "try:\n    self.m\nexcept AttributeError:\n    self.m = 1",
        "if tf.executing_eagerly():\n    self.seen += 1",
        "if not tf.inside_function():\n    self.seen += 1",
        "self.scaled = gradient * 2\nvariable.assign_sub(self.scaled)",
        "def inner():\n    self.seen += 1\ntf.py_function(inner, [], [])",
        "other.seen += 1",
        "self.log.add(variable.name)",
        "variable.assign_sub(gradient)",
        "pass",
    ],
)
def test_what_looks_like_a_side_effect(body: str, tmp_path: Path) -> None:
    assert effects(body, tmp_path) == []


@pytest.mark.parametrize(
    "body",
    [
        "self.decay_step.assign_add(1)",
        "self._iterations.assign_add(1)",
        "self.t.assign(self.t + 1)",
        "step = self.local_step.assign_add(1)",
        "with tf.control_dependencies([self.step.assign_add(1)]):\n    pass",
        "return self.lr.assign(self.lr * 0.9)",
        "tf.group(self.count.assign_add(1))",
    ],
)
def test_step_per_variable(body: str, tmp_path: Path) -> None:
    ((code, detail),) = effects(body, tmp_path)
    assert code == "step-per-variable"
    assert detail in body


@pytest.mark.parametrize(
    "body",
    [
        "self.momentum.assign_add(gradient)",
        "self.update_count.assign_add(1)",
        "self.calls_count.assign_add(1)",
        "self.lr.assign(0.1)",
        "self.steps[variable.name].assign_add(1)",
        "step = self.slots['t']\nstep.assign_add(1)",
        "if self.first is variable:\n    self.step.assign_add(1)",
        "for each in self.slots:\n    self.step.assign_add(1)",
        "tf.cond(variable, lambda: self.step.assign_add(1), lambda: 0)",
        "self.step.assign_add(1) if self.first is variable else 0",
        "self.estimate.assign_add(1)",
    ],
)
def test_what_looks_like_a_step_per_variable(body: str, tmp_path: Path) -> None:
    assert effects(body, tmp_path) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def _resource_apply_dense(self, grad, var): pass", ["override-unreached"]),
        ("def resource_apply_sparse(self, grad, var, indices): pass", ["override-unreached"]),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            def update_step(self, gradient, variable, learning_rate): pass
            """,
            [],
        ),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            def apply(self, *args): self._resource_apply_dense(*args)
            """,
            ["own-step"],
        ),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            def apply(self, *args): return getattr(self, "_resource_apply_dense")(*args)
            """,
            ["own-step"],
        ),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            update_step = property(lambda self: lambda *a: self._resource_apply_dense(*a[:2]))
            """,
            [],
        ),
        ("def apply_my_way(self, grad, var): pass", []),
        ("def apply_gradients(self, *args): pass", ["own-step"]),
        ("def _backend_apply_gradients(self, *args): pass", ["own-step"]),
        ("def update_step(self, gradient, variable): pass", ["wrong-signature"]),
        ("def update_step(self, *args): pass", []),
        (
            """
            def update_step(self, gradient, variable): pass
            def apply(self, *args): self.update_step(*args)
            """,
            ["own-step"],
        ),
    ],
)
def test_methods(body: str, expected: list[str], tmp_path: Path) -> None:
    assert [code for code, _ in remarks(body, tmp_path)] == expected


@pytest.mark.parametrize("kind", [each for each in KINDS if each.name in ("legacy", "v1")])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def _resource_apply_dense(self, grad, var): pass", ["sparse-missing"]),
        ("def apply_gradients(self, *args): self.inner.apply_gradients(*args)", ["own-step"]),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            def _resource_apply_sparse_duplicate_indices(self, grad, var, indices): pass
            """,
            [],
        ),
    ],
)
def test_sparse_missing(
    kind: OptimizerKind, body: str, expected: list[str], tmp_path: Path
) -> None:
    base = base_of(kind)
    for name in (method.name for method in kind.apply_methods):
        setattr(base, name, lambda self, grad, var, indices=None: None)
    path = tmp_path / "mine.py"
    path.write_text("class Mine(Base):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    space: dict[str, Any] = {"Base": base, "__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    found = inspection.remarks_of(space["Mine"], kind)
    assert [each.code for each in found] == expected


def test_a_class_that_cannot_be_read_may_update_by_itself() -> None:
    class Meta(type):
        @property
        def __mro__(cls) -> Any:
            raise RuntimeError

    class Mine(base_of(KERAS3), metaclass=Meta):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, var: Any) -> None: ...

    assert [each.code for each in inspection.remarks_of(Mine, KERAS3)] == ["own-step"]
