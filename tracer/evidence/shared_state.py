"""Which variables of its own an apply method moves on, and uses for its update.

Such a variable is a step to the update, and goes on once for each variable. It is found by what the
code does: a move that nothing decides and that no gradient goes into, and a use that reaches an
assignment to something else. What is moved and only logged counts on purpose, what a gradient goes
into is a sum over the variables, what seeds random numbers should differ from one to the next, and
what another method sets back begins anew in each step.
"""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
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
_PREPARING = ("_decayed_lr", "_prepare", "_prepare_local")
"""Methods that the base class calls for each step, for what the update needs."""


def moved_and_used(
    function: FunctionType, kind: OptimizerKind, own: Sequence[type]
) -> Iterator[Remark]:
    """The variables that an apply method of a class moves and uses, each once.

    `own` are the classes of the program among those that the optimizer's class is derived from.
    """
    node = definition(function)
    if node is None or len(node.args.args) < 3:
        return
    method = _Method(node, kind, own)
    for name in dict.fromkeys(method.moved()):
        if method.uses(name) and not method.is_set_back(name):
            yield Remark("step-per-variable", node.name, f"{method.me}.{name}")


def _methods_of(own: Sequence[type]) -> dict[str, ast.FunctionDef]:
    """The source of the methods and properties that the program defines, by name."""
    found: dict[str, ast.FunctionDef] = {}
    for cls in own:
        for name, value in vars(cls).items():
            function = value.fget if isinstance(value, property) else value
            if isinstance(function, FunctionType) and name not in found:
                node = definition(function)
                if node is not None and node.args.args:
                    found[name] = node
    return found


_Test = Callable[[ast.AST], bool]


class _Method:
    """An apply method, and what its class has besides."""

    def __init__(self, node: ast.FunctionDef, kind: OptimizerKind, own: Sequence[type]) -> None:
        parameters = [each.arg for each in node.args.args]
        self.me = parameters[0]
        self._node = node
        self._variable = parameters[2]
        self._applying = {each.name for each in kind.apply_methods}
        self._own = own
        given = parameters[1:4] if "sparse" in node.name else parameters[1:3]
        self._given = self._flow(lambda part: isinstance(part, ast.Name) and part.id in given)
        self._inner = {
            each.name: each
            for each in ast.walk(node)
            if isinstance(each, ast.FunctionDef) and each is not node
        }

    @cached_property
    def _methods(self) -> dict[str, ast.FunctionDef]:
        """What the class has besides: read only if anything is moved."""
        return _methods_of(self._own)

    # Moves.

    def moved(self) -> Iterator[str]:
        """The attributes that are moved whenever the method runs, by what is no gradient's."""
        for statement, tests in statements(self._node.body, ()):
            for call in () if tests else calls_in(statement):
                name, amounts = _move(call, self.me)
                if name and all(map(self._is_regular, amounts)):
                    yield name

    def _is_regular(self, amount: ast.AST) -> bool:
        """Whether it is the same for each variable, and not one part of as many as there are."""
        for part in ast.walk(amount):
            if isinstance(part, ast.Name) and part.id in self._given:
                return False
            if isinstance(part, ast.Call) and dotted(part.func)[-1] not in _PLAIN:
                return False
            if (
                isinstance(part, ast.BinOp)
                and isinstance(part.op, _DIVIDING)
                and not isinstance(part.right, ast.Constant)
            ):
                return False
        return True

    def is_set_back(self, name: str) -> bool:
        """Whether another method gives it a value that is not made of its old one."""
        for method, node in self._methods.items():
            if method not in (*_BEFORE, *self._applying):
                me = node.args.args[0].arg
                for call in ast.walk(node):
                    if isinstance(call, ast.Call) and _move(call, me, setting=True)[0] == name:
                        return True
        return False

    # Uses.

    def uses(self, name: str) -> bool:
        """Whether what the method assigns elsewhere depends on it."""
        if name in _FRAMEWORK_READS or any(
            _reads(self._methods[each], name, self._methods)
            for each in _PREPARING
            if each in self._methods
        ):
            return True

        def reads(part: ast.AST) -> bool:
            return self._reads_here(part, name)

        names = self._flow(reads)

        def depends(part: ast.AST) -> bool:
            return reads(part) or (isinstance(part, ast.Name) and part.id in names)

        return any(self._is_use(each, depends) for each in ast.walk(self._node))

    def _reads_here(self, part: ast.AST, name: str) -> bool:
        """Whether it is the attribute's value, or that of a method or property that reads it."""
        read = attribute_of(self.me, part)
        node = self._methods.get(read) if read not in self._applying else None
        return read == name or (node is not None and _reads(node, name, self._methods))

    def _is_use(self, node: ast.AST, depends: _Test) -> bool:
        if isinstance(node, ast.If | ast.While):
            return _mentions(node.test, depends) and self._assigns([*node.body, *node.orelse])
        if not isinstance(node, ast.Call):
            return False
        *_, last = path = dotted(node.func)
        values = [
            *node.args,
            *(each.value for each in node.keywords if "seed" not in str(each.arg)),
        ]
        if _ASIDE.search(".".join(path).lower()) or not any(_mentions(v, depends) for v in values):
            return False
        if last in ("cond", "case", "switch_case"):
            inner = [
                self._inner[v.id] for v in values if isinstance(v, ast.Name) and v.id in self._inner
            ]
            return _mentions(node, depends) and self._assigns([*values, *inner])
        if self._is_assignment(node):
            return True
        others = path[0] != self.me or len(path) != 2 or not last.startswith("assign")
        return others and any(_is(value, self._variable) for value in values)

    def _assigns(self, nodes: Iterable[ast.AST]) -> bool:
        return any(
            isinstance(each, ast.Call) and self._is_assignment(each)
            for node in nodes
            for each in ast.walk(node)
        )

    def _is_assignment(self, call: ast.Call) -> bool:
        """Whether it writes to anything but a plain attribute of the optimizer."""
        last = dotted(call.func)[-1]
        if not _WRITING.search(last):
            return False
        return not attribute_of(self.me, _target(call, self.me))

    # What goes where.

    def _flow(self, begins: _Test) -> set[str]:
        """The local names that get a value in which there is a part of that kind, by and by."""
        names = {each.arg for each in self._node.args.args if begins(ast.Name(id=each.arg))}

        def depends(part: ast.AST) -> bool:
            return begins(part) or (isinstance(part, ast.Name) and part.id in names)

        known = -1
        while known != len(names):
            known = len(names)
            for node in ast.walk(self._node):
                if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                    value = node.value
                elif isinstance(node, ast.For):
                    targets, value = [node.target], node.iter
                else:
                    continue
                if value is not None and _mentions(value, depends):
                    names |= {
                        each.id
                        for target in targets
                        for each in ast.walk(target)
                        if isinstance(each, ast.Name)
                    }
        return names


