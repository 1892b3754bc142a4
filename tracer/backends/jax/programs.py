"""Count the blocks of programs that JAX runs: which ran, in which step, and with which outcome.

A block of a program has one op (`tracer.backends.jax.primitive`), which calls `ProgramBlock.ran`
with numbers of that run: the optimizer's iterations before and after the block, and for updates
that may be discarded or skipped, their outcome.

Under `vmap` one call reports all members. That counts as one step, with the part of each member.

Reports come on threads of XLA, several at once. They never wait for the lock of the counters, whose
holder may wait for an array of the reporting program. They go into a queue, which the holder of the
lock empties.
"""

import struct
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tracer.backends.jax.values import NO_RATE, sources
from tracer.core.calls import SiteTable
from tracer.core.counters import UNIT, CountedBlock, Counters, Counts, HostLog

DISCARDED, KEPT, SKIPPED, PARTLY = range(4)
"""The outcome of updates: computed but discarded; kept; not computed; partly kept."""

_SEVERAL_TIMES = (
    "a step inside a step, in a branch or a loop, ran several times: what Python called once is "
    "counted once"
)


class Report(NamedTuple):
    """The report of one execution of a block: the row of numbers that its op passes."""

    before: int
    """The optimizer's iterations when the block began."""
    after: int
    """The iterations when it ended."""
    outcome: int
    """The outcome of the sites that are not always kept."""
    rate: int
    """The bits of the learning rate: see `values`."""
    seen: tuple[int, ...]
    """The answers about compared variables: see `values`."""


@dataclass(eq=False)
class ProgramBlock:
    """A block in one program, which its op calls; only the op holds it."""

    counters: "ProgramCounters"
    function: str
    step: bool
    """Whether it is a step, not an update outside of every step."""
    sites: tuple[int, ...]
    decided: frozenset[int]
    """The sites whose outcome the op reports."""
    path: int | None
    clock: object
    """The variable with the iterations that are reported; None without one."""
    variables: tuple[int, ...]
    """The variables of a step that are compared, if effects are recorded."""
    replicas: int = 0
    """If not 0, so many report in this process."""
    runs: Counter[int] = field(default_factory=Counter)
    """How often it was executed on each replica; a batch of members counts once."""
    logs: dict[tuple[int, ...], HostLog] = field(default_factory=dict)
    """By replica and the outcome of each member: to find a log by its sites is slow."""

    def doubt(self, reason: str) -> None:
        """Note why executions may differ from the reports."""
        self.counters.note(reason)

    def ran(self, numbers: np.ndarray[Any, Any]) -> None:
        """Count an execution of the op; `numbers` is a row, or an array with a row of each member.

        The program waits for this, with cold processor caches, so short code is fast code.
        """
        try:
            rows = numbers.reshape(-1, numbers.shape[-1]).tolist()
            by_replica: dict[int, list[Report]] = {}
            for replica, before, after, outcome, rate, *seen in rows:
                report = Report(before, after, outcome, rate, tuple(seen))
                by_replica.setdefault(replica, []).append(report)
            for replica, reports in by_replica.items():
                self.counters.enqueue(self, replica, reports)
        except Exception as error:  # raised, it would end the user's program
            self.counters.fault(error)


class Progress(NamedTuple):
    """How reported steps moved an optimizer's iterations."""

    first: int
    """Where the first step began."""
    last: int
    """Where the last step ended."""
    moved: int
    """The sum of the moves of all steps; of one member under `vmap`. If it is less than `last -
    first`, steps between them were not reported.
    """
    clock: object
    """The variable with the iterations."""


