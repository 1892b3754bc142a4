"""Finds the variables of an optimizer that an apply method changes and uses in its update.

Such a variable should change once a step, but changes once for each variable. The code must show an
unconditional change into which no gradient goes, and a use that reaches an assignment to something
else. Not reported: a variable that is only logged (counted on purpose), a sum of gradients (over
the variables), a seed (should differ between variables), a variable that another method assigns
(may be reset in each step), and doubtful cases, such as a change by the value of a local name.
"""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from types import FunctionType

from tracer.evidence.source import attribute_of, calls_in, definition, dotted, statements
from tracer.kinds import OptimizerKind
from tracer.model.records import Remark

_FRAMEWORK_READS = ("_iterations", "_learning_rate", "iterations", "learning_rate")
"""Variables that the base class reads in each update."""
_MOVING = ("assign_add", "assign_sub", "update_add", "update_sub")
_SETTING = ("assign", "update")
_WRITING = re.compile("^(assign|scatter|batch_scatter|update)|[aA]pply")
_BRANCHING = ("case", "cond", "switch_case")
_DIVIDING = ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
_ASSIGNING = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr
_PLAIN = {
    *("add", "cast", "constant", "convert_to_tensor", "float", "identity", "int", "multiply"),
    *("ones", "read_value", "subtract", "value"),
}
"""Functions whose result is a number if their arguments are."""
_ASIDE = re.compile(
    "assert|bernoulli|dropout|histogram|logg|print|random|scalar|seed|shuffle|stateless|summary"
    "|warn|write"
)
"""Parts of function names whose results do not determine a weight."""
_MODULES = ("K", "backend", "keras", "ops", "state_ops", "tf", "tf_keras", "training_ops")
"""Names of modules with assigning functions: `tf.compat.v1.assign(variable, ...)`."""
_BEFORE = ("__init__", "build", "_create_slots", "_create_all_weights")
"""Methods that run before the first step."""

_Methods = Mapping[str, ast.FunctionDef]


def moved_and_used(
    function: FunctionType, kind: OptimizerKind, own: Sequence[type]
) -> Iterator[Remark]:
    """Yield a remark on each variable that an apply method changes and uses.

    `own` are the base classes of the optimizer that the program defines.
    """
    node = definition(function)
    if node is None or len(node.args.args) < 3:
        return
    me, names = node.args.args[0].arg, dict.fromkeys(_moved(node))
    passed_over = {*_BEFORE, *(each.name for each in kind.apply_methods)}
    methods = _methods_of(own, passed_over) if names else {}
    set_elsewhere = {
        _assigned(call, method.args.args[0].arg)
        for method in methods.values()
        for call in ast.walk(method)
        if isinstance(call, ast.Call)
    }
    for name in names:
        if name not in set_elsewhere and (name in _FRAMEWORK_READS or _uses(node, name, methods)):
            yield Remark("step-per-variable", node.name, f"{me}.{name}")


def _methods_of(own: Sequence[type], passed_over: Collection[str]) -> _Methods:
    """The source of the methods and properties that the program defines, by name."""
    found: dict[str, ast.FunctionDef] = {}
    for name, value in ((name, value) for cls in own for name, value in vars(cls).items()):
        function = value.fget if isinstance(value, property) else value
        node = definition(function) if isinstance(function, FunctionType) else None
        if node is not None and node.args.args and name not in passed_over:
            found.setdefault(name, node)
    return found


# Changes.


def _moved(node: ast.FunctionDef) -> Iterator[str]:
    """Yield attributes that each run of the method changes equally for each variable."""
    me = node.args.args[0].arg
    for statement, tests in statements(node.body, ()):
        for call in () if tests else calls_in(statement):
            name, target = _assigned(call, me), _target(call, me)
            values = [each for each in (*call.args, *call.keywords) if each is not target]
            amounts = [part for each in values for part in ast.walk(each)]
            moves = dotted(call.func)[-1] in _MOVING or _reads([name], me, amounts)
            if name and moves and all(_is_regular(part, me) for part in amounts):
                yield name


