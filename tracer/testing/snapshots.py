"""How the counts of two traces differ, as a text that git and people can read."""

import re
from collections.abc import Iterator, Sequence

from tracer.model.records import Kind, Run, segments
from tracer.model.tally import Tally, tallies
from tracer.model.trace import Trace
from tracer.reporters.layout import shown
from tracer.snapshot import distinct
from tracer.testing.failure_rows import label


def difference(expected: Trace, actual: Trace) -> str:
    """The lines that differ, `-` what was expected and `+` what there is; empty if none does.

    Compared are the executions of each method on each variable, with kind, steps and replica; not
    times, versions, Python calls or how the work was spread over graphs. Keras numbers its names
    in the order in which layers are made in a process (`dense_7/kernel`), so if the names differ in
    such numbers only, those of `expected` stand for those of `actual`.
    """
    names = [each.name for each in expected.variables]
    new = [each.name for each in actual.variables]
    if _renumbered(names) != _renumbered(new):
        names = new
    before = counts(expected, [each.name for each in expected.variables])
    after = counts(actual, names)
    changes = []
    for what in {**before, **after}:
        if before.get(what) != after.get(what):
            sides = (("-", before), ("+", after))
            changes += [f"{sign}{what}: {side[what]}" for sign, side in sides if what in side]
    return "\n".join(changes)


def counts(trace: Trace, names: Sequence[str]) -> dict[str, str]:
    """What was executed, by method, variable, kind and replica, and in which steps.

    `names` are those of the trace's variables.
    """
    found = tallies(trace)
    classes = distinct(each.optimizers[0].class_name.rpartition(".")[2] for each in found)
    return {
        what: steps
        for name, each in zip(classes, found, strict=True)
        for what, steps in _counts(each, f"{name}." * (len(found) > 1), names)
    }


def _counts(found: Tally, optimizer: str, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    trace = found.trace
    runs: dict[tuple[int, int, Kind | None, int], list[tuple[Run, int]]] = {}
    outside: dict[tuple[int, int, Kind | None, int], int] = {}
    for block in found.blocks:
        for entry in block.entries:
            if entry.role != "request" and block.total:
                for variable in entry.variables or (-1,):
                    key = entry.method, variable, entry.kind, block.replica
                    runs.setdefault(key, []).extend(
                        (run, entry.times * run.times) for run in block.runs
                    )
                    beyond = block.total * entry.times * block.outside
                    outside[key] = outside.get(key, 0) + beyond
    known: dict[tuple[tuple[Run, int], ...], str] = {}
    for key in sorted(runs, key=lambda key: (key[1], key[0], str(key[2]), key[3])):
        method, variable, kind, replica = key
        where = f" on {shown(names[variable])}" if variable >= 0 else ""
        of = f" ({kind})" if kind else ""
        place = trace.replicas[replica]
        on = f", {shown(place.worker)} replica {place.id}".replace("  ", " ")
        weights = tuple(runs[key])
        if weights not in known:
            known[weights] = _steps(weights, found.steps)
        counted = [known[weights]] * bool(weights)
        counted += [f"{outside[key]:,} outside any step"] * bool(outside[key])
        head = f"{optimizer}{shown(trace.methods[method].name)}{where}{of}"
        yield f"{head}{on * (len(trace.replicas) > 1)}", "; ".join(counted)


def _steps(weighted: Sequence[tuple[Run, int]], steps: int) -> str:
    """`1 in each of steps 1-32, 34-64`, for each count that is not 0."""
    spans: dict[int, list[tuple[int, int]]] = {}
    for first, last, count in segments(weighted, steps):
        if count:
            spans.setdefault(count, []).append((first, last))
    return "; ".join(f"{count:,} in each of steps {label(spans[count])}" for count in sorted(spans))


def _renumbered(names: Sequence[str]) -> list[str]:
    """The names with the numbers at the ends of their parts in the order of appearance."""
    seen: dict[str, dict[str, int]] = {}

    def number(match: re.Match[str]) -> str:
        numbers = seen.setdefault(match[1], {})
        return f"{match[1]}_{numbers.setdefault(match[0], len(numbers))}"

    return [re.sub(r"([^/#]+?)(?:_\d+)?(?=/|#|$)", number, name) for name in names]
