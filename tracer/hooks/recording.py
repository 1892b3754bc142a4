"""Implements `record`: traces every optimizer used in a block, wherever it was made.

A recording holds the optimizers that are alive when its block begins, or are made in it; backends
find them and report new ones.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from operator import itemgetter
from typing import Any
from weakref import ref

import wrapt
from msgspec.structs import replace

from tracer.backends.backend_list import FINDERS, backend_of, canonical, finders
from tracer.core.optimizers import forget_numbers
from tracer.core.recorder import Recorder
from tracer.core.registry import Holder, recorder_of
from tracer.core.snapshot import THE_BEGINNING
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.hooks import wrapping
from tracer.hooks.family import family, kind_to_trace
from tracer.model.evidence import Fitted
from tracer.model.launches import of_this_process
from tracer.model.merge import combine
from tracer.model.names import finder
from tracer.model.records import Note
from tracer.model.trace import Trace

__tracebackhide__ = is_mistake


class Recording(Holder):
    """What `record` yields; `trace` returns a frozen trace, in the block and after it.

    It holds the optimizers of the block, and notes those that cannot be traced.
    """

    def __init__(self, *, effects: bool = False, of_all: bool = False) -> None:
        """If `effects`, the variables are compared before and after each step.

        If `of_all`, it holds every optimizer, also those made later: see `begin`.
        """
        super().__init__()
        self._effects = effects
        self._missed: set[str] = set()
        """The classes of living optimizers that no backend reported."""
        self._unseen: list[str] = []
        """Notes on steps that backends cannot see, and on optimizers that cannot be traced."""
        self._refused: list[ref[Any]] = []
        """The optimizers that cannot be traced."""
        self._end: Trace | None = None
        self.of_all = of_all

    def trace(self) -> Trace:
        """The trace since the block began; after the block always the same trace.

        An optimizer that was not used is included, last, if it was asked for or made in the block,
        or if its model was fitted.
        """
        if self._end is not None:
            return self._end
        self.hold_unused()
        found = []
        for recorder, since in list(self.since.items()):
            is_asked = recorder in self.asked
            counted = recorder.reader.data_since(since, empty=is_asked or since is None)
            if counted is not None:
                known = (THE_BEGINNING if since is None else since).notes
                notes = {note for note in counted[0].notes if note.kind != "fact"}
                ran = any(block.total for block in (*counted[0].blocks, *counted[0].calls))
                is_used = is_asked or ran or bool(notes - known)
                is_used = is_used or recorder.optimizers.stale.may_run()
                own = (each for optimizer in counted[0].optimizers for each in optimizer.evidence)
                if is_used or since is None or any(isinstance(each, Fitted) for each in own):
                    found.append((is_used, counted))
        found.sort(key=itemgetter(0), reverse=True)
        parts = [each for _, each in found]
        data, objects = parts[0] if len(parts) == 1 else combine(parts)
        every = dict.fromkeys([*data.notes, *self._notes(nothing=not parts)])
        data = of_this_process(replace(data, notes=tuple(every)))
        return Trace(data, finder(objects, canonical) if objects else None)

    def _notes(self, nothing: bool) -> list[Note]:
        """The notes on what was not counted; `nothing` if no optimizer was used."""
        missed = [
            f"{name} was made in a way that the tracer does not see, and is not counted: wrap it "
            "yourself"
            for name in sorted(self._missed)
        ]
        unused = [each.unused_note for each in (finders() if nothing else ())]
        return [*map(Note, dict.fromkeys([*missed, *self._unseen, *filter(None, unused)]))]

    @property
    def used(self) -> bool:
        """Whether any optimizer traced here was ever used; takes no lock."""
        return any(recorder.used for recorder in list(self.since))

    def take(self, optimizer: object, *, effects: bool = False) -> None:
        """Trace this optimizer, too; raises `tracer.UnsupportedOptimizer` if unsupported."""
        self.asked.add(wrapping.hold(optimizer, self, effects=effects or self._effects))

    def attach(self, optimizer: Any, **options: Any) -> None:
        """Trace an optimizer that the program did not name; a failure is noted in the trace."""
        try:
            wrapping.hold(optimizer, self, effects=self._effects, **options)
        except UnsupportedOptimizer as error:
            self._refuse(optimizer, error)
        except Exception as error:
            known = recorder_of(optimizer)
            recorder = known or Recorder(backend_of(kind_to_trace(optimizer)))
            recorder.fault(error)
            self.since.setdefault(recorder, None)

    def _refuse(self, optimizer: object, error: UnsupportedOptimizer) -> None:
        self._refused.append(ref(optimizer))
        self._unseen.append(f"{error}; what it does is not counted")

    def hold_unused(self) -> None:
        """Hold what was made during the outermost block and never called, if nothing reports it."""
        for backend in finders() if self in _active[:1] else ():
            for optimizer in backend.unused():
                self.attach(optimizer, making=True)

    def begin(self) -> None:
        """Hold every living optimizer, each as the root of its nested optimizers."""
        families = []
        for backend in finders():
            self._unseen += backend.unseen()
            for optimizer in backend.living():
                try:
                    families.append(list(family(optimizer)))
                except UnsupportedOptimizer as error:
                    self._refuse(optimizer, error)
        inner = {id(nested) for members in families for nested, _ in members[1:]}
        with wrapping.lock:
            for members in families:
                if id(members[0][0]) not in inner:
                    self.attach(members[0][0], members=members)

    def end(self) -> None:
        """Freeze the trace, and let go of the optimizers: others may still hold them."""
        try:
            refused = {id(optimizer()) for optimizer in self._refused}
            self._missed = {
                type(each).__name__
                for backend in (finders() if self.of_all else ())
                for each in backend.living()
                if recorder_of(each) is None and id(each) not in refused
            }
            self._end = self.trace()
        finally:
            self.ended = True
            for recorder in list(self.since):
                wrapping.let_go(recorder.optimizers.alive(), self)
        self.asked.clear()
        self.since.clear()


@contextmanager
def record(*, effects: bool = False) -> Iterator[Recording]:
    """Trace every optimizer that is used in the block; yields a `Recording`.

    Only what runs in the block counts: its steps are numbered from 1. `record` wraps optimizers
    and, at the end of the block, unwraps them, except for those that the program itself wrapped.
    Functions traced before the block are traced again, and `effects=True` compares the variables
    before and after each step, as `wrap` does.

    >>> import tensorflow as tf, tracer
    >>> weight = tf.Variable([1.0])
    >>> with tracer.record() as recording:
    ...     optimizer = tf.compat.v1.train.GradientDescentOptimizer(0.1)
    ...     optimizer.apply_gradients([(tf.ones(1), weight)])
    >>> recording.trace().updates()
    1
    """
    recording = Recording(effects=effects, of_all=True)
    with _ending(recording):
        with wrapping.lock:
            if not _active:
                forget_numbers()
            _active.append(recording)
            _watch_imports()
            _listen()
        recording.begin()
        yield recording


@contextmanager
def recording_of(*optimizers: object) -> Iterator[Recording]:
    """Trace only these optimizers in the block; `Recording.take` adds more of them.

    Raises `tracer.UnsupportedOptimizer` if one is not a supported optimizer.
    """
    recording = Recording()
    with _ending(recording):
        for optimizer in optimizers:
            recording.take(optimizer)
        yield recording


@contextmanager
def _ending(recording: Recording) -> Iterator[None]:
    """End a recording with the block, wherever a signal handler raises."""
    try:
        try:
            yield
        finally:
            _close(recording)
    finally:  # once more if a signal handler raised at any line of the first
        _close(recording)


def _close(recording: Recording) -> None:
    """End a recording; does nothing if it has ended and holds nothing."""
    if recording.ended and not recording.since and recording not in _active:
        return
    recording.hold_unused()
    if recording.of_all:
        with wrapping.lock:
            _active[:] = [each for each in _active if each is not recording]
            _listen()
    recording.end()


# Optimizers made later.

_active: list[Recording] = []
"""The recordings whose block is running: new optimizers are reported to them."""


def report_made(optimizer: object, *, making: bool = False) -> None:
    """Have all running recordings hold a new optimizer."""
    for recording in list(_active):
        recording.attach(optimizer, making=making)


@cache
def _watch_imports() -> None:
    """Have a backend listen as soon as its package is imported."""
    for home in filter(None, FINDERS.values()):
        wrapt.register_post_import_hook(lambda _: _listen() if _active else None, home)


def _listen() -> None:
    """Have backends report new optimizers while anything is recorded."""
    with wrapping.lock:
        for backend in finders(load=True):
            backend.listen(report_made if _active else None)
