"""`record`: every optimizer that is used while a block runs, wrapped or not, made before or in it.

No single hook finds every optimizer. Those that exist are found by one sweep over the objects that
the garbage collector knows, in the first block of a process; those that are made later by the
`__init__` of their base class, which stays patched between blocks. A base class that is not
imported yet is patched when it is; until then no TensorFlow is imported here.
"""

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar
from weakref import ref

import wrapt

from tracer.core.instances import Living
from tracer.errors import UnsupportedOptimizer, is_mistake
from tracer.kinds import MAKERS, kind_of
from tracer.model.merge import combine
from tracer.model.names import Objects, finder
from tracer.model.records import TraceData
from tracer.model.trace import Trace

if TYPE_CHECKING:
    from tracer.core.recorder import Recorder
    from tracer.core.snapshot import Baseline

T = TypeVar("T")

__tracebackhide__ = is_mistake


class Recording:
    """What was recorded of each optimizer that was met, and which were not to be traced."""

    def __init__(
        self, met: "Callable[[Recorder], None] | None" = None, *, effects: bool = False
    ) -> None:
        """`met` is called with the recorder of each optimizer that is met, as soon as it is.

        If `effects`, the variables are compared before and after each step.
        """
        self._met = met
        self._effects = effects
        self._comparing: dict[Recorder, bool] = {}  # and whether it was traced without that before
        self._since: dict[Recorder, Baseline | None] = {}
        self._waiting: dict[int, ref[Any]] = {}  # the optimizers that it waits for, by id
        self._groups: dict[int, list[ref[Any]]] | None = None  # those that belong together
        self._quiet: set[Recorder] = set()  # of optimizers that it waits for: graphs count for them
        self._order: dict[int, int] = {}  # of the optimizers that were alive when it began, by id
        self._places: dict[Recorder, int] = {}  # in that order
        self._gaps: dict[Recorder, int] = {}  # see `Optimizers.gaps`, when it was met
        self._asked: set[Recorder] = set()
        self._wrapped: list[ref[Any]] = []
        self._missed: set[str] = set()
        self._refused: list[_Refused] = []
        self._unmade: list[ref[Any]] = []
        self._end: Trace | None = None
        _open.append(self)

    def trace(self) -> Trace:
        """What ran since the block began; after the block always the same trace.

        An optimizer that was asked for is in it also if it was not used.
        """
        if self._end is not None:
            return self._end
        parts, unused = [], []
        for recorder in sorted(list(self._since), key=self._place):
            since = self._since[recorder]
            counted = recorder.reader.data_since(since, empty=recorder in self._asked)
            if counted is None:
                continue
            known = frozenset() if since is None else since.notes
            if recorder in self._asked or _ran(counted[0], known):
                parts.append(counted)
            elif _was_compiled(counted[0]):
                unused.append(counted)
        parts = parts or unused
        notes = [
            f"{name}: made in a way that the tracer does not see, so not counted; wrap it yourself"
            for name in sorted(self._missed)
        ] + [each.note for each in self._refused if each.may_have_run()]
        if any(each.optimizers.gaps() > before for each, before in list(self._gaps.items())):
            notes.append(_UNWRAPPED)
        if not parts and _OPTAX in sys.modules:
            notes.append(_NOT_WRAPPED)
        data, objects = combine(parts, list(dict.fromkeys(notes)))
        if not objects:
            return Trace(data)
        from tracer.backends.registered import canonical

        return Trace(data, Objects(index_of=finder(objects, canonical)))

    @property
    def used(self) -> bool:
        """Whether any optimizer that is traced here was ever used; takes no lock."""
        return any(recorder.used for recorder in list(self._since))

    def take(self, optimizer: Any, *, effects: bool = False) -> None:
        """Trace this optimizer too; raises `tracer.UnsupportedOptimizer` for what is none."""
        from tracer.backends.optax import updates
        from tracer.core import registry

        registry.wake(optimizer)
        optimizer = updates.standing_for(optimizer)
        self._asked.add(self._hold(optimizer, effects=effects))

    def _meet(self, optimizer: Any, *, making: bool = False, line: str = "") -> None:
        """Trace an optimizer that nobody asked to trace; if that cannot be, the trace says so."""
        try:
            recorder = self._hold(optimizer, making=making, line=line)
            if self._met is not None:
                self._met(recorder)
        except UnsupportedOptimizer as error:
            note = f"{error}; what it does is not counted"
            self._refused.append(_Refused(ref(optimizer), _counts_of(optimizer), note))

    def _fail_to_meet(self, optimizer: Any) -> None:
        """The constructor of an optimizer raised, so it is none; what is left of it may linger."""
        self._unmade.append(ref(optimizer))

    def _hold(
        self, optimizer: Any, *, making: bool = False, effects: bool = False, line: str = ""
    ) -> "Recorder":
        from tracer.core import registry
        from tracer.hooks import wrapping

        effects = effects or self._effects
        traced = registry.is_traced(optimizer)
        known = registry.recorder_of(optimizer)
        if known is not None and not wrapping.is_wrapped(known):
            known.reader.unwrapped()
        missed = {} if known is None else dict(known.optimizers.older.calls)
        compared = known is not None and known.effects is not None
        if making:
            recorder = wrapping.adopt(optimizer, effects=effects)
        else:
            recorder = wrapping.join(optimizer, line, effects=effects)
        if effects and not compared:
            self._comparing.setdefault(recorder, traced)
        if not making and id(optimizer) in self._order:
            self._places.setdefault(recorder, self._order[id(optimizer)])
        if recorder not in self._since:
            since = None if making else recorder.reader.baseline()
            if since is not None and not traced:  # what was found to be under way counts
                since = since._replace(older=missed if recorder is known else {})
            self._since[recorder] = since
        self._gaps.setdefault(recorder, recorder.optimizers.gaps())
        if not traced:
            self._wrapped.append(ref(optimizer))
        return recorder

    def _begin(self) -> None:
        if _TORCH in sys.modules:
            from tracer.backends.torch import optimizers

            for optimizer in optimizers.watched():
                self._meet(optimizer)
        if _OPTAX in sys.modules:
            from tracer.backends.optax import updates

            for update in updates.watched():
                self._meet(update)
        alive = _optimizers()
        self._order = {id(optimizer): place for place, optimizer in enumerate(alive)}
        classes = {id(type(each)): type(each) for each in alive}  # hundreds may be of one
        on_tensorflow = {key for key, cls in classes.items() if _is_of_tensorflow(cls)}
        if on_tensorflow:
            self._begin_on_tensorflow([each for each in alive if id(type(each)) in on_tensorflow])
        if len(on_tensorflow) < len(classes):
            # Only TensorFlow tells in time of what runs without Python: no other can wait.
            self._meet_outermost([each for each in alive if id(type(each)) not in on_tensorflow])

    def _begin_on_tensorflow(self, alive: Sequence[Any]) -> None:
        """Meet those of which functions may run what no call tells of, and wait for the others."""
        from tracer.backends.tensorflow import users
        from tracer.hooks import waiting

        users.listen()
        at_once = waiting.met_at_once(alive, effects=self._effects)
        self._wait_for([each for each in alive if id(each) not in at_once])
        if at_once:
            with users.one_moment():
                self._meet_outermost([each for each in alive if id(each) in at_once])

    def _wait_for(self, optimizers: Sequence[Any]) -> None:
        """Meet these when they are called first; what they do without Python is known by then."""
        from tracer.core import registry
        from tracer.hooks import waiting

        for optimizer in optimizers:
            self._waiting[id(optimizer)] = ref(optimizer)
            recorder = registry.recorder_of(optimizer)
            if recorder is not None and recorder.used and recorder.blocks.counters.in_programs:
                self._quiet.add(recorder)
                self._places.setdefault(recorder, self._order[id(optimizer)])
                recorder.awaited = _graph_called
            if waiting.wait(optimizer, _called_first):
                self._wrapped.append(ref(optimizer))

    def _meet_outermost(self, optimizers: Sequence[Any]) -> None:
        """Trace these, each as the root of what is nested in it."""
        from tracer.hooks.family import nested_in

        inner = {id(nested) for optimizer in optimizers for nested in nested_in(optimizer)}
        for optimizer in optimizers:
            if id(optimizer) not in inner:
                self._meet(optimizer)

    def _meet_waiting(self, optimizer: Any) -> None:
        """An optimizer is called for the first time: trace it, and what belongs to it."""
        if not self.waits_for(optimizer):
            return
        from tracer.backends.registered import backend_of
        from tracer.core import registry
        from tracer.core.recorder import Recorder
        from tracer.hooks import waiting
        from tracer.hooks.family import kind_to_trace

        try:
            if self._groups is None:
                others = (each() for each in list(self._waiting.values()))
                self._groups = waiting.groups([each for each in others if each is not None])
            group = [each() for each in self._groups.get(id(optimizer), [ref(optimizer)])]
            members = [each for each in group if each is not None and self.waits_for(each)]
            for member in members:
                del self._waiting[id(member)]
            self._meet_outermost(sorted(members, key=lambda each: self._order[id(each)]))
        except Exception as error:
            recorder = registry.recorder_of(optimizer)
            if recorder is None:
                recorder = Recorder(backend_of(kind_to_trace(optimizer)))
            recorder.fault(error)
            self._since.setdefault(recorder, None)

    def _begin_to_count(self, recorder: "Recorder") -> None:
        """A graph is about to run that counts for an optimizer which it waits for."""
        if recorder in self._quiet and recorder not in self._since:
            self._since[recorder] = recorder.reader.baseline()

    def _place(self, recorder: "Recorder") -> int:
        """Where its optimizer is among those that were there when the block began, or after."""
        return self._places.get(recorder, len(self._order))

    def waits_for(self, optimizer: Any) -> bool:
        """Whether it is to be met when it is called first."""
        known = self._waiting.get(id(optimizer))
        return known is not None and known() is optimizer

    def _needs(self, optimizer: Any) -> bool:
        """Whether it has to stay traced."""
        from tracer.core import registry

        return self.waits_for(optimizer) or registry.recorder_of(optimizer) in self._since

    def _finish(self) -> None:
        alive = _optimizers()
        if alive:
            from tracer.core import registry
            from tracer.hooks.family import is_made

            met = {id(each.optimizer()) for each in self._refused}
            met |= {id(unmade()) for unmade in self._unmade}
            unseen = [each for each in alive if registry.recorder_of(each) is None]
            self._missed = {
                type(each).__name__
                for each in unseen
                if id(each) not in met and not self.waits_for(each) and is_made(each)
            }
        self.end()

    def end(self) -> None:
        """Freeze the trace, and unwrap what was not wrapped before.

        What another recording still holds, as in another thread, is left to that one.
        """
        self._end = self.trace()
        _open.remove(self)
        alive = [optimizer for each in self._wrapped if (optimizer := each()) is not None]
        if alive or self._order:
            from tracer.core import registry
            from tracer.hooks import wrapping

            with _lock:
                others = list(_open)
                for key in self._order:
                    if not any(key in each._waiting for each in others):
                        registry.waiting.pop(key, None)
                for optimizer in alive:
                    heir = next((each for each in others if each._needs(optimizer)), None)
                    if heir is not None:  # of another thread, or it would have ended before
                        heir._wrapped.append(ref(optimizer))
                    elif registry.is_traced(optimizer):
                        wrapping.release(optimizer)
                    else:
                        registry.set_class(optimizer, registry.plain_class(type(optimizer)))
        for recorder, traced_before in self._comparing.items():
            other = _compares_too(recorder)
            if other is not None:
                other._comparing[recorder] = traced_before
            elif not recorder.compares_for_program:
                recorder.compare(False, retrace=traced_before)  # else it is traced no more
        self._comparing.clear()
        self._since.clear()
        self._asked.clear()
        self._waiting.clear()
        self._quiet.clear()
        self._places.clear()
        self._gaps.clear()


