"""What a recorder asks of the framework that trains: `Backend`, and the parts that it makes.

All defaults are those of a framework where each execution is a call of Python on one process, such
as PyTorch in eager mode. A backend derives a class from `Backend` and from each part that differs:
what it compiles to programs it counts by itself.
"""

import platform
import sys
import threading
import warnings
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from time import perf_counter
from types import FrameType
from typing import Any, ClassVar, NamedTuple
from weakref import ref

from msgspec.structs import replace

from tracer.core.call_paths import UNKNOWN
from tracer.core.callers import Callers
from tracer.core.calls import EAGER, Call, CallRole, CallsUnderWay, outermost, start_call
from tracer.core.collectors import Collector, Collectors
from tracer.core.counters import CountedBlock, Counters, Source
from tracer.core.effects import NO_PAIRS
from tracer.core.interrupts import interrupt_in, suppress_faults
from tracer.core.late_wrap import StaleFunctions
from tracer.core.sites import SiteTable
from tracer.core.stamps import UNIT
from tracer.core.tracings import Definition, Part, StepCall, Tracings
from tracer.model.names import distinct, plain_name
from tracer.model.records import Kind, Remark, Variable

SMALL = 4096
"""How many elements a variable may have whose value is looked at."""
ENOUGH = 8
"""How many variables are looked at."""


class Surroundings(NamedTuple):
    """Where an optimizer runs, as its strategy says."""

    strategy: str
    worker: str
    """This process, as its framework names it: `worker:0`; empty if it is no cluster."""
    cluster: tuple[str, ...]
    """All the processes that train."""


NO_STRATEGY = Surroundings("", "", ())


class Iterations(NamedTuple):
    """An optimizer's own count of its steps at some moment."""

    steps: int
    stepping: bool
    """Whether its first step had started."""


class Stepped(NamedTuple):
    """An optimizer that is traced, and how far its own count of its steps was."""

    name: str
    optimizer: Any
    started: int | None
    """The count when it was wrapped; None if it had none, or if a file has set it since."""


