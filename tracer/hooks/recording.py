"""Implements `record`: traces every optimizer used in a block, wherever it was made.

Optimizers that are alive when the block begins, or are made in it, are attached to its recording.
The patched base classes report new optimizers, also between blocks: see `Living`. Base classes are
patched when they are imported. This module imports no framework.
"""

import sys
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import chain
from types import ModuleType
from typing import Any, TypeVar
from weakref import ref

from tracer.backends.backend_list import backend_of, canonical
from tracer.backends.optax import makers, updates
from tracer.core.instances import Living, report_new
from tracer.core.interrupts import suppress_faults
from tracer.core.recorder import Recorder
from tracer.core.registry import is_traced, recorder_of
from tracer.core.snapshot import Baseline, ran_in
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.hooks import wrapping
from tracer.hooks.family import family, is_made
from tracer.core.imports import when_imported
from tracer.core.lines import forget_numbers, line_of_caller, made_here
from tracer.kinds import MAKERS, OptimizerKind, kind_of
from tracer.model.evidence import Fitted
from tracer.model.merge import combine
from tracer.model.names import Objects, finder
from tracer.model.records import Note, TraceData
from tracer.model.trace import Trace

T = TypeVar("T")

__tracebackhide__ = is_mistake


@dataclass
class _Part:
    """The state of one recorder in a recording."""

    since: Baseline | None
    is_asked: bool = False
    """Whether the program asked for this optimizer."""
    compares: bool = False
    """Whether this recording asked for effects."""


