"""What is remarked of a class: small classes under a base that looks like the one of Keras 3."""

import textwrap
from pathlib import Path
from typing import Any

import pytest

from tracer.evidence import inspection
from tracer.hooks.family import own_steps
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
    own = [("own-step", "") for _ in own_steps(space["Mine"], kind)]
    return own + [(each.code, each.detail) for each in inspection.remarks_of(space["Mine"], kind)]


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
        "self.n.assign_add(1)\nvariable.assign_sub(gradient / tf.cast(self.n, tf.float32))",
        "self.n.assign(self.n + 1)\nrate = 0.1 / self.n\nvariable.assign_sub(rate * gradient)",
        "n = self.n.assign_add(1)\nself.assign_sub(variable, gradient / n)",
        "self.assign_add(self.n, 1)\nself.assign_sub(variable, gradient / self.n)",
        "tf.compat.v1.assign_add(self.n, 1.0)\nself.m[0].assign(self.n * gradient)",
        "ops.assign_sub(self.n, tf.constant(1))\nops.assign(variable, variable - self.n)",
        "rate = self.n * 0.1\nself.n.assign(self.n * self.decay)\nvariable.assign_sub(rate)",
        "with tf.control_dependencies([self.n.assign_add(1)]):\n"
        "    return variable.assign_sub(gradient / self.n)",
        "self.n.assign_add(1)\n"
        "return tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=self.n)",
        "self.n.assign_add(1)\n"
        "return training_ops.resource_apply_sgd(variable.handle, 1 / self.n, gradient)",
        "self.n.assign_add(1)\nsuper().update_step(gradient / self.n, variable, learning_rate)",
        "self.n.assign_add(1)\nif self.n > 10:\n    variable.assign_sub(gradient)",
        "self.n.assign_add(1)\n"
        "tf.cond(self.n > 9, lambda: variable.assign_sub(gradient), lambda: variable)",
        "self.n.assign_add(1)\nself.move(variable, gradient * self.n)",
        "self.n.assign_add(1)\n_move(variable, rate=self.n)",
        "(rate := 1 / self.n.assign_add(1))\nvariable.assign_sub(rate * gradient)",
        "self.iterations.assign_add(1)",
        "self._learning_rate.assign(self._learning_rate * 0.9)",
    ],
)
def test_step_per_variable(body: str, tmp_path: Path) -> None:
    ((code, detail),) = effects(body, tmp_path)
    assert code == "step-per-variable"
    assert detail in body


@pytest.mark.parametrize(
    "helper",
    [
        "def rate(self):\n    return 0.1 / self.n",
        "@property\ndef rate(self):\n    return 0.1 / self.n",
        "def rate(self):\n    return self.other()\ndef other(self):\n    return 0.1 / self.n",
    ],
)
def test_step_per_variable_that_a_helper_reads(helper: str, tmp_path: Path) -> None:
    call = "self.rate" if "property" in helper else "self.rate()"
    body = f"self.n.assign_add(1)\nvariable.assign_sub({call} * gradient)"
    head = "def update_step(self, gradient, variable, learning_rate):\n"
    found = remarks(f"{helper}\n{head}{textwrap.indent(body, '    ')}", tmp_path)
    assert found == [("step-per-variable", "self.n")]


USE = "variable.assign_sub(gradient / self.n)"


