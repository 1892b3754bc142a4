"""Which apply methods do the same in each call, as their code shows. No TensorFlow.

Of such a method one call tells what all of them do. A method that decides anything, or that calls
what is not known, may do in the tenth call what it did not do in the first.
"""

import ast
import builtins
import inspect
from types import FunctionType, ModuleType
from typing import Any

from tracer.hooks.source import definition, dotted
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
    inner = [each for part in node.body for each in ast.walk(part)]
    return not any(isinstance(each, _DECIDING) for each in inner) and all(
        _is_known(each, node, cls, function) for each in inner if isinstance(each, ast.Call)
    )


def _is_known(call: ast.Call, method: ast.FunctionDef, cls: type, function: FunctionType) -> bool:
    """Whether a call in a method does the same each time, and does not assign to the variable."""
    me, _, variable = (each.arg for each in method.args.args[:3])
    root, *names = dotted(call.func)
    if not names:
        return hasattr(builtins, root) and root not in function.__globals__
    if root == variable:
        return names[-1] in _PLAIN and not names[-1].startswith("assign")
    if root == me and len(names) == 1:
        inherited = inspect.getattr_static(cls, names[0], None)
        first = dotted(call.args[0]) if call.args else []
        writes = names[0].startswith("assign") and first == [variable]
        return _of_a_framework(inherited) and not writes
    home = function.__globals__.get(root)
    if isinstance(home, ModuleType) and _of_a_framework(home):
        return not any(word in name for name in names for word in _CALLING)
    return names[-1] in _PLAIN


def _of_a_framework(value: Any) -> bool:
    home = value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None)
    return str(home).partition(".")[0] in _FRAMEWORKS
