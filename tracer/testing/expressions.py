"""What a run is expected to do, and whether it did: the gate of `tracer check`. No TensorFlow."""

import operator
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tracer.errors import unknown_name
from tracer.findings.cases import Severity
from tracer.findings.catalogue import at_least, findings
from tracer.model import tally
from tracer.model.labels import labelled
from tracer.model.records import Block, contribution
from tracer.model.tally import Measure, Tally
from tracer.model.trace import Trace

_PATTERN = re.compile(
    r"\s*(?P<what>[A-Za-z_][\w.]*)\s*(?:\[(?P<variable>.*)\])?"
    r"\s*(?P<relation><=|>=|==|=|<|>)\s*(?P<number>\d[\d_,]*)\s*(?P<step>/\s*step)?\s*"
)
_RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "=": operator.eq,
    "==": operator.eq,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_KINDS = ("updates", "dense", "sparse")
HELP = 'write it as "dense=4/step", "sparse=0", "updates[encoder/*]=0", "steps>=100" or "calls<=8"'


class BadExpectation(ValueError):
    """Raised for an expectation that cannot be read; says how to write one."""


@dataclass(frozen=True)
class Expectation:
    """A count, and what it should be: in all, or in each step on each replica."""

    text: str
    what: str
    """`updates`, `dense`, `sparse`, `steps`, `calls`, or a method, whose executions count."""
    variable: str | None
    relation: str
    number: int
    per_step: bool

    def holds(self, count: int) -> bool:
        """Whether this count is as expected."""
        return _RELATIONS[self.relation](count, self.number)


@dataclass(frozen=True)
class Verdict:
    """An expectation, and why it does not hold; an empty reason if it does."""

    text: str
    reason: str = ""


def read(text: str) -> Expectation:
    """The expectation that `text` says.

    Raises `BadExpectation` for what is none.

    >>> read("dense[encoder/*]>=4/step").number
    4
    """
    found = _PATTERN.fullmatch(text)
    if found is None:
        raise BadExpectation(f"{text!r} is no expectation: {HELP}")
    number = int(re.sub(r"[,_]", "", found["number"]))
    per_step = found["step"] is not None
    what, variable = found["what"], found["variable"]
    if per_step and what in ("steps", "calls"):
        raise BadExpectation(f"{text!r}: {what} are not counted by step")
    if variable is not None and what == "steps":
        raise BadExpectation(f"{text!r}: steps are not counted by variable")
    return Expectation(text.strip(), what, variable, found["relation"], number, per_step)


def from_project(folder: Path) -> list[Expectation]:
    """What `[tool.tracer.expect]` says in the `pyproject.toml` of a folder or of one above it.

    A key is what is counted, the value a number or a text such as `"4/step"` or `">= 4/step"`.
    Raises `BadExpectation` for a file or an entry that cannot be read; without a file, or without
    the table in it, there is no expectation.
    """
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    path = next(
        (each for top in (folder, *folder.parents) if (each := top / "pyproject.toml").is_file()),
        None,
    )
    if path is None:
        return []
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        table = content.get("tool", {}).get("tracer", {}).get("expect", {})
        if not isinstance(table, Mapping):
            raise BadExpectation("[tool.tracer.expect] is no table")
        return [read(_joined(key, value)) for key, value in table.items()]
    except (AttributeError, OSError, ValueError) as error:
        raise BadExpectation(f"{path}: {error}") from error


def _joined(key: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise BadExpectation(f"{key} = {value!r} is no expectation: {HELP}")
    text = str(value).strip()
    return f"{key}{'' if text[:1] in '<>=' else '='}{text}"


def check(
    trace: Trace, expectations: list[Expectation], worst: Severity | None = None
) -> list[Verdict]:
    """What holds and what does not; a trace that does not know everything is no proof.

    With `worst`, findings that are as bad, or worse, are what does not hold.

    Raises `tracer.UnknownName` for a method or a variable that the trace does not hold.
    """
    verdicts = [Verdict(each.text, "; ".join(_failures(trace, each))) for each in expectations]
    if worst is not None:
        found = at_least(findings(trace), worst)
        verdicts += [Verdict(f"no {each.code}", f"{each.text} {each.advice}") for each in found]
        if not found:
            verdicts.append(Verdict(f"no {worst} among the findings"))
    if not trace.complete:
        verdicts.append(Verdict("the trace is complete", " ".join(trace.notes) or "it is not"))
    if not trace.finished:
        said = "the run went on, or was killed, after it was written"
        verdicts.append(Verdict("the trace is of a finished run", said))
    return verdicts


def _failures(trace: Trace, expected: Expectation) -> Iterator[str]:
    if expected.per_step:
        measure = _measure(trace, expected)
        found = [each for each in tally.tallies(trace) if each.steps]
        if expected.variable is not None:  # of several optimizers only that which has it
            found = [each for each in found if each.total(tally.requests) and _has(each, measure)]
        if not found:
            yield "there was no step"
        for each in found:
            name = f" of {each.optimizers[0].name}" if len(found) > 1 else ""
            for replica in each.replicas:
                if reason := _uneven(each, replica, measure, expected):
                    of = trace.replicas[replica]
                    where = f"{of.worker} replica {of.id}".strip()
                    yield reason + name + (f" on {where}" if len(each.replicas) > 1 else "")
        return
    count = _total(trace, expected)
    if not expected.holds(count):
        yield f"it is {count:,}"


def _has(found: Tally, measure: Measure) -> bool:
    return any(measure(block) for block in found.blocks) or len(tally.tallies(found.trace)) == 1


def _uneven(found: Tally, replica: int, measure: Measure, expected: Expectation) -> str:
    """The first steps with another count, and how many more there are; empty if there is none."""
    bad = [
        f"it is {count:,} in {'step' if label.isdigit() else 'steps'} {label}"
        for stretch in found.stretches(measure, replica=replica)
        for label, (_, (count,)) in labelled(stretch)
        if not expected.holds(count)
    ]
    more = f" (and {len(bad) - 1:,} more)" if len(bad) > 1 else ""
    return bad[0] + more if bad else ""


def _measure(trace: Trace, expected: Expectation) -> Measure:
    """What one execution of a block counts of it."""
    kinds = {"updates": ("dense", "sparse"), "dense": ("dense",), "sparse": ("sparse",)}
    chosen = trace._filter(None, _method(trace, expected), expected.variable, *[None] * 4)
    roles = {"update"} if expected.what in _KINDS else {"step", "update", "apply"}

    def measure(block: Block) -> int:
        return sum(
            contribution(entry, chosen.variables)
            for entry in block.entries
            if entry.role in roles
            and (expected.what not in kinds or entry.kind in kinds[expected.what])
            and (chosen.methods is None or entry.method in chosen.methods)
        )

    return measure


def _method(trace: Trace, expected: Expectation) -> str | None:
    """The method that is meant, None for a word of ours."""
    words = (*_KINDS, "steps", "calls")
    if expected.what in words:
        return None
    names = [each.name for each in trace.methods]
    if expected.what not in names:
        raise unknown_name("count", expected.what, (*words, *names))
    return expected.what


def _total(trace: Trace, expected: Expectation) -> int:
    variable = expected.variable
    if expected.what == "steps":
        return trace.steps
    if expected.what == "calls":
        return trace.calls(variable=variable)
    if expected.what in ("dense", "sparse"):
        return trace.updates(expected.what, variable=variable)  # type: ignore[arg-type]
    if expected.what == "updates":
        return trace.updates(variable=variable)
    return trace.executions(_method(trace, expected), variable=variable)
