"""Finds statements in the source of an optimizer's methods that cannot do what they seem to do.

Methods are parsed, never run; a method without source is skipped. Statements are judged one by one,
and doubtful ones are skipped: a correct program must get no warning.
"""

import ast
import inspect
import textwrap
from collections.abc import Iterator, Sequence
from types import FunctionType

from tracer.model.records import Remark


def definition(function: FunctionType) -> ast.FunctionDef | None:
    """The parsed source of a function; None if there is none, or more than the function."""
    try:
        node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    except (OSError, SyntaxError, TypeError):
        return None
    return node if isinstance(node, ast.FunctionDef) and node.name == function.__name__ else None


def dotted(node: ast.AST) -> list[str]:
    """The parts of a name like `tf.compat.v1.assign`; the first is empty if not a name."""
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
    """Yield remarks on side effects in Python that the graph of an apply method does not repeat.

    Functions inside the method are left out.
    """
    node = definition(function)
    parameters = [] if node is None else [*node.args.posonlyargs, *node.args.args]
    if node is None or not parameters:
        return
    me, inner = parameters[0].arg, list(ast.walk(node))
    declared = (each.names for each in inner if isinstance(each, ast.Global | ast.Nonlocal))
    outer = {name for names in declared for name in names}
    # `self.x` in `self.x[i] = 1` is loaded, but not read.
    parts = [each for each in inner if isinstance(each, ast.Subscript)]
    stored = [each.value for each in parts if not isinstance(each.ctx, ast.Load)]
    read = {
        attribute_of(me, each)
        for each in inner
        if isinstance(getattr(each, "ctx", None), ast.Load) and each not in stored
    }
    for statement, tests in statements(node.body, ()):
        for target, value in _changes(statement):
            while isinstance(target, ast.Subscript):
                target = target.value
            name = attribute_of(me, target)
            if isinstance(target, ast.Name) and target.id in outer:
                name = target.id
            # An attribute that the method reads again is a temporary, unless it counts.
            in_passing = name in read and not _mentions(value, me, name)
            if name and not in_passing and not any(_asks_for(test, name) for test in tests):
                yield Remark("python-side-effect", node.name, _shortened(ast.unparse(statement)))


def _changes(statement: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield each target that a statement changes, with the expression for its value."""
    if isinstance(statement, ast.AugAssign):
        yield statement.target, statement.target
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            for element in target.elts if isinstance(target, ast.Tuple | ast.List) else [target]:
                yield element, statement.value
    elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        function = statement.value.func
        if isinstance(function, ast.Attribute) and function.attr in ("append", "extend", "insert"):
            yield function.value, function.value


def _mentions(node: ast.AST, me: str, name: str) -> bool:
    return any(
        attribute_of(me, each) == name or (isinstance(each, ast.Name) and each.id == name)
        for each in ast.walk(node)
    )


def statements(
    body: Sequence[ast.stmt], tests: tuple[ast.AST, ...]
) -> Iterator[tuple[ast.AST, tuple[ast.AST, ...]]]:
    """Yield the simple statements, each with the conditions that decide whether it runs."""
    for statement in body:
        if isinstance(statement, ast.With):
            for item in statement.items:
                yield item.context_expr, tests
            yield from statements(statement.body, tests)
        elif isinstance(statement, ast.If | ast.While):
            yield from statements([*statement.body, *statement.orelse], (*tests, statement.test))
            if _leaves(statement):
                tests = (*tests, statement.test)  # decides later statements, too
        elif isinstance(statement, ast.For):
            yield from statements([*statement.body, *statement.orelse], (*tests, statement.iter))
        elif isinstance(statement, ast.Try):
            for branch in (statement.body, statement.orelse, statement.finalbody):
                yield from statements(branch, (*tests, statement))
            # Handlers are skipped: they create what is missing.
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        else:
            yield statement, tests


def _leaves(statement: ast.stmt) -> bool:
    return any(isinstance(each, ast.Return | ast.Raise) for each in ast.walk(statement))


def _asks_for(test: ast.AST, name: str) -> bool:
    """Whether a condition tests the attribute itself, or eager mode."""
    for node in ast.walk(test):
        word = getattr(node, "attr", None) or getattr(node, "id", None)
        word = node.value if isinstance(node, ast.Constant) else word
        if isinstance(word, str) and (word == name or "eager" in word or "inside_function" in word):
            return True
    return False


_NOT_ALWAYS = (
    *(ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp),
    ast.GeneratorExp,
)


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Yield the calls that a statement makes exactly once whenever it runs."""
    if isinstance(node, ast.Call):
        yield node
    for child in () if isinstance(node, _NOT_ALWAYS) else ast.iter_child_nodes(node):
        yield from calls_in(child)


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 60 else line[:59] + "…"
