"""Which variables of its own an apply method moves on, and uses for its update.

Such a variable is a step to the update, and goes on once for each variable. It is found by what the
code does: a move that nothing decides and that no gradient goes into, and a use that reaches an
assignment to something else. What is moved and only logged counts on purpose, what a gradient goes
into is a sum over the variables, what seeds random numbers should differ from one to the next, and
what another method assigns to may begin anew in each step.
"""

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType

from tracer.evidence.source import attribute_of, calls_in, definition, dotted, statements
from tracer.kinds import OptimizerKind
from tracer.model.records import Remark

_FRAMEWORK_READS = ("_iterations", "_learning_rate", "iterations", "learning_rate")
"""Variables that the base class reads for each update."""
_MOVING = ("assign_add", "assign_sub", "update_add", "update_sub")
_SETTING = ("assign", "update")
_WRITING = re.compile("^(assign|scatter|batch_scatter|update)|[aA]pply")
_DIVIDING = ast.Div | ast.FloorDiv | ast.Mod | ast.Pow
_PLAIN = {
    *("add", "cast", "constant", "convert_to_tensor", "float", "identity", "int", "multiply"),
    *("ones", "read_value", "subtract", "value"),
}
"""Functions of which the result is a number if they are given numbers."""
_ASIDE = re.compile(
    "assert|bernoulli|dropout|histogram|logg|print|random|scalar|seed|shuffle|stateless|summary"
    "|warn|write"
)
"""What is in the names of functions of which no weight depends in a regular way."""
_MODULES = ("K", "backend", "keras", "ops", "state_ops", "tf", "tf_keras", "training_ops")
"""What modules with functions that assign are called: `tf.compat.v1.assign(variable, ...)`."""
_BEFORE = ("__init__", "build", "_create_slots", "_create_all_weights")
"""Methods that run before the first step."""

_Test = Callable[[ast.AST], bool]


def moved_and_used(
    function: FunctionType, kind: OptimizerKind, own: Sequence[type]
) -> Iterator[Remark]:
    """The variables that an apply method of a class moves and uses, each once.

    `own` are the classes of the program among those that the optimizer's class is derived from.
    """
    node = definition(function)
    if node is None or len(node.args.args) < 3:
        return
    me, names = node.args.args[0].arg, dict.fromkeys(_moved(node))
    methods = _methods_of(own) if names else {}
    others = methods.keys() - {*_BEFORE, *(each.name for each in kind.apply_methods)}
    for name in names:
        managed = any(
            isinstance(call, ast.Call) and _assigned(call, methods[other].args.args[0].arg) == name
            for other in others
            for call in ast.walk(methods[other])
        )
        if not managed and _uses(node, name, {other: methods[other] for other in others}):
            yield Remark("step-per-variable", node.name, f"{me}.{name}")


def _methods_of(own: Sequence[type]) -> dict[str, ast.FunctionDef]:
    """The source of the methods and properties that the program defines, by name."""
    found: dict[str, ast.FunctionDef] = {}
    for name, value in ((name, value) for cls in own for name, value in vars(cls).items()):
        function = value.fget if isinstance(value, property) else value
        node = definition(function) if isinstance(function, FunctionType) else None
        if node is not None and node.args.args:
            found.setdefault(name, node)
    return found


# Moves.


def _moved(node: ast.FunctionDef) -> Iterator[str]:
    """The attributes that are moved whenever the method runs, by what is no gradient's."""
    me, *parameters = (each.arg for each in node.args.args)
    given = parameters[: 3 if "sparse" in node.name else 2]
    tainted = _flow(node, lambda part: isinstance(part, ast.Name) and part.id in given)
    for statement, tests in statements(node.body, ()):
        for call in () if tests else calls_in(statement):
            name, values = _assigned(call, me), _values(call)
            target = _target(call, me)
            amounts = [part for each in values if each is not target for part in ast.walk(each)]
            moves = name in map(lambda part: attribute_of(me, part), amounts)
            moves = dotted(call.func)[-1] in _MOVING or moves
            if name and moves and all(_is_regular(part, tainted) for part in amounts):
                yield name


def _is_regular(part: ast.AST, tainted: set[str]) -> bool:
    """Whether it is the same for each variable, and not one part of as many as there are."""
    if isinstance(part, ast.Name):
        return part.id not in tainted
    if isinstance(part, ast.Call):
        return dotted(part.func)[-1] in _PLAIN
    if isinstance(part, ast.BinOp) and isinstance(part.op, _DIVIDING):
        return isinstance(part.right, ast.Constant)
    return True


def _assigned(call: ast.Call, me: str) -> str:
    """The attribute that a call moves on or sets anew; empty if there is none."""
    assigns = dotted(call.func)[-1] in (*_MOVING, *_SETTING)
    return attribute_of(me, _target(call, me)) if assigns else ""


