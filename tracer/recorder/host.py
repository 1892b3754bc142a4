"""What a backend answers where each execution is a call of Python, as for PyTorch in eager mode.

No framework. A backend (`tracer.recorder.backend.Backend`) takes from here what is so for its own;
what it compiles to programs it has to count by itself, in classes derived from these.
"""

import platform
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, NoReturn
from weakref import ref

from tracer.kinds import OptimizerKind
from tracer.model.names import distinct
from tracer.model.records import Line, Remark, Variable
from tracer.recorder.backend import (
    Iterations,
    Stepped,
    Surroundings,
    Tracings as TracingsOfBackend,
)
from tracer.recorder.counters import CountedBlock, Counters
from tracer.recorder.effects import UNHANDED
from tracer.recorder.figures import Event, Figures, Key, TotalOf
from tracer.recorder.frames import EAGER, CallsUnderWay, Frame, FrameRole, start_frame
from tracer.recorder.older import Older
from tracer.recorder.paths import UNKNOWN, Paths
from tracer.recorder.readout import Reading
from tracer.recorder.sites import SiteTable
from tracer.recorder.stamps import UNIT

KIND_BY_TYPE = True

# Of a call: nothing is built, and this process is one replica.


def locate(
    frame: Frame, role: FrameRole, stack: list[Frame], calls_under_way: CallsUnderWay
) -> None:
    """Write into a new frame that its call is executed now, as a part of the one around it."""
    top = stack[-1] if stack else None
    parent = top.parent if top is not None and top.gathers else top
    start_frame(frame, role, EAGER, 0, parent)


def in_eager() -> bool:
    """True: what is called is executed."""
    return True


def update_replica_id() -> None:
    """None: there is no strategy that updates copies."""


def tensor_of(gradient: Any) -> None:
    """None: each gradient is there from the start."""


def surroundings() -> Surroundings:
    """No strategy."""
    return Surroundings("", "", ())


def counts_in_functions() -> bool:
    """True: there are no Sessions."""
    return True


def function_around(graph: Any) -> str:
    """Nothing is built, so there is none."""
    return ""


def may_have_run(error: BaseException) -> bool:
    """False: what ran was called from Python, and so was counted."""
    return False


def is_restored(optimizer: Any) -> bool:
    """False: its count of steps is made with it."""
    return False


def versions_of(*names: str) -> dict[str, str]:
    """The versions of Python, and of those of the modules `names` that the program imported."""
    found = {"python": platform.python_version()}
    for name in names:
        version = getattr(sys.modules.get(name), "__version__", None)
        if version is not None:
            found[name] = str(version)
    return found


# What a recorder is made of.


class Variables:
    """The variables that were met, each with its index; held weakly, told apart by identity."""

    def __init__(self, canonical: Callable[[Any], Any], row: Callable[[Any], Variable]) -> None:
        """`canonical` and `row` give what stands for a variable, and what a trace says of it.

        Names that repeat are made distinct here.
        """
        self.objects: list[ref[Any] | None] = []
        self._canonical = canonical
        self._row = row
        self._lock = threading.Lock()
        self._index: dict[int, tuple[ref[Any], int]] = {}
        self._plain: list[Variable] = []

    def knows(self, variable: Any) -> bool:
        """Whether `variable` has an index."""
        own = self._canonical(variable)
        known = self._index.get(id(own))
        return known is not None and known[0]() is own

    def index(self, variable: Any, graph: Any) -> int:
        """The index of `variable`, which it gets when it is asked for first."""
        own = self._canonical(variable)
        known = self._index.get(id(own))
        if known is not None and known[0]() is own:
            return known[1]
        with self._lock:
            index = len(self._plain)
            self.objects[index:] = [ref(own)]  # a signal handler may raise between two lines
            self._plain.append(self._row(own))
            self._index[id(own)] = (ref(own), index)
        return index

    @property
    def rows(self) -> list[Variable]:
        """What a trace says of each variable; a name that repeats has its number: `kernel#2`."""
        plain = self.plain
        names = distinct(each.name for each in plain)
        return [
            Variable(name, each.shape, each.dtype, each.argument, each.part_of)
            for name, each in zip(names, plain, strict=True)
        ]

    @property
    def plain(self) -> list[Variable]:
        """The same with the names that they came with."""
        return list(self._plain)


class Callers:
    """The paths of calls of one root optimizer."""

    def __init__(self) -> None:
        self.paths = Paths(lambda code, line: None)
        self.traced: Counter[tuple[int, int]] = Counter()

    @property
    def in_datasets(self) -> bool:
        """None runs a function."""
        return False

    def lines(self, path: int) -> tuple[Line, ...]:
        """The lines of a path; none if it is not known."""
        return () if path == UNKNOWN else self.paths.rows[path]

    def parts(
        self, block: CountedBlock, key: Hashable, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[tuple[Line, ...], Reading]]:
        """All of a block: it has one path."""
        yield self.lines(block.path), reading


class _Events:
    """No graph tracings."""

    def __init__(self) -> None:
        self.kept: list[Event] = []


