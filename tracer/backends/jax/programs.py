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

What is told comes on threads of XLA, several at once. They never wait for the lock of the counters,
for who holds it may wait for an array of the program that tells: they put it into a queue, and who
has the lock empties that.
"""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from tracer.backends.jax.effects import sources
from tracer.backends.jax.primitive import Doubt, Passes
from tracer.core.counters import CountedBlock, Counters, Counts
from tracer.core.log import HostLog
from tracer.core.sites import SiteTable
from tracer.core.stamps import UNIT, WITHIN

DISCARDED, KEPT, SKIPPED, PARTLY = range(4)
"""What came of a group: computed and thrown away; kept; not computed; a part of it is kept."""

_MAX_WAITING = 4096
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

_MAX_ENDED = 64
"""How many steps may be told before a part of the first of them is."""


class Row(NamedTuple):
    """What one execution of a block told."""

    before: int
    """The optimizer's own count of its steps when the block began."""
    after: int
    """The same when it ended."""
    kept: tuple[int, ...] | None
    """Of each group that is not always kept, what came of it: `DISCARDED`, `KEPT`...; None if it is
    in a branch that this member of a `vmap` did not take."""
    seen: tuple[int, ...] = ()
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
    """Whose count of steps the rows have: a number that is the same for the same optimizer."""
    stepped: bool
    """Whether the rows have the count before and after it; else that of the step it is in."""
    variables: tuple[int, ...] = ()
    """The variables of a step that are compared, if effects are asked for."""


class Program:
    """A block in one program: what its op calls."""

    def __init__(self, programs: "Programs", work: Work, replicas: int = 0) -> None:
        """So many `replicas` tell of themselves in this process; if any do, the op says which."""
        self.work = work
        self.groups = 1 + max((each for each in work.groups if each is not None), default=-1)
        self.total = 0
        self.told: Counter[int] = Counter()
        """How often it was executed on each replica, however many members that has."""
        self.passes: Counter[tuple[Passes, int]] = Counter()
        """How often each pass under `jax.checkpoint` was executed."""
        self.logs: dict[tuple[Any, ...], HostLog] = {}
        """By replica and what each member kept: to find the log of a block takes a look at all of
        its sites, which is too much for each run."""
        self.device: int | None = None
        """The device that counts for this process, if the others of it tell the same."""
        self.is_uneven = False
        """Whether it does not run alike on each replica, as in a branch that one of them takes."""
        self.alone: Callable[..., Any] | None = None
        """A program of JAX that does nothing but call it, for a block in eager mode."""
        self._programs = programs
        self._replicas = replicas

    def lags(self) -> bool:
        """Whether some replicas have not told of it as often as others."""
        told = list(self.told.values())
        if self.is_uneven or not told:
            return False
        return len(told) < self._replicas or len(set(told)) > 1

    def ran(self, *numbers: Any) -> None:
        """The op was executed, with these numbers: scalars, or arrays with one for each member.

        The program waits for it, and has cleared the processor's caches: little code is fast code.
        """
        try:
            tells_which = self._replicas or self.device is not None
            if not (tells_which or numbers[0].ndim):
                row = self._row([int(each) for each in numbers])
                self._programs.enqueue(self._programs.ran, self, 0, [row])
                return
            by_replica: dict[int, list[Row]] = defaultdict(list)
            for each in zip(*(np.ravel(each).tolist() for each in numbers), strict=True):
                replica, *values = each if tells_which else (0, *each)
                if self.device is None:
                    by_replica[replica].append(self._row(values))
                elif replica == self.device:
                    by_replica[0].append(self._row(values))
            for replica, rows in by_replica.items():
                self._programs.enqueue(self._programs.ran, self, replica, rows)
        except Exception as error:  # it would end the program of the user
            self._programs.fault(error)

    def _row(self, numbers: Sequence[int]) -> Row:
        before, after, *more = numbers
        if not more:
            return Row(before, after, ())
        return Row(before, after, tuple(more[: self.groups]), tuple(more[self.groups :]))

    def lowered(self, platform: str) -> None:
        """It is compiled for a platform."""
        if platform != "cpu":
            self._programs.note(
                f"counting on {platform} was never tried: compare the counts by other means"
            )

    def left_out(self, why: str) -> None:
        """It is compiled, and cannot be counted there."""
        self._programs.note(f"a step {why}, so what runs in it is not counted")

    def doubt(self, reason: Doubt) -> None:
        """What it tells is not what ran."""
        if not (reason == "all members" and self.work.role == "part" and self.work.stepped):
            self._programs.note(DOUBTS[reason])

    def ran_pass(self, passes: Passes, number: int) -> None:
        """One pass under `jax.checkpoint` was executed, whether or not it counts."""
        self._programs.enqueue(self.passes.update, [(passes, number)])

    def ran_again_uncounted(self) -> bool:
        """Whether something was computed again more often than it was counted."""
        counted = {passes: self.passes[passes, int(passes.first)] for passes, _ in self.passes}
        return any(times > counted[passes] for (passes, _), times in self.passes.items())


