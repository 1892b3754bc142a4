"""Inspects the classes of optimizers: makes evidence for the rules of `findings`.

No TensorFlow: a class is read, never called. Only code of the program is inspected, not what the
framework ships. The frameworks' calls and arguments are from the files named in `tracer.kinds`;
`tests/findings` tries all of them.
"""

import inspect
from collections.abc import Iterator, Sequence
from types import CodeType
from typing import Any

from msgspec.structs import replace

from tracer.core.backend import Root
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.interrupts import suppress_faults
from tracer.core.lines import line_of
from tracer.core.registry import plain_class
from tracer.hooks.family import ships
from tracer.kinds import AT_ONCE, KINDS, OptimizerKind
from tracer.model.evidence import Evidence, OverrideUnreached, OwnDense, SparseMissing
from tracer.model.records import Optimizer

_DENSE = "_resource_apply_dense"
_SPARSE = "_resource_apply_sparse"
_DUPLICATES = "_resource_apply_sparse_duplicate_indices"

FAILING = "override-unreached"
"""The code of the finding that `wrap` warns of before training begins: nothing else can work."""


class Classes(Collector):
    """Evidence on the classes of a recorder's optimizers."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._found: dict[int, tuple[Evidence, ...]] = {}

    def first_step_ends(self, frame: Call) -> None:
        """Read the classes: an optimizer may be gone when a trace is read."""
        for index in range(len(self.root.optimizers.all)):
            self._evidence_on(index)

    def step_raised(self, frame: Call, error: BaseException) -> None:
        """Read the classes, because the first step may raise."""
        self.first_step_ends(frame)

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add the evidence on the optimizer's class."""
        return replace(record, evidence=(*self._evidence_on(index), *record.evidence))

    def _evidence_on(self, index: int) -> tuple[Evidence, ...]:
        traced = self.root.optimizers.all[index]
        optimizer = traced.optimizer()
        if index not in self._found and optimizer is not None:
            self._found[index] = evidence_on(plain_class(type(optimizer)), traced.kind)
        return self._found.get(index, ())


def may_fail(root: Root) -> bool:
    """Whether the class of one of the root's optimizers has a mistake that cannot work."""
    return any(
        isinstance(found, OverrideUnreached)
        for each in root.optimizers.all
        for found in evidence_on(plain_class(type(each.optimizer())), each.kind)
    )


def evidence_on(cls: type, kind: OptimizerKind) -> tuple[Evidence, ...]:
    """Return what a class shows; empty for a class that ships with a framework."""
    found: tuple[Evidence, ...] = ()
    with suppress_faults():  # reading a class may raise anything
        own = [] if kind.name in AT_ONCE else [each for each in cls.__mro__ if not ships(each)]
        found = tuple(_evidence(cls, kind, own)) if own else ()
    return found


def _evidence(cls: type, kind: OptimizerKind, own: Sequence[type]) -> Iterator[Evidence]:
    """Yield what a class shows; `own` are it and its base classes that the program defines."""

    def owner(name: str) -> type | None:
        return next((base for base in cls.__mro__ if name in vars(base)), None)

    called = [apply.name for apply in kind.apply_methods]
    known = {apply.name for each in KINDS for apply in each.apply_methods}
    for name in sorted(known | {each.lstrip("_") for each in known}):
        if name not in called and owner(name) in own and not _calls(own, name):
            instead = f"_{name}" if f"_{name}" in called else _meant(kind, name)
            if owner(instead) not in own:
                yield OverrideUnreached(name, instead, _line_of(cls, name))
    if kind.name in ("legacy", "v1"):
        bases = {name: owner(name) for name in (_DENSE, _SPARSE, _DUPLICATES)}
        default = [name for name, base in bases.items() if base and _is_base(base, kind)]
        if default == [_SPARSE, _DUPLICATES]:  # without a dense method, another one does the work
            yield SparseMissing(_SPARSE)
        if bases[_DENSE] in own:
            yield OwnDense(_DENSE, _line_of(cls, _DENSE))


def _is_base(cls: type, kind: OptimizerKind) -> bool:
    """Whether this is the kind's base class, whose sparse method raises `NotImplementedError`."""
    return cls.__name__ == kind.base and cls.__module__ in kind.homes


def _meant(kind: OptimizerKind, name: str) -> str:
    """The method of this kind that corresponds to `name` of another kind."""
    if kind.name in ("keras2", "keras3"):
        return "update_step"
    return _SPARSE if "sparse" in name else _DENSE


def _calls(own: Sequence[type], name: str) -> bool:
    """Whether another method of these classes may call this one."""
    return any(
        not _names(code).isdisjoint((name, "getattr"))
        for cls in own
        for attribute, value in vars(cls).items()
        for code in (_codes(value) if attribute != name else ())
    )


def _line_of(cls: type, name: str) -> str:
    return next((line_of(code) for code in _codes(inspect.getattr_static(cls, name))), "")


def _codes(value: Any) -> list[CodeType]:
    """The code objects of a method or property, and of the function that a decorator wrapped."""
    names = ("__func__", "fget", "fset", "fdel", "__wrapped__")
    parts = [value, *(getattr(value, name, None) for name in names)]
    codes = [getattr(each, "__code__", None) for each in parts]
    return [each for each in codes if isinstance(each, CodeType)]


def _names(code: CodeType) -> set[str]:
    """The attributes, globals and strings that code and its inner functions refer to."""
    inner = [_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {*code.co_names, *(each for each in code.co_consts if isinstance(each, str))}.union(
        *inner
    )
