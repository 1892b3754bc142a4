"""Defines what a recorder asks of a framework: `Backend`, and the parts that a backend makes.

The defaults suit a framework that runs eagerly in one process, such as PyTorch in eager mode. A
backend subclasses `Backend` and each part that differs, and counts its compiled programs itself.
"""

import inspect
import platform
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from msgspec.structs import replace

from tracer.core import locks
from tracer.core.call_paths import Paths
from tracer.core.calls import EAGER, Call, CallsUnderWay, SiteTable, Step, start_call
from tracer.core.collectors import Collector, Collectors
from tracer.core.counters import UNIT, CountedBlock, Counters, HostLog
from tracer.core.late_wrap import StaleFunctions
from tracer.core.tracings import Tracings
from tracer.errors import interrupt_in
from tracer.model.evidence import Evidence
from tracer.model.names import distinct, plain_name
from tracer.model.records import Kind, Note, NoteKind, Variable


class Surroundings(NamedTuple):
    """The strategy, worker and cluster in which an optimizer runs."""

    strategy: str
    worker: str
    """The framework's name for this process: `worker:0`; empty outside a cluster."""
    cluster: tuple[str, ...]
    """All training processes."""


NO_STRATEGY = Surroundings("", "", ())


class Root:
    """The state that all parts of a recorder share; the base class of `Recorder`."""

    optimizers: Any
    """An `optimizers.Optimizers`; that module imports this one."""
    variables: "Variables"
    blocks: "Blocks"
    collectors: Collectors

    def __init__(self, backend: "Backend") -> None:
        self.backend = backend
        self.sites = SiteTable()
        self.calls_under_way = CallsUnderWay()
        self.devices: dict[int, str] = {}
        """The device of each replica's variables."""
        self.broken = False
        """Whether the tracer has failed and stopped counting."""
        self.notes: dict[Note, None] = {}
        """The notes on the steps of all traces, in order."""
        self.where = NO_STRATEGY
        """The surroundings of the first step that ran under a strategy."""

    def note(self, text: str, kind: NoteKind = "missed") -> None:
        """Add a note to the trace, once."""
        self.notes.setdefault(Note(text, kind))

    def fault(self, error: BaseException) -> None:
        """Report a failure of the tracer, once; training goes on and nothing more is counted.

        Reraises an exception of the program (`interrupt_in`).
        """
        interrupt = interrupt_in(error)
        if interrupt is not None:
            self.note(
                f"{type(interrupt).__name__} interrupted the tracer: what the program did at that "
                "moment may not be counted"
            )
            raise interrupt
        if self.broken:
            return
        self.broken = True
        step = self.step_count() + 1
        self.note(
            f"the tracer failed with {type(error).__name__}: {error}; nothing is counted from step "
            f"{step} on"
        )
        text = (
            f"tracer: {type(error).__name__}: {error}. Training goes on, untraced from step {step} "
            "on. This is a bug in tracer: please report it."
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        except RuntimeWarning:  # warnings are errors here, but this one must not stop training
            print(text, file=sys.stderr)

    def step_count(self) -> int:
        """How many steps have begun."""
        try:
            return self.blocks.counters.steps()
        except Exception:
            return 0  # also asked after a fault, perhaps of the ledger itself


_tables: "WeakSet[Variables]" = WeakSet()


def passed_to_any() -> set[int]:
    """The ids of the plain references to all variables that any traced optimizer got."""
    return {id(each) for table in list(_tables) for each in list(table.objects)}


class Variables:
    """The variables seen so far, each with an index; held weakly and compared by identity."""

    def __init__(self, root: Root) -> None:
        _tables.add(self)
        self.objects: list[ref[Any]] = []
        """The variable of each row, or what stands for an argument."""
        self._lock = locks.new_lock("rows")
        self._index: dict[Any, tuple[ref[Any], int]] = {}
        self.plain: list[Variable] = []
        """The records with unnumbered names."""
        self._row: Callable[[Any], Variable] = root.backend.row

    def index(self, variable: object, graph: object, named: object = None) -> int:
        """Return the index of `variable`, or of the argument that it stands for in `graph`.

        The first request assigns the index, and the name: that of `named`, an object around the
        variable, if there is one.
        """
        known = self._known(variable)
        if known is None:
            row = self._row(variable if named is None else named)
            with self._lock:
                known = self._known(variable)
                if known is None:  # no other thread has added it meanwhile
                    known = len(self.plain)
                    self.objects[known:] = [ref(variable)]  # a signal may come between two lines
                    self.plain.append(row)
                    self._index[id(variable)] = (ref(variable), known)
        return known

    def _known(self, variable: object) -> int | None:
        known = self._index.get(id(variable))
        return known[1] if known is not None and known[0]() is variable else None

    @property
    def rows(self) -> list[Variable]:
        """The records of all variables for a trace; repeated names are numbered: `kernel#2`."""
        plain = list(self.plain)
        names = distinct(each.name for each in plain)
        return [replace(each, name=name) for name, each in zip(names, plain, strict=True)]


class Blocks:
    """Makes and counts the blocks of one root optimizer; thread-safe."""

    new_effects: type[Any] | None = None
    """The class that compares the variables of each step; constructed with `Root.note`."""
    no_effects = "effects are unknown: this backend does not compare variables"

    def __init__(self, root: Root) -> None:
        self.counters = Counters()
        self.callers = Paths()
        self.tracings = Tracings()
        self._last: tuple[Any, HostLog] = None, HostLog()
        """The fields of the last block that Python counted, and its log: mostly also the next."""
        self._root = root
        self._sites = root.sites
        self._note = root.note

    def close(self, call: Call, failed: bool) -> None:
        """Count the sites of `call` as one block on each replica: they always execute together.

        `failed` if an error ended the call. Here they have executed, in eager mode.
        """
        path = self._path_to(call)
        for replica, sites in (
            self._by_replica(call) if call.distributed else ((call.replica, call.sites),)
        ):
            self.log(call, replica, sites, path)

    def log(self, call: Call, replica: int, sites: Sequence[int], path: int | None) -> None:
        """Count one execution of these sites, in eager mode: of a step, if `call` is outermost."""
        step = call if isinstance(call, Step) and call.parent is None else None
        effects: Any = None if step is None else self.counters.effects
        block = replica, step is not None, sites, path
        seen = () if effects is None else effects.seen(call, replica)
        with self.counters.lock:  # a reader finds the number in the log, or not taken yet
            stamp = 0 if step is None else UNIT * self.number_of(step, replica)
            if block != self._last[0]:
                known = CountedBlock(replica, "", step is not None, tuple(sites), path)
                self._last = block, self.counters.logs[known]
            self._last[1].add(stamp)
            if seen:
                effects.log(replica, seen, stamp)

    def _by_replica(self, call: Call) -> Iterable[tuple[int, list[int]]]:
        parts: dict[int, list[int]] = defaultdict(list)
        for number in call.sites:
            parts[self._sites.sites[number].replica].append(number)
        return parts.items()

    def number_of(self, step: Step, replica: int) -> int:
        """Return the number of a step in eager mode; the first request takes it, under the lock."""
        number = step.numbers.get(replica)
        if number is None:
            number = step.numbers[replica] = self.counters.clocks[replica].take()
        return number

    def _path_to(self, call: Call) -> int | None:
        """Return the path to a call of this thread; find it if it is unknown."""
        if isinstance(call, Step) and call.path is not None:
            return call.path
        return self.path_of(sys._getframe(1), call.distributed)

    def path_of(self, python: Any, distributed: bool) -> int | None:
        """The path to a call by the Python frame `python`, perhaps under a strategy."""
        return self.callers.above(python)

    def writes_to(self, variable: object) -> bool:
        """True if a function with a step, or one that calls it, may write to the variable."""
        return False

    def is_calm(self) -> bool:
        """Whether no other thread can be running a program with a block now."""
        return True

    def wait(self) -> None:
        """Wait until all work that the program has started is counted; the caller holds no lock."""

    def missed(self, names: Sequence[str], before: Mapping[int, int], past: int) -> Iterator[str]:
        """Yield notes on executions that were not counted, as the optimizers' own counts show.

        `names` are theirs. `before` has their `iterations` when the trace began, after `past`
        counted steps: steps that an optimizer made between two traces are none of this one.
        """
        return iter(())

    def is_behind(self, optimizer: object) -> bool:
        """Whether the optimizer's own count lags because the program keeps its state elsewhere."""
        return False

    def evidence(self, optimizer: int) -> tuple[Evidence, ...]:
        """Return evidence for the rules of findings on how the steps of an optimizer ran."""
        return ()

    def note(self, call: Call, failed: bool) -> None:
        """Add the backend's notes on the sites of a call that ends to `Call.site_notes`."""

    def compare(self) -> bool:
        """Compare the variables of each step from now on; returns whether this is new."""
        if self.new_effects is None:
            self._note(self.no_effects, "effects")
        elif self.counters.effects is None:
            self.counters.effects = self.new_effects(partial(self._note, kind="effects"))
            return True
        return False

    def forget_graphs(self) -> None:
        """Have each function with a counter in its graph traced again."""

    def end(self) -> None:
        """Handle the end of tracing an optimizer; existing counters keep counting."""


def described(given: object) -> str:
    """What a message calls an object that is to be traced: `an Adam`."""
    if inspect.isroutine(given):
        return f"the function {given.__name__}"
    cls = type(given)
    return f"{'an' if cls.__name__[0] in 'AEIOUaeiou' else 'a'} {cls.__name__}"


def own_attributes(optimizer: object) -> dict[str, Any]:
    """The attributes of an object, read without calling its code."""
    attributes: dict[str, Any] = object.__getattribute__(optimizer, "__dict__")
    return attributes


class Backend:
    """The answers for one framework; stateless, and shared by all recorders."""

    packages: tuple[str, ...] = ()
    """The modules whose versions a trace records if the program imported them."""
    new_variables: type[Variables] = Variables
    new_blocks: type[Blocks] = Blocks
    new_stale: type[StaleFunctions] = StaleFunctions
    collectors: tuple[type[Collector], ...] = ()
    """The collectors of evidence for the findings of this framework."""
    raised_to_stop: tuple[str, ...] = ()
    """Names of errors by which a thread only reports that another thread failed."""

    nests = True
    """Whether its optimizers may hold others of its kinds, whose steps are then part of theirs."""
    unwrapped_note = ""
    """A note for a recording that does not see what `unwrapped` returns."""
    unused_note = ""
    """A note on what `listen` cannot see, for a recording in which no optimizer was used."""

    # About seeing the calls of optimizers.

    def to_wrap(self, given: object) -> Any:
        """What `wrap` returns for `given`: an optimizer, or a copy of it that can be traced."""
        return given

    def standing_for(self, given: object) -> Any:
        """The object whose steps are seen: the optimizer itself, or the one in a proxy around it.

        Raises `UnsupportedOptimizer` if there is none.
        """
        return given

    def unwrapped(self, given: object) -> Any:
        """What `unwrap` returns for what `to_wrap` returned."""
        return given

    def introduce(self, traced: Any) -> None:
        """Complete the new `optimizers.Binding` of an optimizer."""

    def prepare(self, optimizer: object) -> None:
        """Raise `UnsupportedOptimizer` if `attach` could not attach to this optimizer."""

    def attach(self, optimizer: Any, binding: Any, *, making: bool = False) -> None:
        """Report the calls of an optimizer to the recorder of its `optimizers.Binding`.

        If it is in the `making`, a backend that sees its first step may wait for that.
        """
        raise NotImplementedError

    def detach(self, optimizer: Any, binding: Any) -> None:
        """Report no more calls of an optimizer."""
        raise NotImplementedError

    def class_of(self, optimizer: object) -> type:
        """The class of an optimizer, without what `attach` adds."""
        return type(optimizer)

    def around(self, optimizer: object) -> Iterable[Any]:
        """The living optimizers around this one that are traced with it."""
        return ()

    def living(self) -> Iterable[Any]:
        """The living optimizers; only those that may be used, if their first step is seen."""
        return ()

    def listen(self, made: Callable[..., None] | None) -> None:
        """Call `made` with each new optimizer from now on, or no more if it is None.

        With `making=True` if its `__init__`, or its first step ever, is under way.
        """

    def unused(self) -> Iterable[Any]:
        """The optimizers made in this recording that had no first step to report them."""
        return ()

    def unseen(self) -> Iterable[str]:
        """Notes on steps that are not counted in a recording that begins now."""
        return ()

    # About a call, on its thread.

    def locate(self, call: Call, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
        """Set the place and the parent of a new call.

        `stack` is the stack of this thread, without the call. Returns False if the call need not be
        recorded: see `start_call`.
        """
        return start_call(call, EAGER, 0, stack[-1] if stack else None)

    def eager_replica(self, replica: int) -> int | None:
        """Return the replica that an apply method updates in an eager step of `replica`; None if
        the method does not execute now.
        """
        return replica

    def kind_of_gradient(self, gradient: object) -> Kind:
        """Whether a gradient is dense, sparse or None."""
        return "none" if gradient is None else "dense"

    def requested(self, step: Step, gradient: object) -> None:
        """Handle a gradient that a step in a program got."""

    def device_of(self, variable: object) -> str:
        """The device of the current replica's copy of `variable`; empty if unknown."""
        return ""

    def surroundings(self) -> Surroundings:
        """The surroundings of the current call."""
        return NO_STRATEGY

    # About variables and optimizers.

    def canonical(self, variable: object) -> Any:
        """The object that identifies a variable, given any copy or wrapper of the variable."""
        return variable

    def row(self, variable: Any) -> Variable:
        """The record of a variable for a trace, with the framework's name."""
        return Variable(plain_name(variable), tuple(map(int, variable.shape)), str(variable.dtype))

    def value_of(self, variable: Any, most: int) -> Any:
        """The value of a variable of 1 to `most` elements, as a NumPy array.

        None if this is no such variable, or it cannot be read now.
        """
        return None

    def iterations_of(self, optimizer: object) -> int | None:
        """The optimizer's own count of its steps; None if it has none or cannot be read now."""
        number = self.number_in(getattr(optimizer, "_iterations", None))
        return None if number is None else int(number)

    def rate_of(self, optimizer: object) -> Any:
        """The optimizer's learning rate: a number, a variable, or a schedule."""
        own = own_attributes(optimizer)
        hyper = own.get("_hyper")  # of legacy optimizers
        if hyper is not None:
            return hyper.get("learning_rate")
        return own.get("_learning_rate", own.get("_lr"))  # of Adam in `tf.compat.v1`

    def value_at(self, schedule: Any, step: int) -> float:
        """The value of a schedule of this framework."""
        return float(schedule(step))

    watches_rates = False
    """Whether reading the rates is as cheap as comparing them, so that each step can do it."""

    looks_with_trace = False
    """Whether rates are read with a trace, too, as no call of a program can be seen."""

    def rates_of(self, optimizer: object) -> Sequence[tuple[Any, Any]]:
        """The learning rate and weight decay of each parameter group."""
        own = own_attributes(optimizer)
        rate, decay = self.rate_of(optimizer), own.get("weight_decay")
        rate = rate if isinstance(rate, float | int) else self.number_in(rate)
        if own.get("_initial_decay"):
            rate = None  # legacy: each step divides it by 1 + decay * iterations
        return [(rate, decay)]

    def groups_of(
        self, optimizer: object, variables: Sequence[Any]
    ) -> Iterable[tuple[Sequence[Any], Sequence[Any]]]:
        """Return each group's variables, and the subset that decays if the group has a decay.

        `variables` are all that the optimizer and the optimizers around it were asked to update.
        """
        is_set = getattr(optimizer, "weight_decay", None) is not None
        decays = getattr(optimizer, "_use_weight_decay", lambda variable: True)
        # Keras 3 keeps each answer; with a decay it has asked the same in the step.
        return [(variables, [each for each in variables if is_set and decays(each)])]

    def is_restored(self, optimizer: object) -> bool:
        """Whether a checkpoint has set the count of steps, also if the count was made later."""
        return False

    # Derived from these answers.

    def number_in(self, variable: object) -> float | None:
        """The value of a one-element variable; None if there is none or it cannot be read now."""
        value = None if variable is None else self.value_of(variable, 1)
        return None if value is None else float(value.item())

    def versions(self) -> dict[str, str]:
        """The versions of the imported modules: `{"python": "3.11.7", ...}`."""
        found = {
            name: getattr(sys.modules.get(name), "__version__", None) for name in self.packages
        }
        known = {name: str(version) for name, version in found.items() if version is not None}
        return {"python": platform.python_version()} | known