def _compares_too(recorder: "Recorder") -> Recording | None:
    """A recording that goes on and has the same variables compared."""
    for each in list(_open):
        if each._effects and recorder in each._since:
            return each
    return None


_UNWRAPPED = (
    "an optimizer was unwrapped in the block: what it did until it was wrapped again, or the block "
    "ended, may not be counted"
)
_NOT_WRAPPED = (
    "optax is imported, and its transformations are counted only if the program wraps them: "
    "tx = tracer.wrap(tx)"
)


class _Refused(NamedTuple):
    """An optimizer that cannot be traced: it matters only if it is used."""

    optimizer: ref[Any]
    counts: list[int] | None
    note: str

    def may_have_run(self) -> bool:
        optimizer = self.optimizer()
        counts = None if optimizer is None else _counts_of(optimizer)
        return counts is None or counts != self.counts


def _counts_of(optimizer: Any) -> list[int] | None:
    """How often it and those nested in it say that they stepped; None if they do not say it."""
    from tracer.backends.registered import backend_of
    from tracer.hooks.family import family

    counts = []
    try:
        for member, kind in family(optimizer):
            known = member._iterations is not None
            count = backend_of(kind).iterations_of(member) if known else 0
            if count is None:
                return None
            counts.append(count)
    except (UnsupportedOptimizer, AttributeError):  # another backend, or tf.compat.v1.train
        return None
    return counts