class Programs(Counters):
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
        self.all: list[Program] = []
        """What was traced."""
        self.latest: dict[int, int] = {}
        """How far the steps that were told say that each optimizer's own count of steps is."""
        self.members = 1
        """How many members of a `vmap` a step had at most."""
        self.progress: dict[tuple[int, int], list[int]] = {}
        """By that count and replica: where the steps that were told began, where they ended, and
        how far all of them moved it together; of one member, where a `vmap` has several."""
        self._eager: dict[Work, Program] = {}
        self._sites = sites
        self._queue: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._waiting: dict[int, list[tuple[Program, list[Row]]]] = defaultdict(list)
        """By replica the parts that were told before their step."""
        self._ended: dict[int, deque[tuple[int, list[Row], int]]] = defaultdict(
            lambda: deque(maxlen=_MAX_ENDED)
        )
        """By replica the steps that were told last, each with its stamp for what is part of it."""
        self._blocks: dict[tuple[Any, ...], CountedBlock] = {}

    @property
    def in_programs(self) -> bool:  # type: ignore[override]
        """Whether anything was traced that counts."""
        return bool(self.all)

    def new(self, work: Work, replicas: int) -> Program:
        """A block was traced: what its op shall call."""
        program = Program(self, work, replicas)
        with self.lock:
            self.all.append(program)
            # It has a log, so that it is known if it never runs.
            self.logs.setdefault(self._block_as_traced(program), HostLog())
        return program

    def eager(self, work: Work) -> Program:
        """What counts a block in eager mode; the same for the same work."""
        return self._eager.get(work) or self._eager.setdefault(work, Program(self, work))

    def enqueue(self, function: Callable[..., None], *arguments: Any) -> None:
        """Have `function` called under the lock: now, or by who has it now or next."""
        if not self.lock.acquire(blocking=False):
            self._queue.append((function, arguments))
            return
        try:
            if self._queue:
                self.empty_queue()
            function(*arguments)
        finally:
            self.lock.release()

    def empty_queue(self) -> None:
        """Count what was told while the lock was held, which it is by who calls this."""
        while self._queue:
            function, arguments = self._queue.popleft()
            function(*arguments)

    def ran(self, program: Program, replica: int, rows: list[Row]) -> None:
        """A block was executed on a replica, once for each row; the lock is held."""
        work, stamp = program.work, 0
        program.total += len(rows)
        program.told[replica] += 1
        if len(rows) > self.members:
            self.members = len(rows)
        if work.role == "part":
            self._part_ran(program, replica, rows)
            return
        row = rows[0]
        self.moved_on(work.clock, replica, row.before, row.after)
        if work.role == "step":
            self.stepped()
            stamp = UNIT * self.take_number(replica)
            if self._waiting:
                self._log_parts(replica, work.clock, rows, stamp | WITHIN)
            self._ended[replica].append((work.clock, rows, stamp | WITHIN))
        self._log_of(program, replica, [row.kept for row in rows]).add(stamp)
        if stamp and work.variables and self.effects is not None:
            seen = sources(work.variables, tuple([row.seen for row in rows]))
            self.effects.log(replica, seen, stamp)

    def moved_on(self, clock: int, replica: int, before: int, after: int) -> None:
        """A step moved an optimizer's own count of steps, perhaps in a state that it was given."""
        if after > self.latest.get(clock, -1):
            self.latest[clock] = after
        steps = self.progress.get((clock, replica))
        if steps is None:
            steps = self.progress[clock, replica] = [before, after, 0]
        if before < steps[0]:
            steps[0] = before
        if after > steps[1]:
            steps[1] = after
        steps[2] += after - before

    def _part_ran(self, program: Program, replica: int, rows: list[Row]) -> None:
        """A part was executed: count it if its step was told, else let it wait."""
        for clock, steps, stamp in () if program.work.stepped else reversed(self._ended[replica]):
            # A step that did not move the count is not known by it.
            known = clock == program.work.clock and steps[0].before < steps[0].after
            if known and len(rows) == len(steps) and all(_are_in(program, rows, clock, steps)):
                self._log_of(program, replica, [row.kept for row in rows]).add(stamp)
                return
        waiting = self._waiting[replica]
        waiting.append((program, rows))
        if len(waiting) > _MAX_WAITING:
            self.log(self._block_of(*waiting.pop(0), replica), 0)

    def _log_parts(self, replica: int, clock: int, steps: Sequence[Row], stamp: int) -> None:
        """Count the parts that the step is made of."""
        waiting, self._waiting[replica] = self._waiting[replica], []
        for program, rows in waiting:
            fits = _are_in(program, rows, clock, steps)
            if all(fits) or len(rows) == len(steps) > 1:
                kept = [row.kept if fit else None for row, fit in zip(rows, fits, strict=True)]
                self._log_of(program, replica, kept).add(stamp)
            else:
                self._waiting[replica].append((program, rows))

    def moved(self, optimizer: Any) -> int | None:
        """How far the steps say that an optimizer's own count moved; None if none was told."""
        known = self._of_clock(id(getattr(optimizer, "_iterations", None)))
        return max((last - first for first, last, _ in known), default=None)

    def begun_anew(self) -> int:
        """How many steps began with one and the same count of steps, if all that are known did."""
        known = list(self.progress.values())
        alike = all(last - first == 1 for first, last, _ in known)
        return max((moved for _, _, moved in known), default=0) if alike else 0

    def passed_over(self, clock: int) -> int:
        """How many steps were not told that lie between others, by an optimizer's own count.

        There may be more, if several states were trained, each with a count of its own.
        """
        return max(
            (last - first - moved for first, last, moved in self._of_clock(clock)), default=0
        )

    def _of_clock(self, clock: int) -> list[list[int]]:
        return [known for (of, _), known in list(self.progress.items()) if of == clock]

    def wait_for_replicas(self) -> None:
        """Wait until each replica told of what the others did, as long as anything is told.

        The results of one may be there before those of another, and results that the program does
        not hold cannot be waited for.
        """
        known, since = None, time.monotonic()
        while late := {each: each.total for each in list(self.all) if each.lags()}:
            if late != known:
                known, since = late, time.monotonic()
            elif time.monotonic() - since > _PATIENCE:
                for each in late:
                    each.is_uneven = True
            time.sleep(0.001)
            with self.lock:
                self.empty_queue()

    def read(self, under_way: Iterable[dict[int, int]], calm: bool) -> Counts:
        """What was counted on each replica: see `Counters.read`.

        What waits for its step is shown as what ran outside of every step: its step may come yet.
        """
        with self.lock:
            self.empty_queue()
            waiting = Counter(
                (replica, self._block_of(*part, replica))
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

    def sign(self) -> Any:
        """The same with what the programs have told: see `Counters.sign`."""
        self.empty_queue()
        sign, waiting = super().sign(), sum(map(len, self._waiting.values()))
        return sign and (sign, waiting, [program.total for program in self.all])

    def _show_programs(self, counts: Counts) -> None:
        """Say of each block how many programs have it, and how many of these never ran."""
        idle: dict[CountedBlock, list[bool]] = defaultdict(list)
        for program in self.all:
            idle[self._block_as_traced(program)].append(not program.total)
        for counted in counts.values():
            for key, (block, reading) in counted.blocks.items():
                if block in idle:
                    graphs, never_ran = len(idle[block]), sum(idle[block])
                    reading = reading._replace(graphs=graphs, idle=never_ran)
                    counted.blocks[key] = block, reading

    def _log_of(self, program: Program, replica: int, members: Sequence[Any]) -> HostLog:
        """The log of what a program did, and of how much of it each member kept."""
        key = replica, *members
        log = program.logs.get(key)
        if log is None:
            block = self._block(program.work, replica, members)
            log = program.logs[key] = self.logs.setdefault(block, HostLog())
        return log

    def _block_of(self, program: Program, rows: list[Row], replica: int) -> CountedBlock:
        """What the log knows a part by."""
        return self._block(program.work, replica, [row.kept for row in rows])

    def _block_as_traced(self, program: Program) -> CountedBlock:
        """The same of a program that keeps all that it does."""
        return self._block(program.work, 0, [(KEPT,) * program.groups])

    def _block(self, work: Work, replica: int, members: Sequence[Any]) -> CountedBlock:
        """What the log knows a block by that did its work so often, and kept so much of it."""
        key = (work, replica, *members)
        block = self._blocks.get(key)
        if block is None:
            sites = [
                site
                for number, kept in enumerate(members)
                for site in self._as_done(work, replica, kept, first=not number)
            ]
            step = work.role == "step"
            block = CountedBlock(replica, work.function, step, tuple(sites), work.path)
            self._blocks[key] = block
        return block

    def _as_done(
        self, work: Work, replica: int, kept: tuple[int, ...] | None, first: bool
    ) -> Iterator[int]:
        """The sites of one member; of the `first` with what is the same for all members."""
        for number, group in zip(work.sites, work.groups, strict=True):
            site = self._sites.sites[number]
            if not first and site.role in ("step", "request"):
                continue
            if site.role in ("update", "vain"):
                outcome = KEPT if group is None or kept is None else kept[group]
                if outcome == SKIPPED:
                    continue
                if outcome == PARTLY:
                    self.note(
                        "some steps of MultiSteps, apply_every or apply_if_finite that should "
                        "update nothing return 0 for some leaves alone, or are not finite, so 0 "
                        "times them is not 0: each of their updates is counted as if it were kept"
                    )
                if outcome == DISCARDED or kept is None:
                    site = site._replace(role="discarded")
            yield self._sites.number(*site._replace(replica=replica))


def _are_in(program: Program, rows: list[Row], clock: int, steps: Sequence[Row]) -> list[bool]:
    """Whether a part is in a step, for each member: as their counts say, if they are of one clock.

    A part in which the count moves has a count before and after of its own.
    """
    if program.work.clock != clock:
        return [True] * len(rows)
    if not len(rows) == len(steps) > 1:
        before, after = min(row.before for row in steps), max(row.after for row in steps)
        steps = [Row(before, after, ())] * len(rows)
    return [
        step.before <= row.before < step.after
        if step.before < step.after and not program.work.stepped
        else step.before <= row.before and row.after <= step.after
        for row, step in zip(rows, steps, strict=True)
    ]