def _move(call: ast.Call, me: str, setting: bool = False) -> tuple[str, list[ast.expr]]:
    """The attribute that a call moves on, and by what; or, for `setting`, that it sets anew."""
    last = dotted(call.func)[-1]
    target = _target(call, me)
    name = attribute_of(me, target)
    values = [*call.args, *(each.value for each in call.keywords)]
    values = [each for each in values if each is not target]
    mine = name in (attribute_of(me, each) for value in values for each in ast.walk(value))
    moves = last in _MOVING or (last in _SETTING and mine)
    sets = last in _SETTING and not mine
    return (name, values) if name and (sets if setting else moves) else ("", [])


def _target(call: ast.Call, me: str) -> ast.expr | None:
    """What a call like `x.assign(...)`, `self.assign(x, ...)` or `tf.assign(x, ...)` is for."""
    if isinstance(call.func, ast.Attribute):
        of = call.func.value
        if not _is(of, me) and dotted(of)[0] not in _MODULES:
            return of
    return call.args[0] if call.args else None


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
        _reads(methods[each], name, methods, seen) for each in methods if each in read - seen
    )


def _mentions(node: ast.AST, test: _Test) -> bool:
    return any(map(test, _parts(node)))


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """What a node is made of, without what is logged or seeds random numbers, or moves alone.

    What a move gives back is the value after it, so that of a move inside an expression is a part.
    """
    todo = [node]
    while todo:
        part = todo.pop()
        if isinstance(part, ast.Call) and _ASIDE.search(".".join(dotted(part.func)).lower()):
            continue
        if isinstance(part, ast.Expr) and _is_call_of(part.value, (*_MOVING, *_SETTING)):
            continue
        if isinstance(part, ast.keyword) and "seed" in str(part.arg):
            continue
        yield part
        todo += ast.iter_child_nodes(part)


def _is_call_of(node: ast.AST, names: Sequence[str]) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func)[-1] in names


def _is(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