class ProgramCounters(Counters):
    """The counters of one root optimizer, for blocks in programs and in Python."""

    def __init__(
        self,
        sites: SiteTable,
        note: Callable[[str], None],
        fault: Callable[[BaseException], None],
    ) -> None:
        super().__init__()
        self.note = note
        self.fault = fault
        self.members = 1
        """The largest number of `vmap` members in a step."""
        self.progress: dict[tuple[int, int], Progress] = {}
        """By the `id` of `ProgramBlock.clock` and replica."""
        self.replicas = 0
        """The largest number of replicas of a step that ran."""
        self._sites = sites
        self._queue: deque[tuple[ProgramBlock, int, list[Report]]] = deque()

    def add(self, program: ProgramBlock) -> None:
        """Add the block of a newly traced op."""
        block = self.block_of(program, 0, KEPT)
        with self.lock:
            self.in_programs = True
            if not program.replicas:  # else the replicas of this process are not known yet
                self.logs.setdefault(block, HostLog())  # listed even if it never runs

    def enqueue(self, program: ProgramBlock, replica: int, reports: list[Report]) -> None:
        """Call `ran` under the lock: now, or by the holder of the lock."""
        if not self.lock.acquire(blocking=False):
            self._queue.append((program, replica, reports))
            return
        try:
            if self._queue:
                self.empty_queue()
            self.ran(program, replica, reports)
        finally:
            self.lock.release()

    def empty_queue(self) -> None:
        """Count the reports made while the lock was held; the caller holds it."""
        while self._queue:
            self.ran(*self._queue.popleft())

    def ran(self, program: ProgramBlock, replica: int, reports: list[Report]) -> None:
        """Count an execution of a block on a replica, with a report for each member; lock held."""
        stamp = 0
        program.runs[replica] += 1
        self.members = max(self.members, len(reports))
        report = reports[0]
        before, after, clock = report.before, report.after, (id(program.clock), replica)
        first, last, moved, _ = self.progress.get(clock, (before, after, 0, None))
        moved += after - before
        ends = min(first, before), max(last, after)
        self.progress[clock] = Progress(*ends, moved, program.clock)
        if (
            program.clock is not None
            and program.decided
            and any(r.after - r.before > 1 for r in reports)
        ):
            self.note(_SEVERAL_TIMES)
        if program.step:
            self.replicas = max(self.replicas, program.replicas)
            rates = {report.rate for report in reports}
            if len(rates) == 1 and NO_RATE not in rates:
                self._note_rate(replica, *rates)
            stamp = UNIT * self.clocks[replica].take()
        self._log_of(program, replica, reports).add(stamp)
        if stamp and program.variables and self.effects is not None:
            seen = sources(program.variables, tuple([report.seen for report in reports]))
            self.effects.log(replica, seen, stamp)

    def _note_rate(self, replica: int, bits: int) -> None:
        (value,) = struct.unpack("f", struct.pack("i", bits))
        value = float(f"{value:.7g}")  # the digits of a float32
        first, last, values, steps = self.rates.get(replica, (value, value, 1, 0))
        self.rates[replica] = first, value, values + (value != last), steps + 1

    def progress_of(self, clock: object) -> list[Progress]:
        """How reported steps moved the iterations in the variable `clock`, by replica."""
        return [known for known in list(self.progress.values()) if known.clock is clock]

    def moved(self, optimizer: object) -> int | None:
        """How far reported steps moved an optimizer's iterations; None without a report."""
        known = self.progress_of(getattr(optimizer, "_iterations", None))
        return max((each.last - each.first for each in known), default=None)

    def read(
        self, under_way: Callable[[], Iterable[dict[int, int]]], is_calm: Callable[[], bool]
    ) -> Counts:
        """The counts of each replica: see `Counters.read`."""
        with self.lock:
            self.empty_queue()
            return super().read(under_way, is_calm)

    def _log_of(self, program: ProgramBlock, replica: int, reports: Iterable[Report]) -> HostLog:
        """The log for a program's work with these outcomes of each member."""
        key = replica, *(report.outcome for report in reports)
        log = program.logs.get(key)
        if log is None:
            block = self.block_of(program, *key)
            log = program.logs[key] = self.logs.setdefault(block, HostLog())
        return log

    def block_of(self, program: ProgramBlock, replica: int, *outcomes: int) -> CountedBlock:
        """The counted block of a program with the outcome of each member."""
        sites = [
            site
            for member, outcome in enumerate(outcomes)
            for site in self._as_done(program, replica, outcome, first=not member)
        ]
        return CountedBlock(replica, program.function, program.step, tuple(sites), program.path)

    def _as_done(
        self, program: ProgramBlock, replica: int, outcome: int, first: bool
    ) -> Iterator[int]:
        """The sites of one member; only the `first` includes sites shared by all members."""
        if outcome == PARTLY:
            self.note(
                "some steps that MultiSteps, apply_every or apply_if_finite skipped returned "
                "updates that are not all 0 (0 times NaN is NaN): all updates of these steps are "
                "counted"
            )
        for number in program.sites:
            site = self._sites.sites[number]
            if not first and site.role in ("step", "request"):
                continue
            if number in program.decided:
                if outcome == SKIPPED:
                    continue
                if outcome == DISCARDED and site.role == "update":
                    site = site._replace(role="discarded")
            yield self._sites.number(*site._replace(replica=replica))