@pytest.mark.parametrize(
    "body",
    [
        # Counted and not used, or logged only.
        "self.step.assign_add(1)\nvariable.assign_sub(gradient)",
        "self._n.assign(self._n + 1)\nvariable.assign_sub(gradient)",
        "self.n.assign_add(1)\ntf.print(self.n)\nvariable.assign_sub(gradient)",
        "self.n.assign_add(1)\ntf.summary.scalar('n', self.n)\nvariable.assign_sub(gradient)",
        "n = self.n.assign_add(1)\ntf.print(variable, n)",
        "self.n.assign_add(1)\nself.log.assign(self.n)\nvariable.assign_sub(gradient)",
        "self.n.assign_add(1)\nif self.n > 9:\n    tf.print(1)\nvariable.assign_sub(gradient)",
        "self.n.assign_add(1)\ntf.cond(self.n > 9, lambda: tf.print(1), lambda: 0)\n"
        "variable.assign_sub(gradient)",
        "return tf.group(variable.assign_sub(gradient), self.n.assign_add(1))",
        # A gradient or a variable goes into it.
        f"self.n.assign_add(tf.reduce_sum(gradient))\n{USE}",
        f"size = tf.size(variable)\nself.n.assign_add(size)\n{USE}",
        f"norm = tf.norm(gradient)\nself.n.assign(0.9 * self.n + 0.1 * norm)\n{USE}",
        # As much for each variable that together it is one.
        f"self.n.assign_add(1 / self.variables_in_all)\n{USE}",
        f"self.n.assign_add(1 / len(self._trainable_variables))\n{USE}",
        # Something decides whether it is moved.
        f"if variable is self.first:\n    self.n.assign_add(1)\n{USE}",
        f"if variable is not self.first:\n    return\nself.n.assign_add(1)\n{USE}",
        f"self.n.assign_add(1) if self.is_first(variable) else 0\n{USE}",
        f"tf.cond(self.first, lambda: self.n.assign_add(1), lambda: 0)\n{USE}",
        f"for each in self.slots:\n    self.n.assign_add(1)\n{USE}",
        # Each variable has its own.
        "self.n[variable.name].assign_add(1)\nvariable.assign_sub(gradient / self.n['x'])",
        "n = self.slots['t']\nn.assign_add(1)\nvariable.assign_sub(gradient / n)",
        "self.get_slot(variable, 'n').assign_add(1)\nvariable.assign_sub(gradient)",
        # It seeds random numbers.
        "self.n.assign_add(1)\nnoise = tf.random.stateless_normal([2], [self.n, 0])\n"
        "variable.assign_sub(gradient + noise)",
        "self.n.assign_add(1)\nvariable.assign_sub(self.noise(variable, seed=self.n))",
        # It is only read.
        USE,
        "variable.assign_add(self.n)",
        "self.n.assign(0)\nvariable.assign_sub(gradient * self.n)",
    ],
)
def test_what_looks_like_a_step_per_variable(body: str, tmp_path: Path) -> None:
    assert effects(body, tmp_path) == []


def test_a_step_per_variable_that_is_set_back_for_each_step(tmp_path: Path) -> None:
    body = """
    def apply_gradients(self, grads_and_vars):
        self.place.assign(0)

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(gradient * tf.gather(self.rates, self.place))
        self.place.assign_add(1)
    """
    found = remarks(body, tmp_path)
    assert found == [("own-step", "")]
    without = body.replace("self.place.assign(0)", "pass")
    assert ("step-per-variable", "self.place") in remarks(without, tmp_path)


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
    base = base_of(kind)
    for name in (method.name for method in kind.apply_methods):
        setattr(base, name, lambda self, grad, var, indices=None: None)
    path = tmp_path / "mine.py"
    path.write_text("class Mine(Base):\n" + textwrap.indent(textwrap.dedent(body), "    "))
    space: dict[str, Any] = {"Base": base, "__name__": "mine"}
    exec(compile(path.read_text(), str(path), "exec"), space)
    found = [each.code for each in inspection.remarks_of(space["Mine"], kind)]
    own = ["own-step" for _ in own_steps(space["Mine"], kind)]
    assert [*own, *(code for code in found if code != inspection.OWN_DENSE)] == expected
    assert (inspection.OWN_DENSE in found) == ("def _resource_apply_dense" in body)


def test_a_class_that_cannot_be_read_may_update_by_itself() -> None:
    class Meta(type):
        @property
        def __mro__(cls) -> Any:
            raise RuntimeError

    class Mine(base_of(KERAS3), metaclass=Meta):  # type: ignore[misc]
        def _resource_apply_dense(self, grad: Any, var: Any) -> None: ...

    assert own_steps(Mine, KERAS3) == ("apply_gradients",)
    assert inspection.remarks_of(Mine, KERAS3) == ()
