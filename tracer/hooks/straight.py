"""Which apply methods do the same in each call, as their code shows. No TensorFlow.

Of such a method one call tells what all of them do. A method that decides anything, or that calls
what is not known, may do in the tenth call what it did not do in the first.
"""

import ast
import builtins
import inspect
from types import FunctionType, ModuleType
from typing import Any

from tracer.hooks.source import definition
from tracer.kinds import OptimizerKind

_FRAMEWORKS = ("keras", "math", "numpy", "tensorflow", "tf_keras")
_DECIDING = (
    ast.AsyncFunctionDef,
    ast.BoolOp,
    ast.comprehension,
    ast.FunctionDef,
    ast.If,
    ast.IfExp,
    ast.Lambda,
    ast.Match,
    ast.Try,
    ast.While,
)
_CALLING = ("cond", "case", "while", "function", "map", "scan", "fold")
"""What is in the names of functions that call others."""
_DUPLICATES = "_duplicate_indices"
_PLAIN = (
    "append",
    "assign",
    "assign_add",
    "assign_sub",
    "get",
    "numpy",
    "read_value",
    "ref",
    "value",
)
"""Methods of variables, tensors, lists and dicts, by any of which nothing is decided."""


def straight_methods(cls: type, kind: OptimizerKind) -> frozenset[str]:
    """The apply methods that the program defines, and that do the same in each call.

    What a framework does for duplicate indices is to call the method without them.
    """
    names = [apply.name for apply in kind.apply_methods if not apply.many]
    found = {name for name in names if _is_straight(cls, name)}
    for name in names:
        inherited = _of_a_framework(inspect.getattr_static(cls, name, None))
        if inherited and name.removesuffix(_DUPLICATES) in found:
            found.add(name)
    return frozenset(found)


def _is_straight(cls: type, name: str) -> bool:
    function = inspect.getattr_static(cls, name, None)
    if not isinstance(function, FunctionType) or _of_a_framework(function):
        return False
    node = definition(function)
    if node is None or node.decorator_list or len(node.args.args) < 3:
        return False
    myself, _, variable = (each.arg for each in node.args.args[:3])
    inner = [each for part in node.body for each in ast.walk(part)]
    return not any(isinstance(each, _DECIDING) for each in inner) and all(
        _Call(each.func, each.args, myself, variable).is_known(cls, function)
        for each in inner
        if isinstance(each, ast.Call)
    )


class _Call:
    """A call in the code of a method whose first and third parameters have these names."""

    def __init__(self, called: ast.expr, given: list[ast.expr], myself: str, variable: str) -> None:
        names: list[str] = []
        while isinstance(called, ast.Attribute):
            names.insert(0, called.attr)
            called = called.value
        self._root = called.id if isinstance(called, ast.Name) else ""
        self._names = names
        self._first = given[0].id if given and isinstance(given[0], ast.Name) else ""
        self._myself, self._variable = myself, variable

    def is_known(self, cls: type, function: FunctionType) -> bool:
        """Whether it does the same each time, and does not assign to the variable."""
        names = self._names
        if not names:
            return hasattr(builtins, self._root) and self._root not in function.__globals__
        if self._root == self._variable:
            return names[-1] in _PLAIN and not names[-1].startswith("assign")
        if self._root == self._myself and len(names) == 1:
            inherited = inspect.getattr_static(cls, names[0], None)
            writes = names[0].startswith("assign") and self._first == self._variable
            return _of_a_framework(inherited) and not writes
        home = function.__globals__.get(self._root)
        if isinstance(home, ModuleType) and _of_a_framework(home):
            return not any(word in name for name in names for word in _CALLING)
        return names[-1] in _PLAIN


def _of_a_framework(value: Any) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(home).partition(".")[0] in _FRAMEWORKS