class Recording:
    """The recorders of the optimizers in a block, and the optimizers that cannot be traced."""

    def __init__(
        self, attached: Callable[[Recorder], None] | None = None, *, effects: bool = False
    ) -> None:
        """`attached` is called with the recorder of each optimizer as soon as it is attached.

        If `effects`, the variables are compared before and after each step.
        """
        self._attached = attached
        self._effects = effects
        self._parts: dict[Recorder, _Part] = {}
        self._missed: set[str] = set()
        self._compiled: list[str] = []
        """Notes on steps that `torch.compile` compiled before the block."""
        self._refused: list[tuple[ref[Any], list[int | None] | None, str]] = []
        """The optimizers that cannot be traced, their step counts when refused, and why."""
        self._end: Trace | None = None
        self._is_cut = False
        """Whether an exception interrupted the end of the block."""

    def trace(self) -> Trace:
        """The trace since the block began; after the block always the same trace.

        An optimizer that was not used is included, last, if it was asked for or made in the block,
        or if its model was fitted.
        """
        if self._end is not None:
            return self._end
        self.attach_unused()
        used, unused = [], {}
        for recorder, part in list(self._parts.items()):
            empty = part.is_asked or part.since is None
            counted = recorder.reader.data_since(part.since, empty=empty)
            if counted is None:
                continue
            known = frozenset() if part.since is None else part.since.notes
            if part.is_asked or ran_in(counted[0], known):
                used.append(counted)
            elif part.since is None or _was_fitted(counted[0]):
                unused[recorder] = counted
        every = [*used, *(unused[each] for each in _outermost(unused))]
        data, objects = combine(every, self._notes(nothing=not every))
        if not objects:
            return Trace(data)
        return Trace(data, Objects(index_of=finder(objects, canonical)))

    def _notes(self, nothing: bool) -> list[Note]:
        """The notes on what was not counted; `nothing` if no optimizer was used."""
        notes = [
            f"{name} was made in a way that the tracer does not see, and is not counted: wrap it "
            "yourself"
            for name in sorted(self._missed)
        ]
        notes += self._compiled
        for optimizer, steps, note in self._refused:  # a note matters only if the optimizer stepped
            if steps is None or steps != _steps_of(optimizer()):
                notes.append(note)
        if nothing and "optax" in sys.modules:
            notes.append(_NOT_WRAPPED)
        if self._is_cut:
            notes.append(_CUT)
        return [*map(Note, dict.fromkeys(notes))]

    @property
    def used(self) -> bool:
        """Whether any optimizer traced here was ever used; takes no lock."""
        return any(recorder.used for recorder in list(self._parts))

    def take(self, optimizer: Any, *, effects: bool = False) -> None:
        """Trace this optimizer, too; raises `tracer.UnsupportedOptimizer` if unsupported."""
        recorder = self._join(updates.standing_for(optimizer), effects=effects)
        self._parts[recorder].is_asked = True

    def attach(self, optimizer: Any, **options: Any) -> None:
        """Trace an optimizer that the program did not name; a failure is noted in the trace."""
        try:
            recorder = self._join(optimizer, **options)
            if self._attached is not None:
                self._attached(recorder)
        except UnsupportedOptimizer as error:
            self._refuse(optimizer, error)
        except Exception as error:
            self._parts.setdefault(wrapping.fail(optimizer, error), _Part(None))

    def replace(self, recorder: Recorder, optimizer: Any) -> None:
        """Trace an optimizer that another recorder has now: it was nested in one that steps."""
        self.attach(optimizer)
        if not (recorder.used or self._parts[recorder].is_asked):
            del self._parts[recorder]
            recorder.recordings.discard(self)

    def _refuse(self, optimizer: Any, error: UnsupportedOptimizer) -> None:
        note = f"{error}; what it does is not counted"
        self._refused.append((ref(optimizer), _steps_of(optimizer), note))

    def _join(
        self,
        optimizer: Any,
        *,
        making: bool = False,
        effects: bool = False,
        members: Sequence[tuple[Any, OptimizerKind]] = (),
    ) -> Recorder:
        """Trace an optimizer; `making` if its `__init__` is running. Returns its recorder."""
        effects = effects or self._effects
        known = recorder_of(optimizer)
        if known is not None and not wrapping.is_wrapped(known):
            known.reader.unwrapped()
        if making:
            recorder = wrapping.adopt(optimizer, effects=effects)
        else:
            recorder = wrapping.join(optimizer, effects=effects, members=members)
        if recorder not in self._parts:
            self._parts[recorder] = _Part(None if making else recorder.reader.baseline())
            recorder.recordings.add(self)
        self._parts[recorder].compares |= effects
        return recorder

    def attach_unused(self) -> None:
        """Attach what optax made during the outermost block, and nothing has called yet."""
        for update in list(updates.unused.values()) if self in _active[:1] else ():
            self.attach(update, making=True)

    def begin(self) -> None:
        """Attach every living optimizer, each as the root of its nested optimizers."""
        if "torch" in sys.modules:
            from tracer.backends.torch import compiled_steps, optimizer_hooks

            self._compiled = compiled_steps.notes()
            for optimizer in optimizer_hooks.watched():
                self.attach(optimizer)
        if "optax" in sys.modules:
            for update in updates.living():
                self.attach(update)
        families = []
        for optimizer in _optimizers():
            try:
                families.append(wrapping.members_of(optimizer))
            except UnsupportedOptimizer as error:
                self._refuse(optimizer, error)
        inner = {id(nested) for members in families for nested, _ in members[1:]}
        with _lock:
            for members in families:
                if id(members[0][0]) not in inner:
                    self.attach(members[0][0], members=members)

    def finish(self) -> None:
        """End the recording, and note the living optimizers that were not seen."""
        try:
            refused = {id(optimizer()) for optimizer, _, _ in self._refused}
            self._missed = {
                type(each).__name__
                for each in _optimizers()
                if recorder_of(each) is None and id(each) not in refused
            }
        except BaseException:
            self._is_cut = True
            raise
        finally:
            self.end()

    def end(self) -> None:
        """Freeze the trace, and unwrap the optimizers that the program did not wrap.

        Optimizers that another recording still traces, as in another thread, stay wrapped.
        """
        try:
            self._end = self.trace()
        except BaseException:
            self._is_cut = True
            raise
        finally:
            self._release()
        self._parts.clear()

    def _release(self) -> None:
        with _lock:
            for recorder, part in self._parts.items():
                recorder.recordings.discard(self)
                wrapping.release(recorder.optimizers.alive())
                others = any(each._parts[recorder].compares for each in recorder.recordings)
                if part.compares and not others and not recorder.compares_for_program:
                    retrace = any(map(is_traced, recorder.optimizers.alive()))
                    recorder.compare(False, retrace=retrace)


_CUT = (
    "an exception interrupted the end of the block: steps after it may be counted, and an "
    "optimizer that the tracer did not see may be missing"
)
_NOT_WRAPPED = (
    "optax is imported, but only transformations that optax.NAME(...) made during the recording "
    "are counted, not those that were made by hand, earlier, or by a function that was imported "
    "earlier: for these, use tx = tracer.wrap(tx)"
)


def _steps_of(optimizer: Any) -> list[int | None] | None:
    """The own step counts of an optimizer and its nested ones; None if one of them has none."""
    with suppress(UnsupportedOptimizer, AttributeError):  # another backend, tf.compat.v1.train
        steps = [
            backend_of(kind).iterations_of(each) if each._iterations is not None else 0
            for each, kind in family(optimizer)
        ]
        return None if None in steps else steps
    return None


