"""What the source of an optimizer's methods shows: statements that cannot do what they seem to.

A method is parsed, never run, and a method without source shows nothing. The statements are judged
one by one and in doubt let pass: a program that is right must not be warned of.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial
from types import FunctionType

from tracer.model.records import Remark


def definition(function: FunctionType) -> ast.FunctionDef | None:
    """The source of a function; None if there is none, or not one of a function alone."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, TypeError):
        return None
    return node if isinstance(node, ast.FunctionDef) and node.name == function.__name__ else None


def dotted(node: ast.AST) -> list[str]:
    """The names of `tf.compat.v1.assign`; the first is empty if it is no name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *names]


def attribute_of(owner: str, node: ast.AST | None) -> str:
    """The name of the attribute of `owner` that a node is; empty for anything else."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return node.attr if node.value.id == owner else ""
    return ""


def side_effects_of(function: FunctionType) -> Iterator[Remark]:
    """What an apply method does in Python, which its graph does not do again; see `_Body`."""
    node = definition(function)
    if node is None:
        return
    parameters = [*node.args.posonlyargs, *node.args.args]
    if parameters:
        yield from _Body(node, parameters[0].arg).remarks()


class _Body:
    """The statements of an apply method, without those of functions inside it."""

    def __init__(self, method: ast.FunctionDef, self_name: str) -> None:
        self._method = method
        self._attribute = partial(attribute_of, self_name)
        self._outer = {
            name
            for node in ast.walk(method)
            if isinstance(node, ast.Global | ast.Nonlocal)
            for name in node.names
        }
        self._read = {
            name
            for node in ast.walk(method)
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
            if (name := self._attribute(node)) and not self._is_target(node)
        }

    def remarks(self) -> Iterator[Remark]:
        for statement, tests in statements(self._method.body, ()):
            yield from self._side_effects(statement, tests)

    def _side_effects(self, statement: ast.AST, tests: tuple[ast.AST, ...]) -> Iterator[Remark]:
        for name, counts in self._changed(statement):
            guarded = any(_asks_for(test, name) for test in tests)
            # What the method itself reads again is a help in passing, unless it counts.
            if not guarded and (counts or name not in self._read):
                detail = _shortened(ast.unparse(statement))
                yield Remark("python-side-effect", self._method.name, detail)

    def _changed(self, statement: ast.AST) -> Iterator[tuple[str, bool]]:
        """What outlives the method and is changed, and whether its old value goes into it."""
        if isinstance(statement, ast.AugAssign):
            if name := self._kept(statement.target):
                yield name, True
        elif isinstance(statement, ast.Assign):
            for target in statement.targets:
                for element in (
                    target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
                ):
                    if name := self._kept(element):
                        yield name, self._mentions(statement.value, name)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            function = statement.value.func
            if not isinstance(function, ast.Attribute) or function.attr not in _GROWING:
                return
            if name := self._kept(function.value):
                yield name, True

    def _kept(self, target: ast.AST) -> str:
        """The attribute of `self`, or the outer variable, that `target` is or is a part of."""
        while isinstance(target, ast.Subscript):
            target = target.value
        if isinstance(target, ast.Name):
            return target.id if target.id in self._outer else ""
        return self._attribute(target)

    def _is_target(self, attribute: ast.Attribute) -> bool:
        """Whether it is only loaded to assign to a part of it: `self.x[i] = 1`."""
        return any(
            isinstance(node, ast.Subscript)
            and not isinstance(node.ctx, ast.Load)
            and node.value is attribute
            for node in ast.walk(self._method)
        )

    def _mentions(self, node: ast.AST, name: str) -> bool:
        return any(
            self._attribute(inner) == name or (isinstance(inner, ast.Name) and inner.id == name)
            for inner in ast.walk(node)
        )


_GROWING = ("append", "extend", "insert")


def statements(
    body: Sequence[ast.stmt], tests: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """The simple statements, each with what decides whether it runs."""
    for statement in body:
        if isinstance(statement, ast.With):
            for item in statement.items:
                yield item.context_expr, tests
            yield from statements(statement.body, tests)
        elif isinstance(statement, ast.If | ast.While):
            yield from statements([*statement.body, *statement.orelse], (*tests, statement.test))
            if _leaves(statement):
                tests = (*tests, statement.test)  # decides what comes after it, too
        elif isinstance(statement, ast.For):
            yield from statements([*statement.body, *statement.orelse], (*tests, statement.iter))
        elif isinstance(statement, ast.Try):
            for branch in (statement.body, statement.orelse, statement.finalbody):
                yield from statements(branch, (*tests, statement))
            # A handler makes what was found missing.
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        else:
            yield statement, tests


def _leaves(statement: ast.stmt) -> bool:
    """Whether a part of it ends the method."""
    return any(isinstance(each, ast.Return | ast.Raise) for each in ast.walk(statement))


def _asks_for(test: ast.AST, name: str) -> bool:
    """Whether a condition asks for the attribute itself, or for eager mode."""
    for node in ast.walk(test):
        word = getattr(node, "attr", None) or getattr(node, "id", None)
        word = node.value if isinstance(node, ast.Constant) else word
        if isinstance(word, str) and (word == name or "eager" in word or "inside_function" in word):
            return True
    return False


def calls_in(statement: ast.AST) -> Iterator[ast.Call]:
    """The calls in a statement that are made whenever it runs, and once."""
    todo = [statement]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Call):
            yield node
        if not isinstance(
            node,
            ast.Lambda
            | ast.IfExp
            | ast.BoolOp
            | ast.ListComp
            | ast.SetComp
            | ast.DictComp
            | ast.GeneratorExp,
        ):
            todo.extend(ast.iter_child_nodes(node))


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
