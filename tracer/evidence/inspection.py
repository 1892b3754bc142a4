"""Inspects the classes of optimizers: makes `Remark`s for the rules of `findings`.

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
from tracer.core.registry import plain_class
from tracer.hooks.family import ships
from tracer.hooks.lines import line_of
from tracer.kinds import AT_ONCE, KINDS, OptimizerKind
from tracer.model.records import Optimizer, Remark

_DENSE = "_resource_apply_dense"
_SPARSE = "_resource_apply_sparse"
_DUPLICATES = "_resource_apply_sparse_duplicate_indices"

OWN_DENSE = "own-dense"
"""The code of the remark that the program defines `_resource_apply_dense`, with its line."""

FAILING = ("override-unreached",)
"""The codes of mistakes that cannot work: these warn before training begins."""


class Classes(Collector):
    """Remarks on the classes of a recorder's optimizers."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._remarks: dict[int, tuple[Remark, ...]] = {}

    def first_step_ends(self, frame: Call) -> None:
        """Read the classes: an optimizer may be gone when a trace is read."""
        for index in range(len(self.root.optimizers.all)):
            self._remarks_on(index)

    def step_raised(self, frame: Call, error: BaseException) -> None:
        """Read the classes, because the first step may raise."""
        self.first_step_ends(frame)

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add the remarks on the optimizer's class."""
        return replace(record, remarks=(*self._remarks_on(index), *record.remarks))

    def _remarks_on(self, index: int) -> tuple[Remark, ...]:
        traced = self.root.optimizers.all[index]
        optimizer = traced.optimizer()
        if index not in self._remarks and optimizer is not None:
            self._remarks[index] = remarks_of(plain_class(type(optimizer)), traced.kind)
        return self._remarks.get(index, ())


def may_fail(root: Root) -> bool:
    """Whether the class of one of the root's optimizers has a mistake that cannot work."""
    return any(
        remark.code in FAILING
        for each in root.optimizers.all
        for remark in remarks_of(plain_class(type(each.optimizer())), each.kind)
    )


def remarks_of(cls: type, kind: OptimizerKind) -> tuple[Remark, ...]:
    """Return remarks on an optimizer's class; empty for a class that ships with a framework.

    The codes `override-unreached` and `sparse-missing` are rules of `tracer.findings`. `own-dense`
    reports a `_resource_apply_dense`, which people ask about if it never runs.
    """
    remarks: tuple[Remark, ...] = ()
    with suppress_faults():  # reading a class may raise anything
        own = [] if kind.name in AT_ONCE else [each for each in cls.__mro__ if not ships(each)]
        remarks = tuple(dict.fromkeys(_Class(cls, kind, own).remarks())) if own else ()
    return remarks


class _Class:
    """The class of an optimizer, with its base classes that the program defines."""

    def __init__(self, cls: type, kind: OptimizerKind, own: Sequence[type]) -> None:
        self._cls, self._kind, self._own = cls, kind, own

    def remarks(self) -> Iterator[Remark]:
        yield from self._unreached()
        yield from self._sparse_missing()
        if self._owner(_DENSE) in self._own and self._kind.name in ("legacy", "v1"):
            yield Remark(OWN_DENSE, _DENSE, where=self._line_of(_DENSE))

    def _owner(self, name: str) -> type | None:
        return next((each for each in self._cls.__mro__ if name in vars(each)), None)

    def _is_default(self, name: str) -> bool:
        """Whether a method is inherited from the kind's base class."""
        owner, kind = self._owner(name), self._kind
        return owner is not None and owner.__name__ == kind.base and owner.__module__ in kind.homes

    def _line_of(self, name: str) -> str:
        value = inspect.getattr_static(self._cls, name)
        return next((line_of(code) for code in _codes(value)), "")

    def _calls(self, name: str) -> bool:
        """Whether another method of the program may call this one."""
        return any(
            not _names(code).isdisjoint((name, "getattr"))
            for cls in self._own
            for attribute, value in vars(cls).items()
            for code in (_codes(value) if attribute != name else ())
        )

    def _unreached(self) -> Iterator[Remark]:
        """Yield remarks on methods that are never called."""
        called = [apply.name for apply in self._kind.apply_methods]
        known = {apply.name for each in KINDS for apply in each.apply_methods}
        for name in sorted(known | {each.lstrip("_") for each in known}):
            if name not in called and self._owner(name) in self._own and not self._calls(name):
                instead = f"_{name}" if f"_{name}" in called else self._meant(name)
                if self._owner(instead) not in self._own:
                    yield Remark("override-unreached", name, instead, self._line_of(name))

    def _meant(self, name: str) -> str:
        """The method of this kind that corresponds to `name` of another kind."""
        if self._kind.name in ("keras2", "keras3"):
            return "update_step"
        return _SPARSE if "sparse" in name else _DENSE

    def _sparse_missing(self) -> Iterator[Remark]:
        """Yield a remark if only the sparse default is left, which raises `NotImplementedError`.

        A class without a dense method, too, leaves the work to another optimizer.
        """
        missing = [name for name in (_DENSE, _SPARSE, _DUPLICATES) if self._is_default(name)]
        if self._kind.name in ("legacy", "v1") and missing == [_SPARSE, _DUPLICATES]:
            yield Remark("sparse-missing", _SPARSE)


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