class Tracings:
    """The graph tracings of one root optimizer: there are none."""

    def __init__(self) -> None:
        self.events = _Events()

    def figures(self, total_of: TotalOf) -> dict[Key, Figures]:
        """None."""
        return {}


class Assigning:
    """Whether updates write to their variables: all are taken to."""

    def idle(self, straight: Collection[int]) -> set[int]:
        """None of the sites."""
        return set()

    def look(self, site: int, variable: Any) -> None:
        """No need to look."""

    def look_again(self, site: int, variable: Any, before: Any) -> bool:
        """Nothing was looked at."""
        return True

    def traced(self, site: int, variable: Any, graph: Any, start: int) -> None:
        """What a program does is not looked at."""


def _no_ledger(device: str, steps: int) -> NoReturn:
    raise NotImplementedError("nothing is counted without Python")


class Blocks:
    """The blocks of one root optimizer, which Python counts; thread-safe."""

    def __init__(
        self,
        *,
        sites: SiteTable,
        calls_under_way: CallsUnderWay,
        devices: Mapping[int, str],
        kinds: Callable[[], set[str]],
        note: Callable[[str], None],
        fault: Callable[[BaseException], None],
        called: Callable[[], None],
    ) -> None:
        """See `tracer.recorder.backend.Backend.new_blocks`."""
        self.counters: Counters[Any, Any] = Counters(_no_ledger)
        self.callers = Callers()
        self.tracings: TracingsOfBackend = Tracings()
        self.assigning = Assigning()
        self.threads: set[int] = set()
        self.called_by_apply_methods = False
        self._sites = sites
        self._note = note

    def close(self, frame: Frame, failed: bool) -> None:
        """All that was called from `frame` has just been executed as a whole: count it."""
        step = frame.parent is None and frame.role == "step"
        if frame.path == UNKNOWN:
            self.find_path(frame, sys._getframe(1))
        block = CountedBlock(frame.replica, frame.function, step, tuple(frame.sites), frame.path)
        effects = self.counters.effects if step else None
        seen = () if effects is None else effects.seen(frame, frame.replica)
        if effects is not None:
            self._note_unhanded(frame)
        with self.counters.lock:  # who reads finds the number in the log, or not taken
            stamp = UNIT * self.counters.take_number(frame.replica) if step else 0
            self.counters.log(block, stamp)
            if effects is not None:
                effects.log(frame.replica, seen, stamp)

    def _note_unhanded(self, frame: Frame) -> None:
        """Say it if a step updates something, and was handed nothing that could be compared."""
        updates = any(self._sites.sites[number].role == "update" for number in frame.sites)
        if updates and not frame.held_at_begin:
            self._note(UNHANDED)

    def find_path(self, frame: Frame, python: Any) -> None:
        """Note by which path of calls `python` made the call `frame`."""
        called = None if frame.site is None else self._sites.sites[frame.site][:2]
        frame.path = self.callers.paths.above(python, called)

    def gathered(self, frame: Frame) -> None:
        """Nothing is to be said of it."""

    def wait(self) -> None:
        """Nothing runs without Python."""

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Nothing runs without Python."""
        return iter(())

    def is_behind(self, optimizer: Any) -> bool:
        """No: it counts in its variable."""
        return False

    def remarks(self) -> tuple[Remark, ...]:
        """None."""
        return ()

    def note_update(self, frame: Frame) -> None:
        """Nothing is to be remembered."""

    def forget_graphs(self) -> None:
        """There are none."""

    def end(self) -> None:
        """Nothing is to be ended."""


class Handing:
    """What of a model is trainable is not looked at."""

    def __init__(self, variables: Any, iterations: Callable[[], Mapping[int, Iterations]]) -> None:
        """See `tracer.recorder.backend.Backend.new_handing`."""

    def traced(self, handed: Iterable[Any]) -> None:
        """Nothing is looked at."""

    def called(self) -> None:
        """Nothing is looked at."""

    def never_handed(self) -> tuple[str, ...]:
        """None that is known."""
        return ()

    def frozen(self) -> tuple[str, ...]:
        """None that is known."""
        return ()


class OlderFunctions:
    """Functions that were traced before the tracer came: there are none."""

    begins_anew = ""

    def __init__(self) -> None:
        self.calls: Counter[Older] = Counter()
        self.unsettled: set[int] = set()

    def find(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Nothing is to be found."""

    def begin(self, index: int, since: int | None = None) -> None:
        """All is counted from now on."""

    @property
    def watching(self) -> bool:
        """Nothing is."""
        return False

    def settle(self, index: int, optimizer: Any, kind: OptimizerKind, name: str) -> None:
        """Nothing is to be found."""

    def let_go(self, index: int) -> None:
        """Nothing is watched."""

    def in_pipelines(self) -> list[Older]:
        """None."""
        return []

    def traced_anew(self) -> Counter[Older]:
        """None."""
        return Counter()

    def other_now(self) -> list[Older]:
        """None."""
        return []
