"""What the class of an optimizer shows before it trains: `Remark`s, for the rules of `findings`.

No TensorFlow: a class is read, never called; `wrap` asks for its remarks before anything has run.
Only what a program defines itself is looked at, and not what the framework ships. The source of its
apply methods is the matter of `tracer.hooks.source`. What the frameworks call, and with which
arguments, was read in the files that `tracer.kinds` names, and each of it is tried out in
`tests/findings`.
"""

import ast
import gc
import inspect
import linecache
import os
import re
import sys
from collections.abc import Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any

from tracer.core.instances import instances
from tracer.core.interrupts import interrupt_in
from tracer.core.optimizers import OWN_STEP
from tracer.hooks.lines import line_of
from tracer.hooks.moves import moved_and_used
from tracer.hooks.source import definition, side_effects_of
from tracer.kinds import KINDS, OptimizerKind
from tracer.model.records import Remark

_FRAMEWORKS = ("builtins", "abc", "typing", "keras", "tensorflow", "tf_keras")
_DENSE = "_resource_apply_dense"
_SPARSE = "_resource_apply_sparse"
_DUPLICATES = "_resource_apply_sparse_duplicate_indices"

_PASSED: dict[str, dict[str, tuple[str, ...]]] = {
    "legacy": {
        "_resource_apply_dense": ("grad", "var"),
        _SPARSE: ("grad", "var", "indices"),
        _DUPLICATES: ("grad", "var", "indices"),
    },
    "keras2": {"update_step": ("gradient", "variable")},
    "keras3": {
        "update_step": ("gradient", "variable", "learning_rate"),
        "_parallel_update_step": ("grads", "variables", "learning_rate"),
    },
    "v1": {
        "_apply_dense": ("grad", "var"),
        "_apply_sparse": ("grad", "var"),
        "_apply_sparse_duplicate_indices": ("grad", "var"),
        "_resource_apply_dense": ("grad", "var"),
        _SPARSE: ("grad", "var", "indices"),
        _DUPLICATES: ("grad", "var", "indices"),
    },
}
"""What the base class of a kind passes to its apply methods, by position. A legacy one adds
`apply_state` by name for a method (of the sparse ones: for `_resource_apply_sparse`) that has it.
"""

BESIDE = "override-beside"
"""The code of a method that nothing calls in a class that has the one that is called, too."""

OWN_DENSE = "own-dense"
"""The code of the remark that the program defines `_resource_apply_dense`, and where."""

FAILING = ("override-unreached", BESIDE, "wrong-signature", "sparse-missing")
"""The codes of what cannot work: worth a warning before training begins."""

_GAP = re.compile(r"%s|\{[^}]*\}")
"""What is filled in in a text."""

_ON_THE_WAY = re.compile("apply_gradients|update_step")
"""The other methods that lead to an apply method: `_internal_apply_gradients`, for example."""


def remarks_of(cls: type, kind: OptimizerKind) -> tuple[Remark, ...]:
    """What is odd about an optimizer's class; nothing for a class that ships with a framework.

    The codes are `override-unreached`, `wrong-signature`, `sparse-missing`, `python-side-effect`
    and `step-per-variable`, which are rules of `tracer.findings`; `override-beside`, which is the
    first of them where the class has the right method, too; `embedding`, which tells those rules
    which `Embedding` layers are alive, if a sparse gradient is what would fail; `own-step`, for a
    method that may update variables past the apply methods; and `own-dense`, for the method that
    people ask for if it never runs.
    """
    try:
        remarks = (*dict.fromkeys(_remarks(cls, kind)), *_own_dense(cls, kind))
        if any("sparse" in each.method for each in remarks if each.code in FAILING):
            layers = ", ".join(_embeddings())
            remarks += (Remark("embedding", "", layers),) if layers else ()
    except Exception as error:  # there is no end to what a class can do to those who read it
        if interrupt_in(error) is not None:
            raise
        return (Remark(OWN_STEP, kind.step_methods[0]),)
    return remarks


