"""What is remarked of a class: small classes under a base that looks like the one of Keras 3."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tracer.evidence import collectors
from tracer.hooks.family import own_steps
from tracer.kinds import KINDS, OptimizerKind

KERAS3 = next(kind for kind in KINDS if kind.name == "keras3")


def evidence(body: str, tmp_path: Path, kind: OptimizerKind = KERAS3) -> list[str]:
    """What is remarkable of a class with this body, below one like the base class of a kind."""
    default = lambda self, *args: None  # noqa: E731
    members = {method.name: default for method in kind.apply_methods if kind is not KERAS3}
    base = type(kind.base, (), {"__module__": kind.homes[0], **members})
    path = tmp_path / "mine.py"
    path.write_text("class Mine(Base):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    space: dict[str, Any] = {"Base": base, "__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    own = ["own step" for _ in own_steps(space["Mine"], kind)]
    return [*own, *(each.what for each in collectors.evidence_on(space["Mine"], kind))]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def _resource_apply_dense(self, grad, var): pass", ["unreached"]),
        ("def resource_apply_sparse(self, grad, var, indices): pass", ["unreached"]),
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
            ["own step"],
        ),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            def apply(self, *args): return getattr(self, "_resource_apply_dense")(*args)
            """,
            ["own step"],
        ),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            update_step = property(lambda self: lambda *a: self._resource_apply_dense(*a[:2]))
            """,
            [],
        ),
        ("def apply_my_way(self, grad, var): pass", []),
        ("def apply_gradients(self, *args): pass", ["own step"]),
        ("def _backend_apply_gradients(self, *args): pass", ["own step"]),
        ("def update_step(self, gradient, variable): pass", []),
        (
            """
            def update_step(self, gradient, variable): pass
            def apply(self, *args): self.update_step(*args)
            """,
            ["own step"],
        ),
    ],
)
def test_methods(body: str, expected: list[str], tmp_path: Path) -> None:
    assert evidence(body, tmp_path) == expected


@pytest.mark.parametrize("kind", [each for each in KINDS if each.name in ("legacy", "v1")])
@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("def _resource_apply_dense(self, grad, var): pass", ["no sparse"]),
        ("def apply_gradients(self, *args): self.inner.apply_gradients(*args)", ["own step"]),
        (
            """
            def _resource_apply_dense(self, grad, var): pass
            def _resource_apply_sparse_duplicate_indices(self, grad, var, indices): pass
            """,
            [],
        ),
        (
            """
            def resource_apply_dense(self, grad, var): pass
            def _resource_apply_dense(self, grad, var): self.resource_apply_dense(grad, var)
            def resource_apply_sparse(self, grad, var, indices): pass
            def _resource_apply_sparse(self, *args): getattr(self, "resource_apply_sparse")(*args)
            """,
            [],
        ),
    ],
)
def test_sparse_missing(
    kind: OptimizerKind, body: str, expected: list[str], tmp_path: Path
) -> None:
    found = evidence(body, tmp_path, kind)
    assert [each for each in found if each != "own dense"] == expected
    assert ("own dense" in found) == ("def _resource_apply_dense" in body)


def test_a_class_that_cannot_be_read_may_update_by_itself() -> None:
    class Meta(type):
        @property
        def __mro__(cls) -> Any:
            raise RuntimeError

    class Mine(type(KERAS3.base, (), {}), metaclass=Meta):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, var: Any) -> None: ...

    assert own_steps(Mine, KERAS3) == ("apply_gradients",)
    assert collectors.evidence_on(Mine, KERAS3) == ()