def _target(call: ast.Call, me: str) -> ast.expr | None:
    """What a call like `x.assign(...)`, `self.assign(x, ...)` or `tf.assign(x, ...)` is for."""
    if isinstance(call.func, ast.Attribute):
        of = call.func.value
        if dotted(of) != [me] and dotted(of)[0] not in _MODULES:
            return of
    return call.args[0] if call.args else None


def _values(call: ast.Call) -> list[ast.expr]:
    """What a call is given, but for a seed."""
    return [*call.args, *(each.value for each in call.keywords if "seed" not in str(each.arg))]


# Uses.


def _uses(node: ast.FunctionDef, name: str, methods: dict[str, ast.FunctionDef]) -> bool:
    """Whether what the method assigns elsewhere depends on an attribute."""
    me, _, variable = (each.arg for each in node.args.args[:3])

    def reads(part: ast.AST) -> bool:
        read = attribute_of(me, part)
        return read == name or (read in methods and _reads(methods[read], name, methods))

    def depends(part: ast.AST) -> bool:
        return reads(part) or (isinstance(part, ast.Name) and part.id in tainted)

    def assigns(nodes: Sequence[ast.AST]) -> bool:
        return any(map(is_assignment, (each for node in nodes for each in ast.walk(node))))

    def is_assignment(call: ast.AST) -> bool:
        """Whether it writes to anything but a plain attribute of the optimizer."""
        if not isinstance(call, ast.Call) or not _WRITING.search(dotted(call.func)[-1]):
            return False
        return not attribute_of(me, _target(call, me))

    def is_use(part: ast.AST) -> bool:
        if isinstance(part, ast.If | ast.While):
            return _mentions(part.test, depends) and assigns([*part.body, *part.orelse])
        if not isinstance(part, ast.Call) or _is_aside(part):
            return False
        *_, last = path = dotted(part.func)
        if not any(_mentions(each, depends) for each in _values(part)):
            return False
        if last in ("cond", "case", "switch_case"):
            named = {dotted(each)[-1] for each in _values(part)}
            return assigns([*_values(part), *(inner[each] for each in inner.keys() & named)])
        passes = any(dotted(each) == [variable] for each in _values(part))
        return is_assignment(part) or (passes and not (path[0] == me and last.startswith("assign")))

    tainted = _flow(node, reads)
    inner = {each.name: each for each in ast.walk(node) if isinstance(each, ast.FunctionDef)}
    del inner[node.name]
    return name in _FRAMEWORK_READS or any(map(is_use, ast.walk(node)))


def _reads(
    node: ast.FunctionDef,
    name: str,
    methods: dict[str, ast.FunctionDef],
    seen: frozenset[str] = frozenset(),
) -> bool:
    """Whether a method reads an attribute for more than to move it, or one that it calls does."""
    me, seen = node.args.args[0].arg, seen | {node.name}
    read = {attribute_of(me, part) for part in _parts(node)}
    return name in read or any(
        _reads(methods[each], name, methods, seen) for each in methods.keys() & read - seen
    )


# What goes where.


def _flow(node: ast.FunctionDef, begins: _Test) -> set[str]:
    """The local names that get a value in which there is a part of that kind, by and by."""
    names = {each.arg for each in node.args.args if begins(ast.Name(id=each.arg))}

    def depends(part: ast.AST) -> bool:
        return begins(part) or (isinstance(part, ast.Name) and part.id in names)

    known = -1
    while known != len(names):
        known = len(names)
        for part in ast.walk(node):
            if isinstance(
                part, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr | ast.For
            ):
                value = part.iter if isinstance(part, ast.For) else part.value
                if value is not None and _mentions(value, depends):
                    targets = part.targets if isinstance(part, ast.Assign) else [part.target]
                    inside = (each for target in targets for each in ast.walk(target))
                    names |= {each.id for each in inside if isinstance(each, ast.Name)}
    return names


def _mentions(node: ast.AST, test: _Test) -> bool:
    return any(map(test, _parts(node)))


def _is_aside(node: ast.AST) -> bool:
    """Whether a node logs, or seeds random numbers."""
    path = dotted(node.func) if isinstance(node, ast.Call) else []
    return bool(_ASIDE.search(".".join(path).lower()))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is made of, without what is logged or seeds random numbers, or moves alone.

    What a move gives back is the value after it, so that of a move inside an expression is a part.
    """
    todo = [node]
    while todo:
        part = todo.pop()
        call = part.value if isinstance(part, ast.Expr) else None
        moves = isinstance(call, ast.Call) and dotted(call.func)[-1] in (*_MOVING, *_SETTING)
        seeds = isinstance(part, ast.keyword) and "seed" in str(part.arg)
        if not (moves or seeds or _is_aside(part)):
            yield part
            todo += ast.iter_child_nodes(part)
