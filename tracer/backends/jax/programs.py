"""Counts the blocks of programs that JAX runs: which ran, in which step, and what came of it.

A block of a program has one op (`tracer.backends.jax.primitive`), which calls `Program.ran` with
numbers of that run: the optimizer's own count of steps before and after the block, and for each
group that may be thrown away whether it was kept. The op of a step has what the step made among its
operands, so what stands in branches and loops inside of the step is told before it. Beyond that XLA
promises no order: of two steps in one program the parts of the second may be told before the end of
the first. So the parts wait until a step is told whose count of steps encloses theirs. A part on
which nothing depends that the step tells may be told after it: it is of one of the steps told last.

A part that no step encloses ran outside of every step: a function that was traced inside a step may
be called by itself later, and JAX does not call Python then.

Under `vmap` one call tells of all members. Then the step is one step in which each member did its
part; a branch runs for all of them, and for those that did not choose it, what it did is discarded.

What is told comes on threads of XLA, several at once. They take the lock of the counters.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracer.backends.jax.effects import sources
from tracer.backends.jax.primitive import Doubt, Passes
from tracer.core.counters import CountedBlock, Counters, Counts
from tracer.core.keys import SiteTable
from tracer.core.log import HostLog
from tracer.core.stamps import UNIT, WITHIN

DISCARDED, KEPT, SKIPPED, PARTLY = range(4)
"""What came of a group: computed and thrown away; kept; not computed; a part of it is kept."""

_MOST_WAITING = 4096
"""How many parts wait for their step on a replica; no step has so many."""


DOUBTS: dict[Doubt, str] = {
    "not compiled": (
        "a step ran in a shard_map outside of jax.jit: it is not counted there; jit the shard_map"
    ),
    "all members": (
        "a step under vmap is in a branch or a loop that each member takes or not: it runs for all "
        "of them, and for those that did not take it is counted, too"
    ),
    "hidden": (
        "an apply method is called in a branch or a loop of its own, in a StatelessScope that "
        "hides the optimizer's count of steps: in which step it ran is not known"
    ),
    "hoisted": (
        "a step is in a loop that is differentiated: in this version of JAX it is not counted there"
    ),
    "the same in each pass": (
        "a step is in a function or a branch of its own that is given the same in each pass of a "
        "loop, which is differentiated: JAX runs it once before the loop, and it is counted once"
    ),
    "recomputed": (
        "a step is in a function that jax.checkpoint computes again, and several programs or calls "
        "differentiate that function: in which of them JAX dropped the first pass is not known, so "
        "a step may be counted twice or not at all"
    ),
    "another process": (
        "a step is in a program that XLA splits over processes: the first of them counts it; "
        "keras.distribution, pmap and shard_map are counted in each"
    ),
}


_PATIENCE = 1.0
"""For how many seconds nothing has to be told until nothing more is waited for."""

_ENDED = 64
"""How many steps may be told before a part of the first of them is."""


class Row(NamedTuple):
    """What one execution of a block told."""

    before: int
    """The optimizer's own count of its steps when the block began."""
    after: int
    """The same when it ended."""
    kept: tuple[int, ...]
    """Of each group that is not always kept, what came of it: `DISCARDED`, `KEPT`..."""
    seen: tuple[int, ...] = ()
    """The bits of the variables that were compared: see `effects`."""


class Work(NamedTuple):
    """What a block of a program is."""

    function: str
    role: str
    """`step`, `part` of a step, or `alone`."""
    sites: tuple[int, ...]
    groups: tuple[tuple[int, int], ...]
    """The places in `sites` that a group may throw away, each with the number of the group."""
    path: int
    clock: int
    """Whose count of steps the rows have: a number that is the same for the same optimizer."""
    stepped: bool
    """Whether the rows have the count before and after it; else that of the step it is in."""
    variables: tuple[int, ...] = ()
    """The variables of a step that are compared, if effects are asked for."""