class Root:
    """One root optimizer, as the parts of its recorder share it; its `Recorder` is one."""

    stepped_last: ClassVar[Any] = None
    """The table of sites of the recorder that stepped last: each has one, which is small."""
    optimizers: Any
    """The optimizers: see `optimizers.Optimizers`, which asks the backend."""
    variables: "Variables"
    blocks: "Blocks"
    collectors: Collectors

    def __init__(self, backend: "Backend") -> None:
        self.backend = backend
        self.sites = SiteTable()
        self.calls_under_way = CallsUnderWay()
        self.devices: dict[int, str] = {}
        """Where the variables of each replica are."""
        self.broken = False
        """Whether the tracer has failed, and counts no more."""
        self.notes: dict[str, None] = {}
        """What was not seen, in the order in which it was noted."""
        self.where = NO_STRATEGY
        """The strategy, as the first step that ran under one found it."""

    def note(self, text: str) -> None:
        """Say in the trace that something was not seen."""
        self.notes.setdefault(text)

    def called(self) -> None:
        """A function with a step in it is called."""
        if self.stepped_last is not self.sites:
            self.take_turn()
        if perf_counter() >= self.collectors.throttle.due:
            self.collectors.function_called()

    def take_turn(self) -> None:
        """A step begins, or a program with one runs: tell it, if another recorder had the last."""
        if self.stepped_last is not self.sites:
            Root.stepped_last = self.sites  # threads that step at once may both take it, or none
            self.optimizers.take_turn()

    def fault(self, error: BaseException) -> None:
        """Something failed in the tracer itself: say so once, and let training go on untraced.

        An exception of the program is raised again.
        """
        interrupt = interrupt_in(error)
        if interrupt is not None:
            self.note(
                f"{type(interrupt).__name__} interrupted the tracer: what the program did just "
                "then may not be counted"
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
        try:
            return self.blocks.counters.steps()
        except Exception:
            return 0  # asked after a fault too, and the ledger may be what is broken


class Variables:
    """The variables that were seen, each with its index: held weakly, and compared by identity."""

    def __init__(self, root: Root) -> None:
        self.objects: list[ref[Any] | None] = []
        """For each row its variable; None for an argument."""
        self._lock = threading.RLock()
        self._index: dict[Any, tuple[ref[Any], int]] = {}
        self._plain: list[Variable] = []
        self._row: Callable[[Any], Variable] = root.backend.row

    def index(self, variable: Any, graph: Any) -> int:
        """The index of `variable`, or of the argument that it stands for in `graph`.

        It gets one when it is asked for first.
        """
        known = self._known(variable)
        if known is not None:
            return known
        with self._lock:
            known = self._known(variable)
            if known is not None:  # another thread has seen it meanwhile
                return known
            row = self._row(variable)
            index = len(self._plain)
            self.objects[index:] = [ref(variable)]  # a signal handler may raise between two lines
            self._plain.append(row)
            self._index[id(variable)] = (ref(variable), index)
        return index

    def _known(self, variable: Any) -> int | None:
        """The index of `variable`; None if it has none."""
        known = self._index.get(id(variable))
        return known[1] if known is not None and known[0]() is variable else None

    @property
    def rows(self) -> list[Variable]:
        """What a trace says of each variable; a name that repeats has its number: `kernel#2`."""
        plain = self.plain
        names = distinct(each.name for each in plain)
        return [replace(each, name=name) for name, each in zip(names, plain, strict=True)]

    @property
    def plain(self) -> list[Variable]:
        """The same with the names that they came with: nothing is searched, so a step may ask."""
        return list(self._plain)


class Blocks:
    """The blocks of one root optimizer, and where they are counted; thread-safe."""

    new_effects: type[Any] | None = None
    """Makes what compares the variables of each step; it is called with `Root.note`."""
    steps_models = False
    """Whether a step has all variables of a model at once, each with a state of its own."""
    no_effects = "effects are not known: this backend does not compare variables"

    def __init__(self, root: Root) -> None:
        self.counters = Counters()
        self.callers = Callers()
        self.tracings = Tracings()
        self.write_checks: Any = None
        """Which sites of updates were seen to write to their variable; None: all are taken to."""
        self.threads: set[int] = set()
        """The threads that called a function with a block in it."""
        self.called_by_apply_methods = False
        """Whether an apply method called such a function, ever."""
        self._root = root
        self._sites = root.sites
        self._note = root.note

    def close(self, call: Call, failed: bool) -> None:
        """All that was called from `call` executes as a whole: count it.

        `failed` if an error ended it.
        """
        step = call.parent is None and call.role == "step"
        self._note_missing_pairs(call)
        parts: Iterable[tuple[int, Sequence[int]]] = ((call.replica, call.sites),)
        if call.distributed:
            parts = self._by_replica(call)
        path = self._path_to(call)
        effects = self.counters.effects if step else None
        for replica, sites in parts:
            block = CountedBlock(replica, call.function, step, tuple(sites), path)
            seen = () if effects is None else effects.seen(call, replica)
            self.log(block, seen, call)

    def _by_replica(self, call: Call) -> Iterable[tuple[int, list[int]]]:
        """The sites of a call, by their replicas."""
        parts: dict[int, list[int]] = defaultdict(list)
        for number in call.sites:
            parts[self._sites.sites[number].replica].append(number)
        return parts.items()

    def log(self, block: CountedBlock, seen: Iterable[Source], call: Call | None = None) -> None:
        """Count an execution of a block, the call `call`, and what was `seen` of its variables."""
        with self.counters.lock:  # who reads finds the number in the log, or not taken
            number = 0
            if block.step and call is not None:
                number = self.number_of(call, block.replica)
            elif block.step:
                number = self.counters.take_number(block.replica)
            stamp = UNIT * number
            self.counters.log(block, stamp)
            if seen:
                self.counters.compared.log(block.replica, seen, stamp)

    def number_of(self, step: Call, replica: int) -> int:
        """The number of a step in eager mode, which it takes when it is asked for first."""
        if step.numbers is None:
            step.numbers = {}
        number = step.numbers.get(replica)
        if number is None:
            number = step.numbers[replica] = self.counters.take_number(replica)
        return number

    def _note_missing_pairs(self, call: Call) -> None:
        """Say it if effects are asked for, and an update is part of a step that got no pairs."""
        if self.counters.effects is not None:
            step, all_sites = outermost(call), self._sites.sites
            updates = any(all_sites[number].role == "update" for number in call.sites)
            requests = any(all_sites[number].role == "request" for number in step.sites)
            if step.role == "step" and updates and not requests:
                self._note(NO_PAIRS)

    def _path_to(self, call: Call) -> int:
        """The path to a call that this thread makes."""
        if call.path == UNKNOWN:
            self.find_path(call, sys._getframe(1))
        return call.path

    def find_path(self, call: Call, python: Any) -> None:
        """Note by which path of calls `python` made the call `call`, in eager mode."""
        called = self._sites.sites[call.own[0]][:2] if call.own else None
        call.path = self.callers.paths.above(python, called)

    def wait(self) -> None:
        """Wait until all that the program has started is counted; no lock is held."""

    def begun(self) -> int:
        """How many steps have begun, those included that are not counted yet."""
        return self.counters.steps()

    def doubts(self) -> Iterator[str]:
        """Notes on what the steps of a trace may have done unseen, if it has any."""
        return iter(())

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Notes on what ran and was not counted, as far as the optimizers' own counts tell it."""
        return iter(())

    def is_behind(self, optimizer: Any) -> bool:
        """Whether its own count of steps is not what it tells: the program holds it elsewhere."""
        return False

    def remarks(self) -> tuple[Remark, ...]:
        """What the rules of findings should know of how it ran."""
        return ()

    def note(self, call: Call) -> None:
        """Note what is to be known of the sites of a call that ends: `Call.site_notes`."""

    def is_stale(self, call: Call, replica: int) -> bool:
        """Whether a step that is traced has gradients of weights from before the last step."""
        return False

    def note_traced(
        self,
        call: Call,
        sites: Iterable[int],
        program: Any,
        part: Part,
        define: Callable[[], tuple[Definition, int]],
        failed: bool,
    ) -> None:
        """A block with these sites was traced into `program`; the lock of the counters is held.

        See `Tracings.add`.
        """
        tracing = self.tracings.add(program, part, define, self.counters.steps)
        tracing.failed |= failed
        if part.step:
            keys = (self._sites.sites[number] for number in sites)
            variables = frozenset(each.variable for each in keys if each.role == "request")
            gradient = None if call.gradient is None else ref(call.gradient)
            step = StepCall(variables, gradient, self.is_stale(call, part.replica))
            graph = call.place.graph
            tracing.add_step(graph, part.replica, step, of_models=self.steps_models)

    def compare(self, wanted: bool) -> bool:
        """Compare the variables of each step, or no more; returns whether that is new."""
        new = self.new_effects
        if new is not None:
            return self.counters.compare(wanted, lambda: new(self._note))
        if wanted:
            self._note(self.no_effects)
        return False

    def forget_graphs(self) -> None:
        """Let each function with a counter in its graph be traced again."""

    def end(self) -> None:
        """Tracing of an optimizer ends; what was counted goes on counting."""


class Backend:
    """The answers for one framework; stateless, and one for all recorders."""

    packages: tuple[str, ...] = ()
    """The modules whose versions a trace has, if the program imported them."""
    new_variables: type[Variables] = Variables
    new_blocks: type[Blocks] = Blocks
    new_stale: type[StaleFunctions] = StaleFunctions
    collectors: tuple[type[Collector], ...] = ()
    """Those that gather evidence for findings of this framework."""
    raised_by_programs: tuple[type[BaseException], ...] = ()
    """The errors that may end a function after a part of its work had been done."""
    raised_to_stop: tuple[str, ...] = ()
    """The names of errors that only say that the thread failed for which this one waited."""

    # Of a call, on the thread that makes it.

    def locate(
        self, call: Call, role: CallRole, stack: list[Call], calls_under_way: CallsUnderWay
    ) -> bool:
        """Write into a new call where it is made, and what it is part of.

        `stack` is that of this thread, on which the call is not yet. Returns False if nothing is
        to be noted of the call: see `start_call`.
        """
        return start_call(call, role, EAGER, 0, stack[-1] if stack else None)

    def eager_replica(self, replica: int) -> int | None:
        """The replica that an apply method updates now, called in eager mode from a step of
        `replica`; None if it is not executed now.
        """
        return replica

    def kind_of_gradient(self, gradient: Any) -> Kind:
        """Whether a gradient is dense, sparse or None."""
        return "none" if gradient is None else "dense"

    def tensor_of(self, gradient: Any) -> Any | None:
        """The tensor in a program by which a gradient comes; None if it is there from the start."""
        return None

    def device_of(self, variable: Any) -> str:
        """Where the copy of `variable` is that the current replica updates; empty if unknown."""
        return ""

    def surroundings(self) -> Surroundings:
        """The strategy under which this call is made."""
        return NO_STRATEGY

    def function_around(self, graph: Any) -> str:
        """The name of the outermost function whose program `graph` is in."""
        return ""

    def caller_of(self, helper: FrameType) -> FrameType | None:
        """Python's frame of the apply method that calls `helper`, another such frame."""
        return helper.f_back

    # Of variables and optimizers.

    def canonical(self, variable: Any) -> Any:
        """The one object that stands for a variable, whatever copy or wrapper of it is given."""
        return variable

    def row(self, variable: Any) -> Variable:
        """What a trace says of a variable, by the name that it came with."""
        return Variable(plain_name(variable), tuple(map(int, variable.shape)), str(variable.dtype))

    def value_of(self, variable: Any, most: int) -> Any:
        """What a variable of 1 to `most` elements holds, as an array of NumPy.

        None if it is none, or another one, or cannot be read now.
        """
        return None

    def iterations_of(self, optimizer: Any) -> int | None:
        """The optimizer's own count of its steps; None if it has none or it cannot be read now."""
        number = self.number_in(getattr(optimizer, "_iterations", None))
        return None if number is None else int(number)

    def rate_of(self, optimizer: Any) -> Any:
        """Its learning rate: a number, a variable, or a schedule."""
        own = object.__getattribute__(optimizer, "__dict__")
        hyper = own.get("_hyper")  # of legacy optimizers
        return own.get("_learning_rate") if hyper is None else hyper.get("learning_rate")

    watches_rates = False
    """Whether to read the rates takes no longer than to compare them, so each step may."""

    def rates_of(self, optimizer: Any) -> Sequence[tuple[Any, Any, int]]:
        """The learning rate and the weight decay of each group, and how many variables it has."""
        own = object.__getattribute__(optimizer, "__dict__")
        rate, decay = self.rate_of(optimizer), own.get("weight_decay")
        rate = rate if isinstance(rate, float | int) else self.number_in(rate)
        return [(rate, decay, 0)]

    def groups_of(
        self, optimizer: Any, variables: Sequence[Any]
    ) -> Iterable[tuple[Sequence[Any], Sequence[Any]]]:
        """Of each group its variables, and those of them that decay if it has a decay.

        `variables` are all that the optimizer and those around it were asked for.
        """
        decays = getattr(optimizer, "_use_weight_decay", lambda variable: True)
        return [(variables, [each for each in variables if decays(each)])]

    def slots_of(self, optimizer: Any) -> int | None:
        """How many variables it keeps and uses for those that it updates; None if not known."""
        own = object.__getattribute__(optimizer, "__dict__")
        by_variable = own.get("_slots")
        if isinstance(by_variable, dict):  # legacy and v1: each is made when it is needed
            return sum(len(each) for each in by_variable.values())
        every = own.get("_variables")
        if not isinstance(every, list):
            return None
        if own.get("momentum") == 0 and type(optimizer).__name__ == "SGD":
            return 0  # that of tf_keras makes them, and does not use them
        names = ("_iterations", "_learning_rate", "_current_learning_rate")
        others = {id(own.get(name)) for name in names}
        return sum(id(each) not in others for each in every)

    def is_restored(self, optimizer: Any) -> bool:
        """Whether a checkpoint has set that count, as it does when it is made after it."""
        return False

    # Made of these answers.

    def number_in(self, variable: Any) -> float | None:
        """What a variable of one element holds; None if there is none, or it cannot be read now."""
        value = None if variable is None else self.value_of(variable, 1)
        return None if value is None else float(value.item())

    def values_of(self, variables: Sequence[Any]) -> int | None:
        """A number made of the values of the first small variables; None if they cannot be read.

        If all elements of some are the same, as before the first step those of a bias are, it is
        made of these: who makes all weights again, at random, makes them as they were.
        """
        with suppress_faults():
            found = (self.value_of(each, SMALL) for each in variables)
            values = list(islice((each for each in found if each is not None), ENOUGH))
            number = 0
            for value in [each for each in values if each.min() == each.max()] or values:
                number = zlib.crc32(value.tobytes(), number)
            return number if values else None
        return None

    def versions(self) -> dict[str, str]:
        """The versions of what the program imported: `{"python": "3.11.7", ...}`."""
        found = {
            name: getattr(sys.modules.get(name), "__version__", None) for name in self.packages
        }
        known = {name: str(version) for name, version in found.items() if version is not None}
        return {"python": platform.python_version()} | known
