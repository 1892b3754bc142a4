"""Makes a trace of what a recorder has counted, in all or since a baseline.

Each `Recorder` has one `Reader` and shares with it its tables, notes and counters. Any thread may
ask for a trace at any time, also while it trains, inside a step.

A reader writes only its own state. It copies what was counted under the lock of the counters, so
Python counts nothing meanwhile; graphs do, and the ledger sorts that out. It makes the trace from
the copy without a lock, for names and other attributes may be code of the program. Other threads
may count meanwhile: tables that only grow are read after the copy, so they have all that it names.

The counters return a `Counted` for each replica, with steps numbered as they began; `settle` turns
these into the blocks of a trace, which has only steps that ended.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import ref

from msgspec.structs import replace

from tracer.core import settle
from tracer.core.backend import Root, Surroundings, passed_to_any
from tracer.core.counters import Counted, Counts
from tracer.core.optimizers import Optimizers
from tracer.model.launches import of_this_process
from tracer.model.names import distinct, finder
from tracer.model.records import (
    Block,
    Graph,
    Line,
    Method,
    Note,
    NotUpdated,
    Replica,
    TraceData,
    Variable,
    WhyNot,
    rates_in,
)
from tracer.model.trace import Trace
from tracer.words import some

_Called = Mapping[tuple[int, int | None], Sequence[int]]
"""The number of calls [in eager mode, while tracing], by the numbers of a site and a path."""


DataAndObjects = tuple[TraceData, list[ref[Any]]]
"""A trace, and the object of each variable in it, if any."""


class Baseline(NamedTuple):
    """The counts at some moment, for a trace that counts from there."""

    counts: Counts
    calls: _Called
    graphs: Sequence[Graph]
    """The figures of each graph tracing."""
    notes: frozenset[Note]
    """The notes of every later trace, except facts; only other notes are about later steps."""
    auxiliary: int = 0
    """The number of calls of the methods of `tracer.kinds.AUXILIARY`."""
    iterations: Mapping[int, int] = {}
    """The own count of steps of each optimizer that has stepped."""


THE_BEGINNING = Baseline({}, {}, (), frozenset())


class Reader:
    """Makes traces of one recorder; thread-safe."""

    def __init__(self, root: Root) -> None:
        self._root = root
        self._optimizers: Optimizers = root.optimizers

    def trace(self, since: Baseline | None = None) -> Trace:
        """The frozen trace since a baseline, up to the last complete step of each replica."""
        self._root.blocks.wait()
        data, objects = self._data(self._copy(), THE_BEGINNING if since is None else since)
        return Trace(of_this_process(data), finder(objects, self._root.backend.canonical))

    def data_since(self, baseline: Baseline | None, empty: bool) -> DataAndObjects | None:
        """The trace after `baseline`, or the whole trace, with steps numbered from 1.

        None if there is nothing to report, unless an `empty` trace is wanted.
        """
        self._root.blocks.wait()
        since = THE_BEGINNING if baseline is None else baseline
        now = self._copy()
        if not (empty or self._optimizers.stale.may_run()) and now == since._replace(iterations={}):
            return None
        return self._data(now, since)

    def baseline(self) -> Baseline:
        """Return the counts so far, for a trace that counts from here."""
        if not self._root.sites.calls:  # most living optimizers are not used
            return self._copy()
        self._root.blocks.wait()
        iterations = self._optimizers.iterations()
        self._root.collectors.call("block_begins")
        return self._copy()._replace(iterations=iterations)

    def _copy(self) -> Baseline:
        """Copy what was counted so far."""

        def under_way() -> list[dict[int, int]]:
            steps = list(self._root.calls_under_way.steps)
            return [step.numbers for step in steps if step.numbers]

        blocks = self._root.blocks
        with blocks.counters.lock:
            counts = blocks.counters.read(under_way, blocks.is_calm)

            def total_of(replica: int, number: int) -> int:
                return counts[replica].blocks[number][1].total

            return Baseline(
                counts,
                self._called_so_far(),
                [tracing.figures(total_of) for tracing in blocks.tracings.all],
                frozenset([*self._root.notes, *_notes_on(self._root.where)]),
                sum(optimizer.called.total() for optimizer in self._optimizers.all),
            )

    def _called_so_far(self) -> _Called:
        """The number of calls of each site [in eager mode, while tracing] by each path."""
        calls: dict[tuple[int, int | None], list[int]] = defaultdict(lambda: [0, 0])
        for number, (failed, traced) in enumerate(self._root.sites.calls):
            calls[number, None] = [failed, traced]
        for (number, path), traced in list(self._root.blocks.callers.traced.items()):
            calls[number, None][1] -= traced
            calls[number, path][1] += traced
        for block, log in self._root.blocks.counters.logs.items():
            if not block.function:
                for number in block.sites:
                    calls[number, block.path][0] += log.total
        return calls

    def _data(self, now: Baseline, baseline: Baseline) -> DataAndObjects:
        """The trace of what the copy `now` has and `baseline` has not."""
        optimizers = self._optimizers
        sites = list(self._root.sites.sites)
        methods = _indices(site.method for site in sites)
        replicas = _indices(sorted({site.replica for site in sites} | set(now.counts)))
        new_counts = [
            (replica, counted.since(baseline.counts.get(replica, Counted(0, {}))))
            for replica, counted in now.counts.items()
        ]
        ended = {replica: settle.settle(counted) for replica, counted in new_counts}
        not_compared = sum(settle.not_compared(counted) for _, counted in new_counts)
        blocks, texts = settle.blocks_of(optimizers.root, sites, ended, methods, replicas)
        unknown = [*map(Note, texts)]
        if not_compared:
            unknown.append(Note(_NOT_COMPARED.format(some(not_compared, "step")), "effects"))
        new = {
            key: (eager - before[0], tracing - before[1])
            for key, (eager, tracing) in now.calls.items()
            for before in (baseline.calls.get(key, (0, 0)),)
        }
        called_now = {number for (number, _), times in new.items() if any(times)}
        calls = {
            (sites[number], path): times
            for (number, path), times in new.items()
            if any(times) or (path is None and number not in called_now)
        }
        step_methods = {method for each in optimizers.all for method in each.kind.step_methods}
        names = optimizers.names()
        variables = self._root.variables.rows
        objects = self._root.variables.objects[: len(variables)]
        past = max((each.past for each in baseline.counts.values()), default=0)
        call = self._root.collectors.call
        records = tuple(
            replace(record, evidence=(*record.evidence, *call("evidence_on", index, record)))
            for index, record in enumerate(
                optimizers.records(names, baseline.iterations, self._root.blocks)
            )
        )
        rates = call("rates")
        not_updated = self._not_updated(variables, objects, past)
        notes = self._all_notes(blocks, unknown, names, baseline)
        last = max((each.steps for each in now.counts.values()), default=0)
        where, devices = self._root.where, self._root.devices
        ended_before = {replica: counted.past for replica, counted in baseline.counts.items()}
        lines: dict[Line, int] = {}
        rows = list(self._root.blocks.callers.rows)
        paths = tuple(tuple(lines.setdefault(line, len(lines)) for line in row) for row in rows)
        data = TraceData(
            optimizers=records,
            variables=tuple(variables),
            methods=tuple(Method(n, "step" if n in step_methods else "apply") for n in methods),
            replicas=tuple(Replica(where.worker, id, devices.get(id, "")) for id in replicas),
            blocks=tuple(blocks),
            calls=tuple(settle.calls_of(optimizers.root, calls, methods, replicas)),
            graphs=tuple(
                settle.graphs_of(
                    optimizers.root, now.graphs, baseline.graphs, ended_before, replicas
                )
            ),
            notes=notes,
            environment=self._root.backend.versions()
            | {"strategy": where.strategy, "cluster": ", ".join(where.cluster)},
            lines=tuple(lines),
            paths=paths,
            effects=tuple(settle.effects_of(optimizers.root, ended, replicas)),
            rates=tuple(rates_in(rates, range(past + 1, last + 1))),
            not_updated=not_updated,
        )
        return data, objects

    def _not_updated(
        self, variables: list[Variable], objects: list[ref[Any]], past: int
    ) -> tuple[NotUpdated, ...]:
        """The variables of the trained models that the optimizer does not get, which are appended.

        `objects` has the references of `variables`; the trace begins after `past` steps.
        """
        known = {id(each): index for index, each in enumerate(objects)}
        own, found = {*known}, self._root.collectors.call("model_variables")
        others = passed_to_any() - own if found else own
        alike: dict[tuple[WhyNot, int], dict[int, None]] = defaultdict(dict)
        for each in found:
            key = id(each.reference)
            was_got = key in own and not (each.why == "frozen" and each.since)
            if was_got or (key in others and each.why != "frozen"):  # something else trains it
                continue
            if key not in known:
                known[key] = len(variables)
                variables.append(each.record)
                objects.append(each.reference)
            alike[each.why, max(0, each.since - past)][known[key]] = None
        names = distinct(each.name for each in variables)
        variables[:] = [replace(each, name=n) for each, n in zip(variables, names, strict=True)]
        root = self._optimizers.root
        return tuple(NotUpdated(root, (*rows,), *key) for key, rows in alike.items())

    def _all_notes(
        self,
        blocks: Sequence[Block],
        unknown: Sequence[Note],
        names: Sequence[str],
        baseline: Baseline,
    ) -> tuple[Note, ...]:
        """All notes of the trace; `names` are the optimizers' names.

        `unknown` are the notes on unknown facts about the executions.
        """
        past = max((each.steps for each in baseline.counts.values()), default=0)
        missed = [*self._root.blocks.missed(names, baseline.iterations, past)]
        entries = [(block, entry) for block in blocks for entry in block.entries]
        roles = {entry.role for _, entry in entries if entry.kind != "none"}
        has_own_step = any(
            self._optimizers.all[entry.optimizer].own_steps
            for block, entry in entries
            if entry.role == "step" and block.total
        )
        if "request" in roles and "update" not in roles and has_own_step:
            missed.append(_BYPASSED)
        return (
            *_notes_on(self._root.where),
            *(
                note
                for note in list(self._root.notes)
                if note.kind != "fact" or note not in baseline.notes
            ),
            *unknown,
            *map(Note, missed),
        )


def _indices(values: Iterable[Any]) -> dict[Any, int]:
    """The index of each distinct value."""
    return {value: index for index, value in enumerate(dict.fromkeys(values))}


_NOT_COMPARED = (
    "effects are unknown for {}, which ran before effects were wanted, got no variable that can be "
    "compared, or were more in one call of a function than are kept"
)
_BYPASSED = (
    "gradients reached apply_gradients, but none of the optimizer's apply methods was called: it "
    "applies them itself, or with an optimizer made later; such updates are not counted"
)


def _notes_on(where: Surroundings) -> list[Note]:
    """Notes on the surroundings, in which nothing was missed."""
    if not where.strategy.startswith("ParameterServerStrategy"):
        return []
    text = (
        f"under {where.strategy}, the coordinator gives each step to a free worker, and the "
        "counters are on the parameter servers: it is unknown which worker ran an update"
    )
    return [Note(text, "fact")]