@contextmanager
def record(
    met: "Callable[[Recorder], None] | None" = None, *, effects: bool = False
) -> Iterator[Recording]:
    """Trace every optimizer that is used in the block: see `tracer.record`, and `Recording`."""
    recording = Recording(met, effects=effects)
    with _lock:
        _active.append(recording)
        _listen()
    try:
        recording._begin()
        yield recording
    finally:
        with _lock:
            _active.remove(recording)
            _listen_to_torch(False)
        recording._finish()


@contextmanager
def recording_of(*optimizers: object, effects: bool = False) -> Iterator[Recording]:
    """Trace these optimizers only, for the block: see `tracer.api.recording_of`."""
    recording = Recording(effects=effects)
    try:
        for optimizer in optimizers:
            recording.take(optimizer)
        yield recording
    finally:
        recording.end()


def _ran(data: TraceData, known: frozenset[str]) -> bool:
    """Whether there is something to say of an optimizer, beside notes that were `known` before."""
    return (
        bool(set(data.notes) - known)
        or any(block.total for block in data.blocks)
        or any(calls.eager or calls.tracing for calls in data.calls)
    )


def _was_compiled(data: TraceData) -> bool:
    """Whether `fit` came to its end with an optimizer that somebody chose, and that never stepped.

    RMSprop is what `compile` makes if it is given none, as where a model has others of its own.
    """
    from tracer.core.optimizers import FITTED

    return any(
        remark.code == FITTED and not each.class_name.endswith(".RMSprop")
        for each in data.optimizers
        for remark in each.remarks
    )


