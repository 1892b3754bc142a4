"""The tables of the text report: one optimizer's counts by variable, step, replica and method."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Literal, NamedTuple

from rich.text import Text

from tracer.model import tally
from tracer.model.labels import labelled
from tracer.model.records import Kind, Role
from tracer.model.tally import Alike, Measure, Part, Tally, counting
from tracer.model.wording import some
from tracer.reporters.layout import Column, Row, Table, paragraph, shown

By = Literal["variable", "step", "replica", "worker", "method"]

ODD = "bold yellow"
WRONG = "bold red"
_FEW = 30  # rows of a table in the whole report
_MOST = 1000  # rows of a table that was asked for

_KINDS = (Column("updates"), Column("dense", drop=3), Column("sparse", drop=3))


def by_variable(found: Tally, width: int, everything: bool) -> list[Text]:
    """A row for each variable; a long table keeps the first rows and those that are odd."""
    several = len(found.replicas) > 1
    columns = [_KINDS[0], Column("a step", drop=2), *_KINDS[1:]]
    columns += [Column("by replica", drop=4)] * several
    rows = list(_Variables(found).rows())
    kept = _first(rows, _MOST if everything else _FEW)
    lines = Table("variable", columns, kept).lines(width)
    if rest := len(rows) - len(kept):
        odd = sum(bool(row.note) for row in rows) - sum(bool(row.note) for row in kept)
        more = f"… and {some(rest, 'more variable')}{f', {odd:,} of them odd' if odd else ''}"
        see = 'trace.count("updates", by=("variable",))' if everything else 'by="variable"'
        lines += paragraph(f"{more}: {see} has them all", width, style="dim")
    empty = found.spread(tally.updates)[(0,)]
    if 0 < empty < found.steps and not found.unplaced(tally.updates):
        of = f"of the {some(found.steps - empty, 'step')} that updated anything"
        rate = f"a step: {'on each replica, ' * several}{of}"
        lines += paragraph(f"({rate})", width, style="dim")
    return lines


def by_step(found: Tally, width: int, everything: bool) -> list[Text]:
    """A row for equal steps, however many; a cycle of steps has a row for each of its parts."""
    stretches = found.stretches(
        tally.steps, tally.dense, tally.sparse, tally.requests, tally.missing
    )
    rows = [
        _step_row(found, *each)
        for stretch in stretches
        for each in labelled(stretch, found.trace.first_step)
    ]
    most = _MOST if everything else _FEW
    kept = rows if len(rows) <= most else rows[: most - 1]
    table = Table("each of steps", _KINDS, kept.copy(), cut_names=False)
    lost, outside = (
        [count(measure) for measure in (tally.updates, tally.dense, tally.sparse)]
        for count in (found.unplaced, found.outside)
    )
    if found.unplaced(tally.steps) or any(lost):
        cells = tuple(f"{count:,}" for count in lost)
        table.rows.append(Row("step not known", cells, "in all; steps above may have more", ODD))
    if any(outside):
        cells = tuple(f"{count:,}" for count in outside)
        table.rows.append(Row("outside any step", cells, "in all; a direct call", ODD))
    lines = table.lines(width)
    if rest := len(rows) - len(kept):
        see = 'trace.per_step("updates")' if everything else 'by="step"'
        last = found.steps + found.trace.first_step - 1
        more = f"… and {some(rest, 'more row')} up to step {last:,}: {see} has them all"
        lines += paragraph(more, width, style="dim")
    return lines


def by_replica(found: Tally, width: int, everything: bool) -> list[Text]:
    """A row for each replica; one with fewer updates than the others says since when."""
    workers = len(_workers(found)) > 1
    behind = _behind(found, [[index] for index in found.replicas])
    columns = [Column("worker", left=True)] * workers
    columns += [
        Column("steps"),
        *_KINDS,
        *_BEHIND[: any(behind)],
        Column("device", drop=4, left=True),
    ]
    rows = []
    devices = _devices(found)
    for index, late in zip(found.replicas, behind, strict=True):
        replica = found.trace.replicas[index]
        worker = (shown(replica.worker),) * workers
        counts = (found.steps_on[index], *(found.total(m, index) for m in _MEASURES))
        style = ODD if found.steps_on[index] < found.steps or late else ""
        lag = (late or "-",) * any(behind)
        cells = (*worker, *(f"{count:,}" for count in counts), *lag, devices[index])
        rows.append(Row(str(replica.id), cells, style=style))
    lines = Table("replica", columns, rows if everything else rows[:_FEW]).lines(width)
    if len(rows) > _FEW and not everything:
        more = f'… and {some(len(rows) - _FEW, "more replica")}: by="replica" has them all'
        lines += paragraph(more, width, style="dim")
    return lines


def by_worker(found: Tally, width: int, everything: bool) -> list[Text]:
    """A row for each worker, with its replicas together."""
    workers = _workers(found)
    behind = _behind(found, list(workers.values()))
    rows = []
    for (worker, replicas), late in zip(workers.items(), behind, strict=True):
        steps = max(found.steps_on[each] for each in replicas)
        sums = (sum(found.total(measure, each) for each in replicas) for measure in _MEASURES)
        lag = (late or "-",) * any(behind)
        cells = (*(f"{count:,}" for count in (len(replicas), steps, *sums)), *lag)
        rows.append(Row(shown(worker) or "(local)", cells, style=ODD if late else ""))
    columns = (Column("replicas", drop=2), Column("steps"), *_KINDS, *_BEHIND[: any(behind)])
    return Table("worker", columns, rows).lines(width)


def _behind(found: Tally, groups: Sequence[Sequence[int]]) -> list[str]:
    """For each group of replicas how many updates it is behind the first of those with most."""
    totals = [sum(found.total(tally.updates, each) for each in group) for group in groups]
    if len({len(group) for group in groups}) != 1 or len(set(totals)) == 1:
        return [""] * len(groups)
    leaders = groups[totals.index(max(totals))]
    late = []
    for group, total in zip(groups, totals, strict=True):
        missing, since = (0, None) if total == max(totals) else found.behind(group, leaders)
        step = "" if since is None else f" since step {since:,}"
        late.append(f"{missing:,}{step}" if missing else "")
    return late


def by_method(found: Tally, width: int, everything: bool) -> list[Text]:
    """A row for each method: executions, and beside them the Python calls and their graphs."""
    columns = (
        Column("executions"),
        Column("calls\neager", drop=2),
        Column("calls\ntracing", drop=1),
        Column("\ngraphs", drop=3),
        Column("never\nran", drop=3),
    )
    rows = []
    for index in found.methods:
        measure = tally.of_methods([index])
        graphs, idle = found.graphs(measure)
        counts = (found.total(measure), *found.calls(index), graphs, idle)
        name = shown(found.trace.methods[index].name)
        cells = tuple(f"{count:,}" for count in counts)
        rows.append(Row(name, cells, style="" if counts[0] else WRONG))
    return Table("method", columns, rows).lines(width)


TABLES: dict[By, Callable[[Tally, int, bool], list[Text]]] = {
    "variable": by_variable,
    "step": by_step,
    "replica": by_replica,
    "worker": by_worker,
    "method": by_method,
}
_BEHIND = (Column("behind", drop=3, left=True),)
_MEASURES = (tally.updates, tally.dense, tally.sparse)


_Key = tuple[tuple[int, int], ...]
"""The places of blocks (`Tally.places`), and how often each of their executions counts."""


class _Said(NamedTuple):
    """What is said of a variable."""

    dense: int
    sparse: int
    by_replica: str
    a_step: str
    """`1`, or `0-1` where the steps differ; `?` where the steps are not known."""
    none: str
    """`3 steps` if the variable had no gradient in 3 steps, empty if it always had one."""


class _Variables:
    """What is said of each variable; variables of the same blocks share the work on the steps."""

    def __init__(self, found: Tally) -> None:
        self._found = found
        self._rates: dict[_Key, str] = {}
        self._none: dict[_Key, str] = {}

    def rows(self) -> Iterator[Row]:
        found = self._found
        said: dict[int, _Said] = {}
        for alike in found.alike:
            said |= dict.fromkeys(alike.variables, self._said(alike))
        only_called = _Said(0, 0, _split([0] * len(found.replicas)), "0", "")
        for index in found.variables:
            variable, of = found.trace.variables[index], said.get(index, only_called)
            total, note = of.dense + of.sparse, of.none and f"no gradient in {of.none}"
            if not total:
                note = f"never updated{note and f': {note}'}"
            name = shown(variable.name) or "''"
            if variable.argument:
                name = name if name.startswith("argument ") else f"argument {name}"
                note = f"stands for each variable passed{note and f'; {note}'}"
            cells = (f"{total:,}", of.a_step, f"{of.dense:,}", f"{of.sparse:,}")
            split = (of.by_replica,) * (len(found.replicas) > 1)
            style = WRONG if not total else ODD if of.none else ""
            yield Row(name, (*cells, *split), note, style)

    def _said(self, alike: Alike) -> _Said:
        of_replica: Counter[int] = Counter()
        of_kind: Counter[Kind | None] = Counter()
        for _, block, entry in alike.entries:
            if entry.role == "update" and entry.kind in _SOME_KINDS:
                of_replica[block.replica] += entry.times * block.total
                of_kind[entry.kind] += entry.times * block.total
        by_replica = _split([of_replica[each] for each in self._found.replicas])
        a_step, none = self._a_step(alike), self._without_gradient(alike)
        return _Said(of_kind["dense"], of_kind["sparse"], by_replica, a_step, none)

    def _a_step(self, alike: Alike) -> str:
        found, (key, measure) = self._found, _measured(alike, "update", _SOME_KINDS)
        if key not in self._rates:
            counts = {n for each in found.replicas for n in found.rates(measure, each)} or {0}
            low, high = min(counts), max(counts)
            known = f"{low:,}" if low == high else f"{low:,}-{high:,}"
            self._rates[key] = "?" if found.unplaced(measure) else known
        return self._rates[key]

    def _without_gradient(self, alike: Alike) -> str:
        found, (key, measure) = self._found, _measured(alike, "request", ("none",))
        if key and key not in self._none:
            steps = sum(number for (count,), number in found.spread(measure).items() if count)
            lost = found.unplaced(measure)
            known = f"at least {some(steps, 'step')}" if lost else some(steps, "step")
            self._none[key] = known if steps or lost else ""
        return self._none.get(key, "")


def _measured(alike: Alike, role: Role, kinds: Sequence[Kind]) -> tuple[_Key, Measure]:
    """A measure of one of the variables, and a key that is equal for equal counts."""
    weights: Counter[int] = Counter()
    for place, _, entry in alike.entries:
        if entry.role == role and entry.kind in kinds:
            weights[place] += entry.times
    return tuple(sorted(weights.items())), counting([role], kinds, variable=alike.variables[0])


_SOME_KINDS: tuple[Kind, Kind] = ("dense", "sparse")


def _first(rows: list[Row], most: int) -> list[Row]:
    """The odd rows and then the first others, `most` in all, in their own order."""
    ranked = sorted(range(len(rows)), key=lambda index: (not rows[index].note, index))
    return [rows[index] for index in sorted(ranked[:most])]


def _split(counts: Sequence[int]) -> str:
    """`63 + 63`, `63 x 8` for many that are equal, `60-63` for many that are not."""
    if len(counts) <= 3:
        return " + ".join(f"{count:,}" for count in counts)
    low, high = min(counts), max(counts)
    return f"{low:,} x {len(counts):,}" if low == high else f"{low:,}-{high:,}"


def _step_row(found: Tally, label: str, part: Part) -> Row:
    _, (entered, dense, sparse, requested, missing) = part
    updates = dense + sparse
    notes = []
    if not entered:
        notes.append("not recorded")
    elif not updates:
        reason = "requested, not applied" if requested else "nothing requested"
        notes.append(f"0 updates: {'no gradients' if missing and not requested else reason}")
    elif missing:
        notes.append(f"{missing:,} without gradient")
    if 0 < entered < len(found.replicas):
        notes.append(f"on {entered:,} of {len(found.replicas):,} replicas")
    cells = tuple(f"{count:,}" for count in (updates, dense, sparse))
    if not updates and found.unplaced(tally.updates):
        notes, cells = ["not known"], ("?",) * len(cells)
    return Row(label, cells, "; ".join(notes), ODD if notes else "")


def _devices(found: Tally) -> dict[int, str]:
    """The replicas' devices as `CPU:0`; in full where that would make two of a worker equal."""
    replicas = {index: found.trace.replicas[index] for index in found.replicas}
    short = {index: each.device.rpartition("device:")[2] for index, each in replicas.items()}
    places = {(each.worker, short[index]) for index, each in replicas.items() if each.device}
    enough = len(places) == sum(bool(each.device) for each in replicas.values())
    return {
        index: shown(short[index] if enough else each.device) or "-"
        for index, each in replicas.items()
    }


def _workers(found: Tally) -> dict[str, list[int]]:
    workers: dict[str, list[int]] = {}
    for index in found.replicas:
        workers.setdefault(found.trace.replicas[index].worker, []).append(index)
    return workers