def _is_regular(part: ast.AST, me: str) -> bool:
    """Whether a part of an amount is the same for each variable, and not divided among them."""
    if isinstance(part, ast.Name):
        return part.id in (me, *_MODULES)
    if isinstance(part, ast.BinOp) and isinstance(part.op, _DIVIDING):
        return isinstance(part.right, ast.Constant)
    return not isinstance(part, ast.Call) or dotted(part.func)[-1] in _PLAIN


def _assigned(call: ast.Call, me: str) -> str:
    """The attribute that a call changes or sets; empty if there is none."""
    assigns = dotted(call.func)[-1] in (*_MOVING, *_SETTING)
    return attribute_of(me, _target(call, me)) if assigns else ""


def _target(call: ast.Call, me: str) -> ast.expr | None:
    """The target of a call like `x.assign(...)`, `self.assign(x, ...)` or `tf.assign(x, ...)`."""
    if isinstance(call.func, ast.Attribute):
        owner = call.func.value
        if dotted(owner) != [me] and dotted(owner)[0] not in _MODULES:
            return owner
    return call.args[0] if call.args else None


# Uses.


def _uses(node: ast.FunctionDef, name: str, methods: _Methods) -> bool:
    """Whether anything else that the method assigns depends on an attribute."""
    me, _, variable = (each.arg for each in node.args.args[:3])
    sources = _with_readers(name, methods)
    derived = _derived_names(node, me, sources)
    for part in ast.walk(node):
        if isinstance(part, ast.If | ast.IfExp | ast.While):
            inputs: Sequence[ast.AST] = [part.test]
            updates = _writes(part, me)
        elif isinstance(part, ast.Call) and not _is_aside(part):
            inputs = [*part.args, *part.keywords]
            values = [*part.args, *(each.value for each in part.keywords)]
            branches = dotted(part.func)[-1] in _BRANCHING
            updates = [variable] in map(dotted, values) or _writes(part, me, inside=branches)
        else:
            continue
        if updates and any(_depends(each, me, sources, derived) for each in inputs):
            return True
    return False


def _writes(node: ast.AST, me: str, inside: bool = True) -> bool:
    """Whether a call, or a call `inside` it, writes to anything but a plain attribute."""
    return any(
        isinstance(call, ast.Call)
        and _WRITING.search(dotted(call.func)[-1])
        and not attribute_of(me, _target(call, me))
        for call in (ast.walk(node) if inside else [node])
    )


def _with_readers(name: str, methods: _Methods) -> set[str]:
    """An attribute, and the methods and properties that read it, directly or indirectly."""
    found = {name}
    while (
        readers := {
            other
            for other, method in methods.items()
            if _reads(found, method.args.args[0].arg, _parts(method))
        }
        - found
    ):
        found |= readers
    return found


def _derived_names(node: ast.FunctionDef, me: str, sources: Collection[str]) -> set[str]:
    """The local names whose value depends on one of the attributes, directly or indirectly."""
    found: set[str] = set()
    assignments = [each for each in ast.walk(node) if isinstance(each, _ASSIGNING)]
    while (
        names := {
            inner.id
            for each in assignments
            if each.value is not None and _depends(each.value, me, sources, found)
            for inner in ast.walk(each)
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store)
        }
        - found
    ):
        found |= names
    return found


def _depends(node: ast.AST, me: str, sources: Collection[str], derived: Collection[str]) -> bool:
    """Whether a value depends on one of the attributes, or on a derived local name."""
    parts = list(_parts(node))
    names = (part.id for part in parts if isinstance(part, ast.Name))
    return _reads(sources, me, parts) or any(name in derived for name in names)


def _reads(attributes: Collection[str], me: str, parts: Iterable[ast.AST]) -> bool:
    return any(attribute_of(me, part) in attributes for part in parts)


def _is_aside(part: ast.AST) -> bool:
    """Whether a part of the code only changes or sets a variable, logs, or seeds random numbers.

    A change inside an expression does not: the expression has its result.
    """
    if isinstance(part, ast.Expr) and isinstance(part.value, ast.Call):
        return dotted(part.value.func)[-1] in (*_MOVING, *_SETTING)
    if isinstance(part, ast.keyword):
        return "seed" in str(part.arg)
    path = dotted(part.func) if isinstance(part, ast.Call) else []
    return bool(_ASIDE.search(".".join(path).lower()))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node, without parts that are aside."""
    if not _is_aside(node):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _parts(child)