class Program:
    """A block in one program: what its op calls."""

    def __init__(self, programs: "Programs", work: Work, first: int, replicas: int) -> None:
        """`first` is the replica, or the number of the device that counts for this process.

        So many `replicas` tell of themselves in this process; if any do, the op tells which one,
        or which device, before the rest.
        """
        self.work = work
        self.total = 0
        self.told: Counter[int] = Counter()
        """How often it was executed on each replica, however many members that has."""
        self.passes: Counter[tuple[Passes, int]] = Counter()
        """How often each pass under `jax.checkpoint` was executed."""
        self.logs: dict[tuple[int, tuple[tuple[int, ...], ...]], HostLog] = {}
        """By replica and what each member kept: to find the log of a block takes a look at all of
        its sites, which is too much for each run."""
        self._programs = programs
        self._groups = _groups(work)
        self._first = first
        self._replicas = replicas
        self._only_first = False
        self._tells_which = bool(replicas)

    def is_told_by_all(self) -> bool:
        """Whether all replicas told of it as often, if each is to tell."""
        if self._only_first or not self.told:
            return True
        return len(self.told) >= self._replicas and len(set(self.told.values())) == 1

    def tell_only(self, device: int) -> None:
        """Count what this device tells, and leave out what the others of the process tell too."""
        self._first, self._only_first, self._tells_which = device, True, True

    def ran(self, *numbers: Any) -> None:
        """The op was executed, with these numbers: scalars, or arrays with one for each member.

        The program waits for it, and has cleared the processor's caches: little code is fast code.
        """
        try:
            if not (self._tells_which or numbers[0].ndim):
                self._programs.ran(self, self._first, [self._row([int(each) for each in numbers])])
                return
            numbers = tuple(map(np.asarray, numbers))
            told: Iterable[Sequence[int]]
            if numbers[0].ndim:
                told = zip(*(each.ravel().tolist() for each in numbers), strict=True)
            else:
                told = [[int(each) for each in numbers]]
            by_replica: dict[int, list[Row]] = defaultdict(list)
            for each in told:
                replica, *values = each if self._tells_which else (self._first, *each)
                if self._only_first and replica != self._first:
                    continue
                number = 0 if self._only_first else replica
                by_replica[number].append(self._row(values))
            for replica, rows in by_replica.items():
                self._programs.ran(self, replica, rows)
        except Exception as error:  # it would end the program of the user
            self._programs.fault(error)

    def _row(self, numbers: Sequence[int]) -> Row:
        before, after, *more = numbers
        if not more:
            return Row(before, after, ())
        return Row(before, after, tuple(more[: self._groups]), tuple(more[self._groups :]))

    def lowered(self, platform: str) -> None:
        """It is compiled for a platform."""
        self._programs.lowered(platform)

    def doubt(self, reason: Doubt) -> None:
        """What it tells is not what ran."""
        if not (reason == "all members" and self.work.role == "part" and self.work.stepped):
            self._programs.note(DOUBTS[reason])

    def ran_pass(self, passes: Passes, number: int) -> None:
        """One pass under `jax.checkpoint` was executed, whether or not it counts."""
        with self._programs.lock:
            self.passes[passes, number] += 1

    def ran_again_uncounted(self) -> bool:
        """Whether something was computed again more often than it was counted."""
        with self._programs.lock:
            counted = {passes: self.passes[passes, int(passes.first)] for passes, _ in self.passes}
            return any(times > counted[passes] for (passes, _), times in self.passes.items())

    def left_out(self, why: str) -> None:
        """It is compiled, and cannot be counted there."""
        self._programs.left_out(why)


class _Waiting(NamedTuple):
    """A part that was told, and whose step was not yet."""

    program: Program
    rows: list[Row]


class _Told:
    """What steps tell of the optimizer's own count: of one member, where a `vmap` has several."""

    __slots__ = ("far", "first", "moved")

    def __init__(self, row: Row) -> None:
        self.first = row.before
        self.far = row.after
        self.moved = 0
        """How far all of the steps moved it together."""

    def add(self, row: Row) -> None:
        """A step was told."""
        if row.before < self.first:
            self.first = row.before
        if row.after > self.far:
            self.far = row.after
        self.moved += row.after - row.before