def _remarks(cls: type, kind: OptimizerKind) -> Iterator[Remark]:
    own = [each for each in cls.__mro__ if not _ships(each)]
    if own:
        yield from _unreached(cls, kind, own)
        yield from _signatures(cls, kind, own)
        yield from _sparse_missing(cls, kind)
        yield from _own_steps(cls, kind, own)
        for apply in kind.apply_methods:
            function = _own_function(cls, apply.name, own)
            if function is not None:
                yield from side_effects_of(function)
                if not apply.many:
                    yield from moved_and_used(function, kind, own)


def _ships(cls: type) -> bool:
    """Whether a class comes with a framework."""
    return cls.__module__.split(".")[0] in _FRAMEWORKS


def _own_steps(cls: type, kind: OptimizerKind, own: Sequence[type]) -> Iterator[Remark]:
    """The methods between `apply_gradients` and the apply methods that the program defines."""
    called = {apply.name for apply in kind.apply_methods}
    known = {*kind.step_methods, *kind.group_methods}
    for base in own:
        for name in vars(base):
            if name not in called and (name in known or _ON_THE_WAY.search(name)):
                yield Remark(OWN_STEP, name)


def _own_dense(cls: type, kind: OptimizerKind) -> Iterator[Remark]:
    """The method for dense gradients, if the program defines it and the base class calls it."""
    owner = _owner(cls, _DENSE)
    if owner is not None and not _ships(owner) and _DENSE in _PASSED.get(kind.name, ()):
        where = next((line_of(code) for code in _codes(vars(owner)[_DENSE])), "")
        yield Remark(OWN_DENSE, _DENSE, where=where)


def _owner(cls: type, name: str) -> type | None:
    """The class that a method comes from."""
    return next((each for each in cls.__mro__ if name in vars(each)), None)


def _own_function(cls: type, name: str, own: Sequence[type]) -> FunctionType | None:
    """A method that the program defines, if it is a plain function: nothing that decorates it."""
    owner = _owner(cls, name)
    if owner is None or owner not in own:
        return None
    function = vars(owner)[name]
    plain = isinstance(function, FunctionType) and _OF_DECORATORS.isdisjoint(vars(function))
    return function if plain else None


_OF_DECORATORS = {"__signature__", "__wrapped__", "_tf_decorator"}


# Methods that nobody calls.


def _unreached(cls: type, kind: OptimizerKind, own: Sequence[type]) -> Iterator[Remark]:
    called = [apply.name for apply in kind.apply_methods]
    known = {apply.name for each in KINDS for apply in each.apply_methods}
    for name in sorted(known | {each.lstrip("_") for each in known}):
        owner = _owner(cls, name)
        if owner is None or name in called or owner not in own:
            continue
        if not _mentioned(name, own):
            instead = next(
                (each for each in called if each.lstrip("_") == name), _meant(name, kind)
            )
            where = next((line_of(code) for code in _codes(vars(owner)[name])), "")
            if _owner(cls, instead) not in own:
                yield Remark("override-unreached", name, instead, where)
            elif name not in known and not _mentioned_around(name, owner):
                # A class for several versions of Keras has the methods of each. But no version
                # calls this one.
                yield Remark(BESIDE, name, instead, where)


def _meant(name: str, kind: OptimizerKind) -> str:
    """The method of this kind that does what `name` does in another one."""
    if kind.name in ("keras2", "keras3"):
        return "update_step"
    return _SPARSE if "sparse" in name else "_resource_apply_dense"


def _mentioned(name: str, own: Sequence[type]) -> bool:
    """Whether another method of the program's own classes may call `name`.

    It may put the name together for `getattr`, of parts of it as long as `apply`.
    """
    for cls in own:
        for attribute, value in vars(cls).items():
            for names in map(_names, _codes(value)) if attribute != name else ():
                parts = {part for each in names for part in _GAP.split(each)}
                made = "getattr" in names and any(
                    len(part) >= len("apply") and part in name for part in parts
                )
                if name in names or made:
                    return True
    return False