def _is_of_tensorflow(cls: type) -> bool:
    """Whether TensorFlow runs what the optimizers of a class do."""
    from tracer.backends.registered import name_of

    kind = kind_of(cls)
    return kind is not None and name_of(kind) == "tensorflow"


def _optimizers() -> list[Any]:
    """Every optimizer that is alive."""
    alive = _living.all()
    classes = {id(type(each)): type(each) for each in alive}  # a class may forbid to be hashed
    optimizers = {key for key, cls in classes.items() if kind_of(cls) is not None}
    return [each for each in alive if id(type(each)) in optimizers]


# Those that wait.


def _called_first(optimizer: Any) -> None:
    """An optimizer is called that blocks may wait for; other threads that call it wait here."""
    from tracer.core import registry

    with _lock:
        for recording in list(_active):
            recording._meet_waiting(optimizer)
        registry.waiting.pop(id(optimizer), None)


def _graph_called(recorder: "Recorder") -> None:
    """A graph is about to run that counts for a recorder, whose optimizers blocks may wait for."""
    with _lock:
        for recording in list(_active):
            recording._begin_to_count(recorder)
        recorder.awaited = None


# Those that are made later.


def _heard(optimizer: Any) -> None:
    if kind_of(type(optimizer)) is not None:
        for recording in list(_active):
            recording._meet(optimizer, making=True)