class Programs(Counters):
    """The counters of one root optimizer: what runs in programs, and what Python counts."""

    def __init__(
        self,
        sites: SiteTable,
        note: Callable[[str], None],
        fault: Callable[[BaseException], None],
    ) -> None:
        super().__init__()
        self.fault = fault
        self.all: list[Program] = []
        """What was traced."""
        self.latest: dict[int, int] = {}
        """How far the steps that were told say that each optimizer's own count of steps is."""
        self.members = 1
        """How many members of a `vmap` a step had at most."""
        self._told: dict[tuple[int, int], _Told] = {}
        """By that count and replica, what the steps that were told say of it."""
        self._odd: set[Program] = set()
        """What does not run alike on each replica."""
        self._eager: dict[Work, Program] = {}
        self._sites = sites
        self.note = note
        self._waiting: dict[int, list[_Waiting]] = defaultdict(list)
        self._ended: dict[int, deque[tuple[int, list[Row], int]]] = defaultdict(
            lambda: deque(maxlen=_ENDED)
        )
        """By replica the steps that were told last, each with its stamp for what is part of it."""
        self._blocks: dict[tuple[Any, ...], CountedBlock] = {}

    @property
    def in_programs(self) -> bool:  # type: ignore[override]
        """Whether anything was traced that counts."""
        return bool(self.all)

    def new(self, work: Work, replicas: int) -> Program:
        """A block was traced: what its op shall call."""
        program = Program(self, work, 0, replicas)
        with self.lock:
            self.all.append(program)
            block = self._block(work, 0, [(1,) * _groups(work)])
            self.logs.setdefault(block, HostLog())  # so that it is known if it never runs
        return program

    def eager(self, work: Work) -> Program:
        """What counts a block in eager mode; the same for the same work."""
        with self.lock:
            program = self._eager.get(work)
            if program is None:
                program = self._eager[work] = Program(self, work, 0, replicas=0)
            return program

    def ran(self, program: Program, replica: int, rows: list[Row]) -> None:
        """A block was executed on a replica, once for each row."""
        work = program.work
        with self.lock:
            program.total += len(rows)
            program.told[replica] += 1
            if len(rows) > self.members:
                self.members = len(rows)
            if work.role == "part":
                self._part_ran(program, replica, rows)
                return
            clock = work.clock
            after = rows[0].after if len(rows) == 1 else max(row.after for row in rows)
            latest = self.latest.get(clock)
            if latest is None or after > latest:
                self.latest[clock] = after
            told = self._told.get((clock, replica))
            if told is None:
                told = self._told[clock, replica] = _Told(rows[0])
            told.add(rows[0])
            stamp = 0
            if work.role == "step":
                self.stepped()
                stamp = UNIT * self.take_number(replica)
                if self._waiting:
                    self._log_parts(replica, clock, rows, stamp | WITHIN)
                self._ended[replica].append((clock, rows, stamp | WITHIN))
            self._log_of(program, replica, [row.kept for row in rows]).add(stamp)
            if stamp and work.variables and self.effects is not None:
                seen = sources(work.variables, tuple([row.seen for row in rows]))
                self.effects.log(replica, seen, stamp)

    def _part_ran(self, program: Program, replica: int, rows: list[Row]) -> None:
        """A part was executed: count it if its step was told, else let it wait."""
        work = program.work
        stamp = None if work.stepped else self._step_of(work, replica, rows)
        if stamp is not None:
            self._log_of(program, replica, [row.kept for row in rows]).add(stamp)
            return
        waiting = self._waiting[replica]
        waiting.append(_Waiting(program, rows))
        if len(waiting) > _MOST_WAITING:
            self.log(self._block_of(waiting.pop(0), replica), 0)

    def moved(self, optimizer: Any) -> int | None:
        """How far the steps say that an optimizer's own count moved; None if none was told."""
        clock = id(getattr(optimizer, "_iterations", None))
        with self.lock:
            told = [each for (of, _), each in self._told.items() if of == clock]
        return max((each.far - each.first for each in told), default=None)

    def tell(self, before: int, after: int) -> None:
        """A step that Python counts moved the count in the state that it was given."""
        with self.lock:
            row = Row(before, after, ())
            self._told.setdefault((id(None), 0), _Told(row)).add(row)

    def begun_anew(self) -> int:
        """How many steps began with one and the same count of steps, if all that are known did."""
        with self.lock:
            told = list(self._told.values())
        if any(each.far - each.first != 1 for each in told):
            return 0
        return max((each.moved for each in told), default=0)

    def wait_for_replicas(self) -> None:
        """Wait until each replica told of what the others did, as long as anything is told.

        The results of one may be there before those of another, and results that the program does
        not hold cannot be waited for.
        """
        told, since = None, time.monotonic()
        while uneven := self._uneven():
            if uneven != told:
                told, since = uneven, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                self._odd.update(uneven)  # a branch that one of them takes, say
                return
            time.sleep(0.001)

    def _uneven(self) -> dict[Program, int]:
        """The programs of which replicas told more or less often, and how often in all."""
        with self.lock:
            return {
                program: program.total
                for program in self.all
                if not (program in self._odd or program.is_told_by_all())
            }

    def passed_over(self, clock: int) -> int:
        """How many steps were not told that lie between others, by an optimizer's own count.

        There may be more, if several states were trained, each with a count of its own.
        """
        with self.lock:
            of_clock = [told for (of, _), told in self._told.items() if of == clock]
        return max((told.far - told.first - told.moved for told in of_clock), default=0)

    def begin_anew(self) -> None:
        """From now on steps may run that are not to be told."""
        with self.lock:
            self._told.clear()

    def lowered(self, platform: str) -> None:
        """A program with a block in it is compiled for a platform."""
        if platform != "cpu":
            self.note(f"counting on {platform} was never tried: compare the counts by other means")

    def left_out(self, why: str) -> None:
        """A program with a block in it is compiled that cannot call Python."""
        self.note(f"a step {why}, so what runs in it is not counted")

    def read(self, under_way: Iterable[dict[int, int]], calm: bool) -> Counts:
        """What was counted on each replica: see `Counters.read`.

        What waits for its step is shown as what ran outside of every step: its step may come yet.
        """
        with self.lock:
            waiting = Counter(
                (replica, self._block_of(part, replica))
                for replica, parts in self._waiting.items()
                for part in parts
            )
            for _, block in waiting:
                self.logs.setdefault(block, HostLog())
            counts = super().read(under_way, calm)
            for (replica, block), times in waiting.items():
                blocks = counts[replica].blocks
                reading = blocks[block][1]
                outside = {**reading.outside, 0: reading.outside.get(0, 0) + times}
                blocks[block] = block, reading._replace(outside=outside)
            self._show_programs(counts)
            return counts

    def _log_parts(self, replica: int, clock: int, steps: Sequence[Row], stamp: int) -> None:
        """Count the parts that the step is made of."""
        waiting = self._waiting.get(replica)
        if not waiting:
            return
        left = []
        for part in waiting:
            rows = part.rows
            members = len(rows) == len(steps) > 1
            of_rows = steps if members else [_around(steps)] * len(rows)
            apart = part.program.work.clock != clock  # what its count says is of another optimizer
            fits = [
                apart or _is_in(row, step, part.program.work.stepped)
                for row, step in zip(rows, of_rows, strict=True)
            ]
            if not (members or all(fits)):
                left.append(part)
                continue
            kept = [
                row.kept if fit else (0,) * (len(row.kept) + 1)
                for row, fit in zip(rows, fits, strict=True)
            ]
            self._log_of(part.program, replica, kept).add(stamp)
        self._waiting[replica] = left

    def _step_of(self, work: Work, replica: int, rows: Sequence[Row]) -> int | None:
        """The stamp of what is part of the step that `rows` are in, if that was told before them.

        A step that did not move the count is not known by it.
        """
        for clock, steps, stamp in reversed(self._ended[replica]):
            alike = clock == work.clock and len(steps) == len(rows)
            if alike and all(
                step.before == row.before < step.after
                for row, step in zip(rows, steps, strict=True)
            ):
                return stamp
        return None

    def _block_of(self, part: _Waiting, replica: int) -> CountedBlock:
        """What the log knows a part by."""
        return self._block(part.program.work, replica, [row.kept for row in part.rows])

    def _show_programs(self, counts: Counts) -> None:
        """Say of each block how many programs have it, and how many of these never ran."""
        programs: Counter[CountedBlock] = Counter()
        idle: Counter[CountedBlock] = Counter()
        for program in self.all:
            block = self._block(program.work, 0, [(1,) * _groups(program.work)])
            programs[block] += 1
            idle[block] += not program.total
        for counted in counts.values():
            for key, (block, reading) in counted.blocks.items():
                if block in programs:
                    reading = reading._replace(graphs=programs[block], idle=idle[block])
                    counted.blocks[key] = block, reading

    def _log_of(
        self, program: Program, replica: int, members: Sequence[tuple[int, ...]]
    ) -> HostLog:
        """The log of what a program did, and of how much of it was kept."""
        key = replica, tuple(members)
        log = program.logs.get(key)
        if log is None:
            block = self._block(program.work, replica, members)
            log = program.logs[key] = self.logs.setdefault(block, HostLog())
        return log

    def _block(self, work: Work, replica: int, members: Sequence[tuple[int, ...]]) -> CountedBlock:
        """What the log knows a block by that did its work so often, and kept so much of it."""
        key = (work, replica, tuple(members))
        block = self._blocks.get(key)
        if block is None:
            sites: list[int] = []
            for number, kept in enumerate(members):
                sites += self._as_done(work, replica, kept, first=not number)
            block = CountedBlock(
                replica, work.function, work.role == "step", tuple(sites), work.path
            )
            self._blocks[key] = block
        return block

    def _as_done(
        self, work: Work, replica: int, kept: tuple[int, ...], first: bool
    ) -> Iterator[int]:
        """The sites of one member; of the `first` with what is the same for all members."""
        groups = dict(work.groups)
        nothing = len(kept) > _groups(work)  # the branch that it is in was not taken
        for place, number in enumerate(work.sites):
            site = self._sites.sites[number]
            if not first and site.role in ("step", "request"):
                continue
            role = site.role
            if role in ("update", "vain"):
                came = kept[groups[place]] if place in groups else KEPT
                if came == SKIPPED:
                    continue
                if came == PARTLY:
                    self.note(
                        "some steps of MultiSteps, apply_every or apply_if_finite that should "
                        "update nothing return 0 for some leaves alone, or are not finite, so 0 "
                        "times them is not 0: each of their updates is counted as if it were kept"
                    )
                if nothing or came == DISCARDED:
                    role = "discarded"
            if (role, replica) == (site.role, site.replica):
                yield number
            else:
                yield self._sites.number(
                    site.optimizer, site.method, role, site.kind, site.variable, replica
                )


def _groups(work: Work) -> int:
    """How many groups of a block may be thrown away."""
    return 1 + max((group for _, group in work.groups), default=-1)


def _around(rows: Sequence[Row]) -> Row:
    """From the first to the last of what some rows say."""
    return Row(min(row.before for row in rows), max(row.after for row in rows), ())


def _is_in(part: Row, step: Row, stepped: bool) -> bool:
    """Whether a part is in a step; `stepped` if it has a count before and after of its own."""
    if not stepped and step.before < step.after:
        return step.before <= part.before < step.after
    return step.before <= part.before and part.after <= step.after
