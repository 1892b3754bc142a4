"""Counts the blocks of programs that JAX runs: which ran, in which step, and what came of it.

A block of a program has one op (`tracer.backends.jax.primitive`), which calls `ProgramBlock.ran`
with numbers of that run: the optimizer's own count of steps before and after the block, and of each
group that may be thrown away whether it was kept. The op of a step has what the step made among its
operands, so what stands in branches and loops inside of the step reports before it. Beyond that XLA
promises no order: of two steps in one program the parts of the second may report before the end of
the first. So the parts wait until a step reports whose count of steps encloses theirs. A part that
waits for good is not counted, and the trace says so: a function that was traced inside a step may
be called by itself later, and a part that no number of the step's op needs may run after it.

Under `vmap` one call reports all members. Then the step is one step in which each member did its
part.

Reports come on threads of XLA, several at once. They never wait for the lock of the counters, for
who holds it may wait for an array of the program that reports: they put it into a queue, and who
has the lock empties that.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracer.backends.jax.effects import sources
from tracer.core.counters import CountedBlock, Counters, Counts
from tracer.core.log import HostLog
from tracer.core.sites import SiteTable
from tracer.core.stamps import UNIT, WITHIN

DISCARDED, KEPT, SKIPPED, PARTLY, LET_THROUGH = range(5)
"""What came of a group: computed and thrown away; kept; not computed; a part of it is kept; kept
though it is not finite."""

_MAX_LET_THROUGH = 1000
"""How many of the last sort are known by their steps."""

_PATIENCE = 1.0
"""For how many seconds a reading waits for replicas that have not reported what others did."""

_MAX_WAITING = 4096
"""How many parts wait for their step on a replica; hardly a step has so many."""

_TOO_MANY = f"more than {_MAX_WAITING} parts ran before their step: the first are not counted"


class Report(NamedTuple):
    """What one execution of a block reported."""

    before: int
    """The optimizer's own count of its steps when the block began."""
    after: int
    """The same when it ended."""
    kept: tuple[int, ...]
    """Of each group that is not always kept, what came of it: `DISCARDED`, `KEPT`..."""
    seen: tuple[int, ...]
    """The bits of the variables that were compared: see `effects`."""


class Work(NamedTuple):
    """What a block of a program is."""

    function: str
    role: str
    """`step`, `part` of a step, or `alone`."""
    sites: tuple[int, ...]
    groups: tuple[int | None, ...]
    """For each of the sites the number of the group that may throw it away; None for no group."""
    path: int
    clock: int
    """Whose count of steps the reports have: a number that is the same for the same optimizer."""
    variables: tuple[int, ...]
    """The variables of a step that are compared, if effects are asked for."""


class ProgramBlock:
    """A block in one program: what its op calls."""

    def __init__(self, counters: "ProgramCounters", work: Work, replicas: int = 0) -> None:
        """So many `replicas` report in this process; if any do, the op says which."""
        self.work = work
        self.groups = 1 + max((each for each in work.groups if each is not None), default=-1)
        self._counters = counters
        self.block = self.block_on(0)
        """What a run of it is that keeps all."""
        self.runs: Counter[int] = Counter()
        """How often it was executed on each replica, however many members that has."""
        self.logs: dict[tuple[Any, ...], HostLog] = {}
        """By replica and what each member kept: to find the log of a block takes a look at all of
        its sites, which is too much for each run."""
        self.is_uneven = False
        """Whether it does not run alike on each replica, as in a branch that one of them takes."""
        self.parts: frozenset[ProgramBlock] = frozenset()
        """Of a step: the blocks that were traced as parts of it."""
        self.once = False
        """Whether it is a part that runs at most once in a step."""
        self.alone: Callable[..., Any] | None = None
        """A program of JAX that does nothing but call it, for a block in eager mode."""
        self.replicas = replicas

    def block_on(self, replica: int) -> CountedBlock:
        """What a run of it on a replica is that keeps all."""
        return self._counters.block_of(self.work, replica, (KEPT,) * self.groups)

    def lags(self) -> bool:
        """Whether some replicas have not reported it as often as others."""
        runs = self.runs.values()
        return bool(runs and not self.is_uneven) and (
            len(runs) < self.replicas or len(set(runs)) > 1
        )

    def ran(self, *numbers: Any) -> None:
        """The op was executed, with these numbers: scalars, or arrays with one for each member.

        The program waits for it, and has cleared the processor's caches: little code is fast code.
        """
        try:
            if not (self.replicas or numbers[0].ndim):
                report = self._report([int(each) for each in numbers])
                self._counters.enqueue(self, 0, [report])
                return
            by_replica: dict[int, list[Report]] = defaultdict(list)
            for each in zip(*(np.ravel(each).tolist() for each in numbers), strict=True):
                replica, *values = each if self.replicas else (0, *each)
                by_replica[replica].append(self._report(values))
            for replica, reports in by_replica.items():
                self._counters.enqueue(self, replica, reports)
        except Exception as error:  # it would end the program of the user
            self._counters.fault(error)

    def _report(self, numbers: Sequence[int]) -> Report:
        before, after, *more = numbers
        if not more:
            return Report(before, after, (), ())
        return Report(before, after, tuple(more[: self.groups]), tuple(more[self.groups :]))

    def doubt(self, reason: str) -> None:
        """What it reports may not be what ran."""
        self._counters.note(reason)


