"""Where executions are counted: logs of what Python counts, and what a backend adds for programs.

Both use the numbers of the same steps. A reader holds the lock, so that no step has taken its
number and is not yet in its log; what programs do meanwhile the backend sorts out.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tracer.core.call_paths import UNKNOWN
from tracer.core.log import HostLog, Reading, since
from tracer.model.records import Observation


class CountedBlock(NamedTuple):
    """What a block is; blocks that are equal do the same each time they execute."""

    replica: int
    function: str
    """The name of the function whose graph it is; empty in eager mode."""
    step: bool
    """Whether it is a step where it is not part of one."""
    sites: tuple[int, ...]
    path: int = UNKNOWN
    """The number of the path of calls to it; in a function, of that part which is in its region."""
    region: str = ""
    """The name of the region in a function: see `callers`."""
    whole: int = UNKNOWN
    """In a function: the path from the call by which it was traced."""


class Source(NamedTuple):
    """What one log of effects is of; it keeps this for good."""

    variables: tuple[int, ...]
    what: Observation


class Counted(NamedTuple):
    """What was counted on one replica, its steps numbered as they began."""

    steps: int
    """How many began."""
    blocks: dict[Any, tuple[CountedBlock, Reading]]
    """By a key that each block keeps for good."""
    under_way: Collection[int] = ()
    """The steps that Python knows to be under way."""
    empty: Collection[int] = ()
    """The steps that were ended by an error, and did nothing but what functions in them did."""
    torn: Collection[int] = ()
    """The steps in eager mode that were ended by an error after they had called a function."""
    calm: bool = True
    """Whether nothing runs at this moment: a step that has not ended was ended by an error."""
    effects: Mapping[Source, Reading] = {}
    """In which of the steps something was seen of variables."""
    compared: Sequence[range] = ()
    """The steps for which effects were asked."""

    @property
    def past(self) -> int:
        """The last step before all that are under way."""
        return min(self.under_way, default=self.steps + 1) - 1

    def since(self, before: "Counted") -> "Counted":
        """What came after `before`, with the step after its `past` ones numbered 1."""
        past, nothing = before.past, (None, Reading())
        return self._replace(
            steps=self.steps - past,
            blocks={
                key: (block, since(reading, before.blocks.get(key, nothing)[1], past))
                for key, (block, reading) in self.blocks.items()
            },
            under_way=_after(self.under_way, past),
            empty=_after(self.empty, past),
            torn=_after(self.torn, past),
            effects={
                source: new
                for source, reading in self.effects.items()
                if (new := since(reading, before.effects.get(source, Reading()), past)).total
            },
            compared=[range(each.start - past, each.stop - past) for each in self.compared],
        )


def _after(numbers: Iterable[int], past: int) -> set[int]:
    """The numbers of steps after the step `past`, counted from there."""
    return {number - past for number in numbers if number > past}


Counts = dict[int, Counted]


class Counters:
    """The counters of one root optimizer, by replica: here all that Python counts."""

    in_programs = False
    """Whether anything is counted in programs, that run without Python."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.stepped: Callable[[], None] = lambda: None
        """Called after each step that a program reports whose calls are not seen."""
        self.logs: dict[CountedBlock, HostLog] = {}
        self.effects: Any = None
        """Compares the variables of each step, an `effects.Logs`; None while effects are not asked
        for."""
        self.compared: Any = None
        """The same, if it was asked for at any time."""
        self.session_graphs: Counter[CountedBlock] = Counter()
        """How often each block was traced into a graph of a Session."""
        self._compared: list[tuple[dict[int, int], dict[int, int] | None]] = []
        """By replica, from which step on they were asked for, and no more; None if they still are.
        """
        self._numbers: Counter[int] = Counter()  # that Python has given
        self._empty: dict[int, set[int]] = defaultdict(set)
        self._torn: dict[int, set[int]] = defaultdict(set)

    def compare(self, wanted: bool, new_effects: Callable[[], Any]) -> bool:
        """Compare the variables of each step, or no more; returns whether that is new."""
        with self.lock:
            if wanted == (self.effects is not None):
                return False
            if self.compared is None:
                self.compared = new_effects()
            now = {each: self.next_number(each) for each in list(self._numbers)}
            if wanted:
                self._compared.append((now, None))
            else:
                self._compared[-1] = self._compared[-1][0], now
            self.effects = self.compared if wanted else None
            return True

    def take_number(self, replica: int) -> int:
        """The number of a step that begins outside of every program."""
        with self.lock:
            self._numbers[replica] += 1
            return self._numbers[replica]

    def next_number(self, replica: int) -> int:
        """The number of the step that begins next."""
        return self._numbers[replica] + 1

    def _read_programs(self) -> Mapping[int, tuple[int, Sequence[tuple[CountedBlock, Reading]]]]:
        """By replica how many steps began, and the blocks of programs, each in its place."""
        return {}

    def give_up(self, numbers: dict[int, int]) -> None:
        """These numbers, by replica, are of a step that ran nothing, but perhaps functions."""
        for replica, number in numbers.items():
            self._empty[replica].add(number)

    def tear(self, numbers: dict[int, int]) -> None:
        """These numbers, by replica, are of a step that failed, perhaps in a function."""
        for replica, number in numbers.items():
            self._torn[replica].add(number)

    def log(self, block: CountedBlock, stamp: int) -> None:
        """A block that Python counts has just been executed."""
        with self.lock:
            log = self.logs.get(block)
            if log is None:
                log = self.logs[block] = HostLog()
            log.add(stamp)

    def moved(self, optimizer: Any) -> int | None:
        """How far the steps say that an optimizer's own count of them moved; None if they do not.

        It may move in a state that only the program knows.
        """
        return None

    def steps(self) -> int:
        """How many steps began, on the replica with the most."""
        return max((self.next_number(each) - 1 for each in list(self._numbers)), default=0)

    def read(self, under_way: Iterable[dict[int, int]], calm: bool) -> Counts:
        """What was counted on each replica; a block keeps its key for good.

        `under_way` are the numbers, by replica, of the steps that Python knows to be under way.
        """
        running = list(under_way)
        counts: Counts = {}
        programs = self._read_programs()  # first: what they wrote goes into the logs read below
        for replica in sorted({block.replica for block in self.logs} | programs.keys()):
            steps, counted = programs.get(replica, (self._numbers[replica], ()))
            blocks: dict[Hashable, tuple[CountedBlock, Reading]] = dict(enumerate(counted))
            for block, log in self.logs.items():
                if block.replica == replica:
                    graphs = self.session_graphs[block]
                    blocks[block] = (block, log.reading(graphs, 0 if log.total else graphs))
            mine = {numbers[replica] for numbers in running if replica in numbers}
            empty, torn = set(self._empty[replica]), set(self._torn[replica])
            effects = {} if self.compared is None else self.compared.read(replica, steps)
            compared = [
                range(begin.get(replica, 1), steps + 1 if end is None else end.get(replica, 1))
                for begin, end in self._compared
            ]
            counts[replica] = Counted(steps, blocks, mine, empty, torn, calm, effects, compared)
        return counts

    def sign(self) -> Any:
        """What is another one once more was counted, and soon found; None where it is not.

        Each number in it only grows. The lock is held by who calls this.
        """
        if self.compared is not None:
            return None
        logged = sum(log.total for log in self.logs.values())
        ended = sum(map(len, [*self._empty.values(), *self._torn.values()]))
        numbers = sum(self._numbers.values())
        return logged, len(self.logs), numbers, ended, sum(self.session_graphs.values())

    def variables(self) -> dict[str, Any]:
        """What an exported function captures, by name."""
        return {}
