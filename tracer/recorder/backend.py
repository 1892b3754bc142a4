"""What a backend answers: all that recorders have to know of the framework that trains.

A recorder counts for optimizers of one framework, and asks the module of that framework: for
TensorFlow `tracer.recorder.tensorflow.backend`. `Backend` is what such a module offers; the other
classes here are what the objects that it makes have to do. `tracer.recorder.host` is a backend for
frameworks where each execution is a call of Python, from which others may take what is the same.
"""

import zlib
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol
from weakref import ref

from tracer.kinds import OptimizerKind
from tracer.model.records import Kind, Line, Remark, Variable
from tracer.recorder.counters import CountedBlock, Counters
from tracer.recorder.figures import Event, Figures, Key, TotalOf
from tracer.recorder.frames import CallsUnderWay, Frame, FrameRole
from tracer.recorder.older import Older
from tracer.recorder.readout import Reading
from tracer.recorder.sites import SiteTable


class Surroundings(NamedTuple):
    """Where an optimizer runs, as its strategy says."""

    strategy: str
    worker: str
    """This process, as its framework names it: `worker:0`; empty if it is no cluster."""
    cluster: tuple[str, ...]
    """All the processes that train."""


class Iterations(NamedTuple):
    """An optimizer's own count of its steps at some moment."""

    steps: int
    stepping: bool
    """Whether its first step had begun."""


class Stepped(NamedTuple):
    """An optimizer that is traced, and how far its own count of its steps was."""

    name: str
    optimizer: Any
    started: int | None
    """The count when it was wrapped; None if it had none, or if a file has set it since."""


class Backend(Protocol):
    """A module that answers for one framework."""

    # Of a call, on the thread that makes it.

    def locate(
        self, frame: Frame, role: FrameRole, stack: list[Frame], calls_under_way: CallsUnderWay
    ) -> None:
        """Write into a new frame where its call is made, and what it is part of.

        `stack` is that of this thread, on which the frame is not yet.
        """

    def in_eager(self) -> bool:
        """Whether what is called now is executed now."""

    def update_replica_id(self) -> int | None:
        """The replica of which a strategy updates the copies now; None if it updates none."""

    KIND_BY_TYPE: bool
    """Whether two gradients of one type are both dense or both sparse."""

    def kind_of_gradient(self, gradient: Any) -> Kind:
        """Whether a gradient is dense, sparse or None."""

    def tensor_of(self, gradient: Any) -> Any | None:
        """The tensor in a program by which a gradient comes; None if it is there from the start."""

    def device_of(self, variable: Any) -> str:
        """Where the copy of `variable` is that the current replica updates."""

    def surroundings(self) -> Surroundings:
        """The strategy under which this call is made."""

    def counts_in_functions(self) -> bool:
        """Whether a program that is built now is a function's, and not a graph of a Session."""

    def function_around(self, graph: Any) -> str:
        """The name of the outermost function whose program `graph` is in."""

    def may_have_run(self, error: BaseException) -> bool:
        """Whether an error may have ended a function after a part of its work had been done."""

    # Of variables and optimizers.

    def canonical(self, variable: Any) -> Any:
        """The one object that stands for a variable, whatever copy or wrapper of it is given."""

    def values_of(self, variables: Sequence[Any]) -> int | None:
        """A number made of the values of the first small variables; None if they cannot be read."""

    def number_in(self, variable: Any) -> float | None:
        """What a variable of one element holds; None if there is none, or it cannot be read now."""

    def iterations_of(self, optimizer: Any) -> int | None:
        """The optimizer's own count of its steps; None if it has none or it cannot be read now."""

    def is_restored(self, optimizer: Any) -> bool:
        """Whether a checkpoint has set that count, as it does when it is made after it."""

    def versions(self) -> dict[str, str]:
        """The versions of what the program imported: `{"python": "3.11.7", ...}`."""

    # What a recorder is made of.

    def new_variables(self, note: Callable[[str], None]) -> "Variables":
        """A table of variables; `note` is called with what is not known of one."""

    def new_blocks(
        self,
        *,
        sites: SiteTable,
        calls_under_way: CallsUnderWay,
        devices: Mapping[int, str],
        kinds: Callable[[], set[str]],
        note: Callable[[str], None],
        fault: Callable[[BaseException], None],
        called: Callable[[], None],
    ) -> "Blocks":
        """What closes blocks.

        The first four are the recorder's and go on changing: `devices` says where the variables
        of each replica are, `kinds` gives those of the optimizers. `note` and `fault` are called
        with what could not be counted, `called` each time a function with a block in it is called.
        """

    def new_handing(
        self, variables: Any, iterations: Callable[[], Mapping[int, Iterations]]
    ) -> "Handing":
        """What compares models with what is handed over; `variables` is what `new_variables` made.

        `iterations` gives how far the optimizers of the recorder are.
        """

    def new_older(self) -> "OlderFunctions":
        """What finds the functions that were traced before the tracer came."""