@contextmanager
def record(
    attached: Callable[[Recorder], None] | None = None, *, effects: bool = False
) -> Iterator[Recording]:
    """Trace every optimizer that is used in the block: see `tracer.record` and `Recording`."""
    recording = Recording(attached, effects=effects)
    with _lock:
        if not _active:
            forget_numbers()
        _active.append(recording)
        _watch_imports()
        _listen_to_torch()
        _listen_to_optax()
    try:
        recording.begin()
        yield recording
    finally:
        try:
            recording.attach_unused()
            with _lock:
                _active.remove(recording)
                _listen_to_torch()
                _listen_to_optax()
        finally:
            recording.finish()


@contextmanager
def recording_of(*optimizers: object, effects: bool = False) -> Iterator[Recording]:
    """Trace only these optimizers in the block: see `tracer.api.recording_of`."""
    recording = Recording(effects=effects)
    try:
        for optimizer in optimizers:
            recording.take(optimizer)
        yield recording
    finally:
        recording.end()


def _was_fitted(data: TraceData) -> bool:
    """Whether `fit` completed with an optimizer that made no step."""
    return any(isinstance(own, Fitted) for each in data.optimizers for own in each.evidence)


def _outermost(recorders: Collection[Recorder]) -> Iterator[Recorder]:
    """The recorders, without those of optimizers nested in another one that was not used either."""
    nested = set[int]()
    with suppress_faults():
        for optimizer in chain(*(each.optimizers.alive() for each in recorders)):
            own = recorder_of(optimizer)
            nested |= {id(each) for each, _ in family(optimizer) if recorder_of(each) is not own}
    for each in recorders:
        if nested.isdisjoint(map(id, each.optimizers.alive())):
            yield each


def _optimizers() -> list[Any]:
    """All living optimizers, except those whose `__init__` raised."""
    return [each for each in _living.all() if kind_of(type(each)) is not None and is_made(each)]


# Optimizers made later.


def attach(optimizer: Any, **options: Any) -> None:
    """Attach an optimizer to all running recordings, which nothing else would report to them."""
    for recording in list(_active):
        recording.attach(optimizer, **options)


def _made(optimizer: Any) -> None:
    if kind_of(type(optimizer)) is not None:
        attach(optimizer, making=True)


@cache
def _watch_torch(cls: type) -> None:
    report_new(cls, lambda optimizer: attach(optimizer, making=True))


_lock = threading.RLock()
_active: list[Recording] = []
"""The recordings whose block is running: new optimizers are reported to them."""
_living = Living(_made)
_sees_makers = False
"""Whether the functions of optax stay replaced while nothing is recorded."""


@cache
def _watch_imports() -> None:
    """Watch the base classes that are imported, and others once they are imported."""
    for home in dict.fromkeys(home for home, _ in MAKERS):
        when_imported(home, _watch)
    # The whole package: `torch.optim` is imported in the middle.
    when_imported("torch", lambda _: _listen_to_torch() if _active else None)
    when_imported("optax", lambda _: _listen_to_optax())


def _listen_to_torch() -> None:
    """Listen to the steps of PyTorch optimizers while anything is recorded.

    The global hook sees the first step of each, and only then counts the steps.
    """
    if "torch" in sys.modules:
        from tracer.backends.torch import compat, optimizer_hooks

        with _lock:
            _watch_torch(compat.Optimizer)
            (optimizer_hooks.listen if _active else optimizer_hooks.ignore)(attach)


def see_makers(wanted: bool) -> None:
    """Start or stop watching what optax makes outside of recordings."""
    global _sees_makers
    with _lock:
        _sees_makers = wanted
        _watch_imports()
        _listen_to_optax()


def _listen_to_optax() -> None:
    """Replace optax's makers while anything is recorded, or if `see_makers` asked for it."""
    if "optax" in sys.modules:
        with _lock:
            if _active or _sees_makers:
                makers.exchange(_steps_first if _active else None, line_of_caller, made_here)
            else:
                makers.put_back()


def _steps_first(update: updates.TracedUpdate) -> None:
    attach(update, making=True)


def wrap_transformation(given: T, *, retrace: bool, effects: bool) -> T:
    """Return an optax transformation that does the same as `given`, and is counted."""
    made, update = given, updates.standing_for(given)
    known = recorder_of(update)
    if not isinstance(update, updates.TracedUpdate):
        made, update = updates.traced(given, made_here(given))
    wrapping.hold(update, known, retrace=retrace, effects=effects)
    attach(update)
    return made


def _watch(module: ModuleType) -> None:
    with _lock:
        for home, name in MAKERS:
            cls = getattr(module, name, None)
            if home == module.__name__ and cls is not None:
                _living.watch(cls)