def _failed(optimizer: Any) -> None:
    if kind_of(type(optimizer)) is not None:
        for recording in list(_active):
            recording._fail_to_meet(optimizer)


_lock = threading.RLock()
_active: list[Recording] = []
_open: list[Recording] = []
"""Those that have not ended; those in `_active` are also told of new optimizers."""
_living = Living(_heard, _failed)
_watching: set[str] = set()


def _listen() -> None:
    """Be told of new instances of the classes that are imported, and of others once they are."""
    for home in dict.fromkeys(home for home, _ in MAKERS):
        if home not in _watching:
            _watching.add(home)
            if home in sys.modules:
                _tell_of(sys.modules[home])
            else:
                wrapt.register_post_import_hook(functools.partial(_tell_of, new=True), home)
    if _TORCH in sys.modules:
        _listen_to_torch(True)
    elif _TORCH not in _watching:
        _watching.add(_TORCH)
        wrapt.register_post_import_hook(lambda module: _listen_to_torch(True), _TORCH)


_TORCH = "torch"  # its whole package: `torch.optim` is imported amid of it


def _listen_to_torch(begin: bool) -> None:
    """Be told of the optimizers of PyTorch that step, while anything is recorded.

    They need not be told of when they are made: the hook of any of them sees its first step.
    """
    with _lock:
        if begin and _active:
            from tracer.backends.torch import optimizers

            optimizers.listen(_stepped)
        elif not begin and not _active and _TORCH in sys.modules:
            from tracer.backends.torch import optimizers

            optimizers.ignore(_stepped)


_OPTAX = "optax"


def meet(optimizer: Any) -> None:
    """An optimizer is wrapped while recordings run, which nothing else would tell of it."""
    for recording in list(_active):
        recording._meet(optimizer)


def wrap_transformation(given: T, *, retrace: bool, effects: bool) -> T:
    """A transformation of optax that does what `given` does, and is counted."""
    from tracer.backends.optax import updates
    from tracer.backends.registered import backend_of
    from tracer.core import registry
    from tracer.core.recorder import Recorder
    from tracer.hooks import wrapping
    from tracer.hooks.lines import line_of_caller

    made, update = given, updates.standing_for(given)
    known = registry.recorder_of(update)
    if known is None:
        recorder = Recorder(backend_of(updates.KIND))
        made, update = updates.traced(given, recorder, line_of_caller(given))
    wrapping.hold(update, known, retrace=retrace, effects=effects)
    meet(update)
    return made


def _stepped(optimizer: Any) -> None:
    """An optimizer of PyTorch takes a step that is its first, or its first with hooks."""
    from tracer.hooks.lines import line_of_caller

    for recording in list(_active):
        recording._meet(optimizer, line=line_of_caller(optimizer))


def _tell_of(module: ModuleType, new: bool = False) -> None:
    with _lock:
        for home, name in MAKERS:
            cls = getattr(module, name, None)
            if home == module.__name__ and cls is not None:
                _living.tell_of(cls, new=new)