class Variables(Protocol):
    """The variables that were met, each with its index; held weakly, told apart by identity."""

    objects: list[ref[Any] | None]
    """For each row its variable; None for an argument."""

    def index(self, variable: Any, graph: Any) -> int:
        """The index of `variable`, or of the argument that it stands for in `graph`."""

    @property
    def rows(self) -> list[Variable]:
        """What a trace says of each variable; a name that repeats has its number: `kernel#2`."""

    @property
    def plain(self) -> list[Variable]:
        """The same with the names that they came with: nothing is searched, so a step may ask."""


class Assigning(Protocol):
    """Which sites of updates were seen to write to their variable, and which not to."""

    def idle(self, straight: Collection[int]) -> set[int]:
        """The sites that certainly never wrote; those of `straight` do the same in each call."""

    def look(self, site: int, variable: Any) -> Any:
        """What `variable` holds before a call in eager mode; None if there is no need to look."""

    def look_again(self, site: int, variable: Any, before: Any) -> bool:
        """Look at `variable`, which held `before`, after a call; False to look at the next too."""

    def traced(self, site: int, variable: Any, graph: Any, start: int) -> None:
        """An apply method was called on `variable`, and its ops are the last ones of `graph`."""


class Callers(Protocol):
    """Who calls: the paths of calls of one root optimizer."""

    traced: Counter[tuple[int, int]]
    """How often each site was called while tracing, by the path of the call."""

    @property
    def in_datasets(self) -> bool:
        """Whether a dataset runs a function, and whenever it is asked for an element."""

    def lines(self, path: int) -> tuple[Line, ...]:
        """The lines of a path; none if it is not known."""

    def parts(
        self, block: CountedBlock, key: Hashable, reading: Reading, steps: int, past: int
    ) -> Iterator[tuple[tuple[Line, ...], Reading]]:
        """What of a block's `reading` each path led to: together they are the reading.

        `key` is the block's among the counts; `steps` began so far, of which `past` came before
        those of the reading.
        """


class Events(Protocol):
    """Graph tracings, one by one."""

    kept: list[Event]
    """The first ones, in the order in which they began."""


class Tracings(Protocol):
    """The graph tracings of one root optimizer."""

    @property
    def events(self) -> Events:
        """Those that are kept as events."""

    def figures(self, total_of: TotalOf) -> dict[Key, Figures]:
        """The figures now, in the order of the first tracing of each."""