class Progress(NamedTuple):
    """How the steps that were reported moved an optimizer's own count of steps."""

    first: int
    """Where the first of them began."""
    last: int
    """Where the last one ended."""
    moved: int
    """How far all of them moved it together; of one member, where a `vmap` has several. If that is
    less than from the first to the last, some between them were not reported."""


class ProgramCounters(Counters):
    """The counters of one root optimizer: what runs in programs, and what Python counts."""

    def __init__(
        self,
        sites: SiteTable,
        note: Callable[[str], None],
        fault: Callable[[BaseException], None],
    ) -> None:
        super().__init__()
        self.note = note
        self.fault = fault
        self.all: list[ProgramBlock] = []
        """What was traced."""
        self.members = 1
        """How many members of a `vmap` a step had at most."""
        self.progress: dict[tuple[int, int], Progress] = {}
        """By the number of an optimizer's own count of steps (`Work.clock`), and the replica."""
        self.let_through: list[int] = []
        """The first steps that were not finite and kept."""
        self._eager: dict[Work, ProgramBlock] = {}
        self._sites = sites
        self._queue: deque[tuple[Any, ...]] = deque()
        self.waiting: dict[int, deque[tuple[ProgramBlock, list[Report]]]] = defaultdict(
            lambda: deque(maxlen=_MAX_WAITING)
        )
        """By replica the parts that were reported before their step."""

    @property
    def in_programs(self) -> bool:  # type: ignore[override]
        """Whether anything was traced that counts."""
        return bool(self.all)

    def new(self, work: Work, replicas: int) -> ProgramBlock:
        """A block was traced: what its op shall call."""
        program = ProgramBlock(self, work, replicas)
        with self.lock:
            self.all.append(program)
            self.logs.setdefault(program.block, HostLog())  # so that it is known if it never runs
        return program

    def eager(self, work: Work) -> ProgramBlock:
        """What counts a block in eager mode; the same for the same work."""
        return self._eager.get(work) or self._eager.setdefault(work, ProgramBlock(self, work))

    def enqueue(self, *arguments: Any) -> None:
        """Have `ran` called under the lock: now, or by who has it now or next."""
        if not self.lock.acquire(blocking=False):
            self._queue.append(arguments)
            return
        try:
            if self._queue:
                self.empty_queue()
            self.ran(*arguments)
        finally:
            self.lock.release()

    def empty_queue(self) -> None:
        """Count what was reported while the lock was held, which it is by who calls this."""
        while self._queue:
            self.ran(*self._queue.popleft())

    def ran(self, program: ProgramBlock, replica: int, reports: list[Report]) -> None:
        """A block was executed on a replica, once for each report; the lock is held."""
        work, stamp = program.work, 0
        program.runs[replica] += 1
        if len(reports) > self.members:
            self.members = len(reports)
        if work.role == "part":
            if len(self.waiting[replica]) == _MAX_WAITING:
                self.note(_TOO_MANY)
            self.waiting[replica].append((program, reports))
            return
        report = reports[0]
        self.moved_on(work.clock, replica, report.before, report.after)
        if work.role == "step":
            self.stepped()
            number = self.take_number(replica)
            stamp = UNIT * number
            if LET_THROUGH in report.kept and len(self.let_through) < _MAX_LET_THROUGH:
                self.let_through.append(number)
            if self.waiting:
                self._log_parts(program, replica, reports, stamp | WITHIN)
        self._log_of(program, replica, reports).add(stamp)
        if stamp and work.variables and self.effects is not None:
            seen = sources(work.variables, tuple([report.seen for report in reports]))
            self.effects.log(replica, seen, stamp)

    def moved_on(self, clock: int, replica: int, before: int, after: int) -> None:
        """A step moved an optimizer's own count of steps, perhaps in a state that it was given."""
        first, last, moved = self.progress.get((clock, replica), (before, after, 0))
        self.progress[clock, replica] = Progress(
            before if before < first else first,
            after if after > last else last,
            moved + after - before,
        )

    def _log_parts(
        self, step: ProgramBlock, replica: int, steps: Sequence[Report], stamp: int
    ) -> None:
        """Count the parts that the step is made of.

        Steps of independent states may begin with one count, so only what was traced in a step is
        part of it; a step in which nothing was traced may call a function that was before.
        """
        waiting, counted = self.waiting.pop(replica, ()), set()
        for part, reports in waiting:
            same = part.work.clock != step.work.clock or any(map(_is_in, reports, steps))
            known = part in step.parts or not step.parts
            if same and known and not (part.once and part in counted):
                self._log_of(part, replica, reports).add(stamp)
                counted.add(part)
            else:
                self.waiting[replica].append((part, reports))

    def progress_of(self, clock: Any) -> list[Progress]:
        """How the steps that were reported moved the count in the variable `clock`, by replica."""
        return [known for (of, _), known in list(self.progress.items()) if of == id(clock)]

    def moved(self, optimizer: Any) -> int | None:
        """How far the steps say that an optimizer's own count moved; None if none was reported."""
        known = self.progress_of(getattr(optimizer, "_iterations", None))
        return max((each.last - each.first for each in known), default=None)

    def started_again(self) -> int:
        """How many steps began with one and the same count of steps, if all that are known did."""
        known = list(self.progress.values())
        alike = all(each.last - each.first == 1 for each in known)
        return max((each.moved for each in known), default=0) if alike else 0

    def numbers_of_replicas(self) -> set[int]:
        """On how many replicas the steps ran, in all their programs; in Python they run on one."""
        with self.lock:
            programs = [each for each in self.all if each.runs and each.work.role == "step"]
            in_python = self.next_number(0) - 1 - sum(each.runs[0] for each in programs)
        return {max(each.replicas, len(each.runs)) for each in programs} | (
            {1} if in_python > 0 else set()
        )

    def wait_for_replicas(self) -> None:
        """Wait until each replica reported what the others did, or until that takes too long.

        The results of one may be there before those of another, and results that the program does
        not hold cannot be waited for. One may also take a branch that the others do not.
        """
        end = time.monotonic() + _PATIENCE
        while late := [program for program in list(self.all) if program.lags()]:
            if time.monotonic() > end:
                for program in late:
                    program.is_uneven = True
            time.sleep(0.001)
            with self.lock:
                self.empty_queue()

    def read(self, under_way: Iterable[dict[int, int]], calm: bool) -> Counts:
        """What was counted on each replica: see `Counters.read`.

        With how many programs have each block, and how many of these never ran.
        """
        with self.lock:
            self.empty_queue()
            here = min((each for program in self.all for each in program.runs), default=0)
            if not self._numbers[0]:
                self._begin_at(here)
            counts = super().read(under_way, calm)
            for program in self.all:
                blocks = counts[program.block.replica].blocks
                block, reading = blocks[program.block]
                graphs, idle = reading.graphs + 1, reading.idle + (not program.runs)
                blocks[block] = block, reading._replace(graphs=graphs, idle=idle)
            return counts

    def _begin_at(self, replica: int) -> None:
        """The first replica of this process is this one: that of a `pmap` over several of them."""
        for program in self.all:
            if program.block.replica != replica:
                self.logs.pop(program.block, None)
                program.block = program.block_on(replica)
                self.logs.setdefault(program.block, HostLog())

    def sign(self) -> Any:
        """The same with what the programs have reported: see `Counters.sign`."""
        self.empty_queue()
        sign = super().sign()
        return sign and (sign, sum(sum(program.runs.values()) for program in self.all))

    def _log_of(self, program: ProgramBlock, replica: int, reports: Iterable[Report]) -> HostLog:
        """The log of what a program did, and of how much of it each member kept."""
        kept = [report.kept for report in reports]
        key = replica, *kept
        log = program.logs.get(key)
        if log is None:
            block = self.block_of(program.work, replica, *kept)
            log = program.logs[key] = self.logs.setdefault(block, HostLog())
        return log

    def block_of(self, work: Work, replica: int, *members: tuple[int, ...]) -> CountedBlock:
        """The block that did its work for each of the members, which kept so much of it."""
        sites = [
            site
            for number, kept in enumerate(members)
            for site in self._as_done(work, replica, kept, first=not number)
        ]
        step = work.role == "step"
        return CountedBlock(replica, work.function, step, tuple(sites), work.path)

    def _as_done(
        self, work: Work, replica: int, kept: tuple[int, ...], first: bool
    ) -> Iterator[int]:
        """The sites of one member; of the `first` with what is the same for all members."""
        for number, group in zip(work.sites, work.groups, strict=True):
            site = self._sites.sites[number]
            if not first and site.role in ("step", "request"):
                continue
            if group is not None and site.role in ("update", "ineffective"):
                outcome = kept[group]
                if outcome == SKIPPED:
                    continue
                if outcome == PARTLY:
                    self.note(
                        "some steps of MultiSteps, apply_every or apply_if_finite that should "
                        "update nothing return 0 for some leaves alone, or are not finite, so 0 "
                        "times them is not 0: each of their updates is counted as if it were kept"
                    )
                if outcome == DISCARDED:
                    site = site._replace(role="discarded")
            yield self._sites.number(*site._replace(replica=replica))


def _is_in(part: Report, step: Report) -> bool:
    """Whether a part is in a step, as their counts of steps say, which are of one optimizer.

    A part in which the count moves has a count before and after of its own.
    """
    inside = step.before <= part.before and part.after <= step.after
    return inside and (part.before < step.after or step.before == step.after)