def _mentioned_around(name: str, cls: type) -> bool:
    """Whether a file of the program may call `name`: one below the folder of the class."""
    home = getattr(sys.modules.get(cls.__module__), "__file__", None)
    if home is None:
        return True  # a notebook, where any cell may
    folder = os.path.dirname(os.path.abspath(home)) + os.sep
    files = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    near = {file for file in files if isinstance(file, str) and file.startswith(folder)} | {home}
    call = re.compile(rf"\.\s*{name}\b|[\"']{name}[\"']")
    return any(call.search("".join(linecache.getlines(file))) for file in near)


def _codes(value: Any) -> Iterator[CodeType]:
    """The code of a method or property, also of what a decorator has wrapped."""
    for candidate in (
        value,
        getattr(value, "__func__", None),
        *(getattr(value, name, None) for name in ("fget", "fset", "fdel", "__wrapped__")),
    ):
        code = getattr(candidate, "__code__", None)
        if isinstance(code, CodeType):
            yield code


def _names(code: CodeType) -> set[str]:
    """The attributes, globals and texts that code and the functions in it refer to."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _names(constant)
        elif isinstance(constant, str):
            names.add(constant)
    return names


# Methods that cannot be called.


def _signatures(cls: type, kind: OptimizerKind, own: Sequence[type]) -> Iterator[Remark]:
    for name, passed in _PASSED.get(kind.name, {}).items():
        function = _own_function(cls, name, own)
        if function is None or _mentioned(name, own) or not _by_base(cls, kind, name):
            continue
        if _only_raises(function):  # it says that it is not supported
            continue
        named = _state_passed(cls, kind, name)
        signature = inspect.signature(function)
        try:
            signature.bind(None, *passed, **dict.fromkeys(named))
        except TypeError as error:
            call = ", ".join([*passed, *(f"{each}=..." for each in named)])
            yield Remark("wrong-signature", name, f"({call}): {error}")


def _only_raises(function: FunctionType) -> bool:
    node = definition(function)
    if node is None:
        return False
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    return len(body) == 1 and isinstance(body[0], ast.Raise)


def _by_base(cls: type, kind: OptimizerKind, name: str) -> bool:
    """Whether the kind's base class is what calls the method: for one method, another may."""
    if name != name.removesuffix("_duplicate_indices") or "sparse" not in name:
        return True
    return _is_base(_owner(cls, name + "_duplicate_indices"), kind)


def _state_passed(cls: type, kind: OptimizerKind, name: str) -> tuple[str, ...]:
    """What a legacy base class passes by name, as its `_dense_apply_args` decides it."""
    if kind.name != "legacy":
        return ()
    asked = _SPARSE if "sparse" in name else name
    return ("apply_state",) if "apply_state" in _parameters(getattr(cls, asked)) else ()


def _parameters(function: Any) -> Sequence[str]:
    return inspect.getfullargspec(function).args


def _is_base(owner: type | None, kind: OptimizerKind) -> bool:
    return owner is not None and owner.__name__ == kind.base and owner.__module__ in kind.homes


# Methods that are missing.


def _sparse_missing(cls: type, kind: OptimizerKind) -> Iterator[Remark]:
    """The default of the base class raises `NotImplementedError`.

    A class that has no dense method either leaves the work to another optimizer.
    """
    if kind.name not in ("legacy", "v1") or _is_base(_owner(cls, "_resource_apply_dense"), kind):
        return
    if all(_is_base(_owner(cls, name), kind) for name in (_SPARSE, _DUPLICATES)):
        yield Remark("sparse-missing", _SPARSE)


def _embeddings() -> list[str]:
    """The names of the `Embedding` layers that are alive, of any Keras that was imported.

    What was found is asked for again without the garbage: a model of before is no reason to warn.
    """
    bases = []
    for name in ("keras", "tf_keras"):
        layers = getattr(sys.modules.get(name), "layers", None)
        base = getattr(layers, "Embedding", None)
        if isinstance(base, type):
            bases.append(base)
    if not bases or not instances(bases):
        return []
    gc.collect()
    return sorted({str(layer.name) for layer in instances(bases)})