class Blocks(Protocol):
    """The blocks of one root optimizer, and where they are counted; thread-safe."""

    threads: set[int]
    """The threads that called a function with a block in it."""
    called_by_apply_methods: bool
    """Whether an apply method called such a function, ever."""

    @property
    def counters(self) -> Counters[Any, Any]:
        """Where they are counted."""

    @property
    def callers(self) -> Callers:
        """By which paths they were called."""

    @property
    def tracings(self) -> Tracings:
        """The graph tracings with a block in them."""

    @property
    def assigning(self) -> Assigning:
        """What is known of whether the updates write."""

    def close(self, frame: Frame, failed: bool) -> None:
        """All that was called from `frame` executes as a whole: count it.

        `failed` if an error ended it.
        """

    def find_path(self, frame: Frame, python: Any) -> None:
        """Note by which path of calls `python` made the call `frame`, in eager mode."""

    def gathered(self, frame: Frame) -> None:
        """The group method `frame` ends, which has the sites of what was called in it."""

    def wait(self) -> None:
        """Wait until all that the program has begun to run is counted; no lock is held."""

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Notes on what ran and was not counted, as far as the optimizers' own counts tell it."""

    def is_behind(self, optimizer: Any) -> bool:
        """Whether its own count of steps is not what it tells: the program holds it elsewhere."""

    def remarks(self) -> tuple[Remark, ...]:
        """What the rules of findings should know of how it ran."""

    def note_update(self, frame: Frame) -> None:
        """Remember which ops an update is in the graph of a Session, which may run them alone."""

    def compare(self, wanted: bool) -> bool:
        """Compare the variables of each step, or no more; returns whether that is new."""

    def forget_graphs(self) -> None:
        """Let each function with a counter in its graph be traced anew."""

    def end(self) -> None:
        """Tracing of an optimizer ends; what was counted goes on counting."""


class Handing(Protocol):
    """What of a model is trainable, beside what the optimizer that trains it is handed."""

    def traced(self, handed: Iterable[Any]) -> None:
        """A step is being traced that was handed these variables; called below it on the stack."""

    def called(self) -> None:
        """A function with a step in it is called."""

    def never_handed(self) -> tuple[str, ...]:
        """The names of what was trainable while steps ran, is so still, and was never handed."""

    def frozen(self) -> tuple[str, ...]:
        """The names of what was frozen and went on to be handed over, for no other model's sake."""


class OlderFunctions(Protocol):
    """How often functions that were traced before were called while their optimizer was traced."""

    begins_anew: str
    """What else is said of a function that was traced again: what it did not go on with."""
    calls: Counter[Older]
    unsettled: set[int]
    """The optimizers that are used in programs that were not finished when they were found."""

    def find(
        self, index: int, optimizer: Any, kind: OptimizerKind, name: str, own: bool, retrace: bool
    ) -> None:
        """Find what uses an optimizer uncounted, and watch that from now on.

        If `retrace`, the functions that use it are to be traced anew. `own` says whether its step
        method may update variables by itself.
        """

    def begin(self, index: int, since: int | None = None) -> None:
        """What is traced from now on with an optimizer, or `since` then, is counted.

        Until it is let go.
        """

    @property
    def watching(self) -> bool:
        """Whether there is anything of which calls are counted here."""

    def settle(self, index: int, optimizer: Any, kind: OptimizerKind, name: str) -> None:
        """Look again for what was not finished when it was found."""

    def let_go(self, index: int) -> None:
        """Tracing of an optimizer ends, at least for a while."""

    def in_pipelines(self) -> list[Older]:
        """The functions that data pipelines run, of which no call is seen."""

    def traced_anew(self) -> Counter[Older]:
        """The functions that were traced again since they forgot their graphs."""

    def other_now(self) -> list[Older]:
        """Those of them that no longer write to all of the variables that they wrote to before."""


SMALL = 4096
"""How many elements a variable may have whose value is looked at."""
ENOUGH = 8
"""How many variables are looked at."""


def number_of(values: Sequence[Any]) -> int | None:
    """A number made of the values of variables, which are arrays; None if there are none.

    If all elements of some are the same, as before the first step those of a bias are, it is made
    of these: who makes all weights anew, at random, makes them as they were.
    """
    even = [value for value in values if value.min() == value.max()]
    number = 0
    for value in even or values:
        number = zlib.crc32(value.tobytes(), number)
    return number if values else None
