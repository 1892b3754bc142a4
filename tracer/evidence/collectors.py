"""Collects evidence on classes, loss scales and steps that raised.

A class is read, never called, and only code of the program is read, not what a framework ships. The
frameworks' calls and arguments are from the files named in `tracer.kinds`; `tests/findings` tries
all of them. Sources for loss scales: Keras 3.15 (`keras/src/optimizers/base_optimizer.py`,
`loss_scale_optimizer.py`) and tf_keras 2.21 (`src/mixed_precision/loss_scale_optimizer.py`).
"""

import inspect
from collections.abc import Iterator, Sequence
from traceback import walk_stack
from types import CodeType

from msgspec.structs import replace

from tracer.core.backend import Root
from tracer.core.call_paths import line as line_in
from tracer.core.calls import Step
from tracer.core.collectors import Collector
from tracer.core.reachable import names_in
from tracer.errors import in_one_line, suppress_faults
from tracer.evidence.rates import Rates
from tracer.kinds import AT_ONCE, FRAMEWORKS, KINDS, SHIPPED, OptimizerKind
from tracer.model.evidence import (
    ClassMethod,
    Evidence,
    Failure,
    LossNotScaled,
)
from tracer.model.records import Optimizer

# Classes that cannot work, and loss scales of a loss that was never multiplied.

_DENSE = "_resource_apply_dense"
_SPARSE = "_resource_apply_sparse"
_DUPLICATES = "_resource_apply_sparse_duplicate_indices"
_SCALES = {"loss_scale", "loss_scale_factor", "dynamic_scale", "initial_scale"}
"""Names in the code of a program that scales the loss itself."""


class Classes(Collector):
    """Evidence on the classes of a recorder's optimizers, and on loss scales."""

    by_hand = False
    """Whether the program seems to scale the loss itself."""

    def first_step_ends(self, call: Step) -> None:
        """Look for the names of a loss scale in the program's running functions."""
        for frame, _ in walk_stack(None):
            module = str(frame.f_globals.get("__name__")).partition(".")[0]
            if module not in (*FRAMEWORKS, "tracer"):
                self.by_hand |= not _SCALES.isdisjoint(names_in(frame.f_code))

    def evidence_on(self, index: int, record: Optimizer) -> Sequence[Evidence]:
        """The evidence on the class, and on a loss that was never scaled."""
        traced, stepping = self.root.optimizers.all[index], self.root.optimizers.stepping
        found, scale = evidence_on(traced.cls, traced.kind), LossNotScaled("scale_loss", "apply")
        is_divided = "LossScale" in record.class_name
        is_divided |= record.settings.get("loss_scale_factor") not in (None, 1)
        if record.kind != "keras3":
            scale = LossNotScaled("get_scaled_loss", "get_unscaled_gradients")
            is_divided &= scale.divided in traced.called
        is_missing = scale.missing not in traced.called and not self.by_hand
        scales = [scale] if is_divided and is_missing and index in stepping else []
        return (*found, *scales)


def evidence_on(cls: type, kind: OptimizerKind) -> tuple[ClassMethod, ...]:
    """Return what a class shows; empty for a class that ships with a framework."""
    with suppress_faults():  # reading a class may raise anything
        own = [each for each in cls.__mro__ if each.__module__.split(".")[0] not in SHIPPED]
        return tuple(_evidence(cls, kind, own)) if own and kind.name not in AT_ONCE else ()
    return ()


def _evidence(cls: type, kind: OptimizerKind, own: Sequence[type]) -> Iterator[ClassMethod]:
    """Yield what a class shows; `own` are it and its base classes that the program defines."""

    def owner(name: str) -> type | None:
        return next((base for base in cls.__mro__ if name in vars(base)), None)

    def line(name: str) -> str:
        return next(
            (
                line_in(code.co_filename, code.co_firstlineno)
                for code in _codes(inspect.getattr_static(cls, name))
            ),
            "",
        )

    called = [apply.name for apply in kind.apply_methods]
    known = {apply.name for each in KINDS for apply in each.apply_methods}
    for name in sorted(known | {each.lstrip("_") for each in known}):
        if name not in called and owner(name) in own and not _calls(own, name):
            instead = _SPARSE if "sparse" in name else _DENSE
            instead = "update_step" if kind.name in ("keras2", "keras3") else instead
            if owner(instead) not in own:
                yield ClassMethod("unreached", name, line(name), instead)
    if kind.name in ("legacy", "v1"):
        # The sparse methods of the kind's base class raise NotImplementedError.
        bases = [each for each in map(owner, (_DENSE, _SPARSE, _DUPLICATES)) if each is not None]
        inherited = [each.__name__ == kind.base and each.__module__ in kind.homes for each in bases]
        if inherited == [False, True, True]:  # without a dense method, another does the work
            yield ClassMethod("no sparse", _SPARSE)
        if owner(_DENSE) in own:
            yield ClassMethod("own dense", _DENSE, line(_DENSE))


def _calls(own: Sequence[type], name: str) -> bool:
    """Whether another method of these classes may call this one."""
    return any(
        not names_in(code).isdisjoint((name, "getattr", "methodcaller"))
        for cls in own
        for attribute, value in vars(cls).items()
        for code in (_codes(value) if attribute != name else ())
    )


def _codes(value: object) -> list[CodeType]:
    """The code objects of a method or property, and of the function that a decorator wrapped."""
    parts = ("__func__", "fget", "fset", "fdel", "__wrapped__")
    functions = [value, *(getattr(value, part, None) for part in parts)]
    return [code for each in functions if (code := getattr(each, "__code__", None))]


# Steps that raised.

_MAX_FAILURES = 8  # the most kinds of failures kept


class Failures(Collector):
    """The steps of one root optimizer that raised, each kind once."""

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self._begun: dict[Failure, tuple[int, int]] = {}
        """The steps that had run and those that had begun, for each kind of failure."""

    def step_raised(self, call: Step, error: BaseException) -> None:
        """Record the exception that ended a step."""
        if isinstance(error, Exception) and len(self._begun) < _MAX_FAILURES:
            root = self.root
            method = root.sites.sites[call.own[0]].method
            begun = root.blocks.counters.steps()
            own = min(call.numbers.values(), default=begun + 1)
            kind = Failure(method, in_one_line(error), 0)
            self._begun.setdefault(kind, (own - 1, begun))

    def evidence(self) -> Iterator[Failure]:
        """The failures so far."""
        steps, found = self.root.blocks.counters.steps(), list(self._begun.items())
        return (replace(kind, after=own, last=steps <= begun) for kind, (own, begun) in found)


COLLECTORS: tuple[type[Collector], ...] = (Classes, Failures, Rates)
"""The collectors that every recorder has."""
