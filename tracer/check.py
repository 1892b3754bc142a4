"""What is expected of a run, and why a trace is not as expected.

The assertions make expectations of their arguments, and `tracer check` of texts. An expectation
knows no objects of a program: only names, and rows of a trace. A failure has the counts that
differ, the report's rows of what was counted, and the findings on them. `tracer check` prints it as
a verdict, in each format.
"""

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, Literal, NamedTuple
from xml.etree import ElementTree

import msgspec

from tracer.errors import Mistake, UnknownName, unknown_name
from tracer.findings.rule import Severity, at_least, findings, findings_on, rule_of
from tracer.kinds import KINDS
from tracer.layout import paragraph
from tracer.model.counts import ROLES, Selection
from tracer.model.names import variables_meant, with_namesakes
from tracer.model.phrases import endings, replica_noun, steps_label
from tracer.model.records import Kind
from tracer.model.timeline import Timeline
from tracer.model.trace import Summary, Trace, summaries_of
from tracer.reporters import columns
from tracer.words import first_true, listed, shown, some, span

__tracebackhide__ = True  # for wrong arguments, pytest shows the line that passes them

WIDTH = 76  # pytest indents a message by 4
_MAX_NAMES = 3  # of replicas or stretches of steps
_MAX_ROWS = 12

Quantity = Literal["updates", "executions", "calls", "steps"]
"""The quantities that can be expected of a run."""

_STEPS = {method for kind in KINDS for method in kind.step_methods}
_APPLY = {method.name for kind in KINDS for method in kind.apply_methods}
METHODS = sorted(_STEPS | _APPLY)
"""The methods that `tracer` counts, for all kinds of optimizer."""


@dataclass(frozen=True)
class Expectation:
    """An expected count of a run: of all its steps or, with `per_step`, in each on each replica.

    Raises `TypeError` or `ValueError` for limits that no count can have.
    """

    what: Quantity
    low: int | None
    high: int | None
    """Inclusive limits; equal if the count is exact, None if there is none."""
    kind: Kind | None = None
    method: str | None = None
    names: tuple[str, ...] = ()
    """Names and globs of the variables that count; empty for all."""
    rows: frozenset[int] | None = None
    """The indices of these variables in the trace; None for all."""
    per_step: bool = False
    text: str = ""
    """The expression of `tracer check`; empty for an assertion."""
    per_variable: bool = False
    """Whether each of the variables has these limits, and not all of them together."""
    lacking: tuple[str, ...] = ()
    """The names of variables that should count, and that the trace does not have."""

    def __post_init__(self) -> None:
        for number in (self.low, self.high):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"{self.noun}: a count is an int, not {number!r}")
        if (self.low or 0) < 0 or (self.high is not None and self.high < (self.low or 0)):
            raise ValueError(f"{self.noun}: no count is {self.limits}")

    @property
    def noun(self) -> str:
        """`dense updates of encoder/*`, `executions of update_step on dense/kernel`."""
        kind = f"{self.kind} " if self.kind else ""
        method = f" of {self.method}" if self.method else ""
        of = f" {'on' if self.method else 'of'} {listed(self.names, 3)}" if self.names else ""
        return f"{kind}{self.what}{method}{of}"

    @property
    def limits(self) -> str:
        """`at least 4 in each step`."""
        if self.low is None:
            text = f"at most {self.high:,}"
        elif self.high is None:
            text = f"at least {self.low:,}"
        else:
            text = span((self.low, self.high))
        each = first_true(
            (self.per_step, " in each step"), (self.per_variable, " for each variable")
        )
        return f"{text}{each}"

    def holds(self, count: int) -> bool:
        """True if `count` is within the limits."""
        return (self.low or 0) <= count and (self.high is None or count <= self.high)


def runs_for_all(trace: Trace, method: str | None) -> bool:
    """True for a step method, which runs once for all variables."""
    roles = {each.role for each in trace.methods if each.name == method}
    return roles == {"step"} if roles else method in _STEPS - _APPLY


# Expectations as text.

_PATTERN = re.compile(
    r"\s*(?P<what>[A-Za-z_][\w.]*)\s*(?:\[(?P<variable>.*)\])?"
    r"\s*(?P<relation><=|>=|==|=|<|>)\s*(?P<number>\d[\d,_]*)\s*(?:/\s*(?P<per>step|variable)s?)?\s*"
)
# As people type them, `==` is `=`, and `/steps` is `/step`.
_LIMITS: dict[str, Callable[[int], tuple[int | None, int | None]]] = {
    "=": lambda number: (number, number),
    "==": lambda number: (number, number),
    "<=": lambda number: (None, number),
    ">=": lambda number: (number, None),
    "<": lambda number: (None, number - 1),
    ">": lambda number: (number + 1, None),
}
COUNTS: dict[str, tuple[Quantity, Kind | None]] = {
    "updates": ("updates", None),
    "dense": ("updates", "dense"),
    "sparse": ("updates", "sparse"),
    "steps": ("steps", None),
    "calls": ("calls", None),
}
"""The counts that a text can name, besides methods."""


def read(text: str) -> Expectation:
    """The expectation that `text` describes.

    Raises `Mistake` if it describes none.

    >>> read("dense[encoder/*]>=4/step").noun, read("dense[encoder/*]>=4/step").limits
    ('dense updates of encoder/*', 'at least 4 in each step')
    """
    parsed = _PATTERN.fullmatch(text)
    if parsed is None:
        raise Mistake(
            f'{text!r} is no expectation: write it as "dense=4/step", "updates[encoder/*]=0", '
            '"updates>=1/variable", "steps>=100" or "calls<=8"'
        )
    name, variable, per = parsed["what"], parsed["variable"], parsed["per"]
    what, kind = COUNTS.get(name, ("executions", None))
    if (per and what in ("steps", "calls")) or (variable is not None and what == "steps"):
        raise Mistake(f"{text!r}: {what} takes no {f'/{per}' if per else 'variable'}")
    method = None if name in COUNTS else name
    names = () if variable is None else (variable,)
    try:
        low, high = _LIMITS[parsed["relation"]](int(re.sub("[,_]", "", parsed["number"])))
        of_each = per == "step", text.strip(), per == "variable"
        return Expectation(what, low, high, kind, method, names, None, *of_each)
    except ValueError as error:
        raise Mistake(f"{text!r}: {error}") from None


# How the counts differ.


def _difference(trace: Trace, expected: Expectation) -> tuple[str, list[Summary]] | None:
    """`got 3 in each of 8 steps`, and the optimizers concerned; None if nothing differs."""
    measure, summaries = _selection(trace, expected), summaries_of(trace)
    asked = expected.rows or frozenset()
    summaries = [each for each in summaries if not asked.isdisjoint(each.variables)] or summaries
    ran = any(summary.steps for summary in summaries)
    if expected.per_variable:
        got = _for_each(trace, expected)
        return (got, summaries) if got else None
    if not expected.per_step:
        total = trace.steps if expected.what == "steps" else trace.counts.total(measure)
        how = _in_steps(summaries, measure, total) if expected.what in ROLES else ""
        got = f"got {total:,}{how if ran or not trace.complete else ', and no step ran'}"
        return None if expected.holds(total) else (got, summaries)
    if not ran:
        return "but no step ran", summaries
    wrong: dict[str, list[Summary]] = {}
    for summary in summaries:
        on_replicas = (_wrong(summary, each, measure, expected) for each in summary.replicas)
        if got := "; ".join(filter(None, dict.fromkeys(on_replicas))):
            wrong.setdefault(got, []).append(summary)
    got = "; ".join(f"{each}{_with(own)}" for each, own in wrong.items())
    return (got, list(chain(*wrong.values()))) if wrong else None


def _for_each(trace: Trace, expected: Expectation) -> str:
    """`got 0 for 2 of 5 variables (no step ran: head/kernel)`; empty if all are as expected."""
    number = len(trace.variables) if expected.rows is None else len(expected.rows)
    unmet, lacking = _unmet(trace, expected), [*expected.lacking]
    counts, of_all = [*unmet.values(), *(0 for _ in lacking)], number + len(lacking)
    if not counts:
        return "" if of_all else "but there is no variable"
    held = _held(trace)
    lacking += [trace.variables[index].name for index in sorted(unmet) if index not in held]
    why = "not passed to an optimizer" if trace.steps else "no step ran"
    why = f" ({why if trace.complete else 'not seen'}: {listed(lacking, _MAX_ROWS)})"
    got = f"got {span((min(counts), max(counts)))} for {len(counts):,} of"
    return f"{got} {some(of_all, 'variable')}{why if lacking else ''}"


def _unmet(trace: Trace, expected: Expectation) -> dict[int, int]:
    """The counts that are not as expected, of the variables that count, by their index."""
    made = trace.counts.by(["variable"], _selection(trace, expected))
    asked = range(len(trace.variables)) if expected.rows is None else expected.rows
    held = _held(trace)
    # Other ranks may hold all elements of a sharded variable.
    own = (index for index in asked if index in held or trace.variables[index].shards <= 1)
    return {index: n for index in own if not expected.holds(n := made.get((index,), 0))}


def _held(trace: Trace) -> frozenset[int]:
    """The variables that any optimizer has rows of."""
    return frozenset[int]().union(*(summary.variables for summary in summaries_of(trace)))


def _selection(trace: Trace, expected: Expectation) -> Selection:
    """The entries of the trace that count; none for a method that was never called."""
    named = (i for i, method in enumerate(trace.methods) if method.name == expected.method)
    return Selection(
        roles=ROLES.get(expected.what),
        kinds=None if expected.kind is None else frozenset({expected.kind}),
        methods=None if expected.method is None else frozenset(named),
        variables=expected.rows,
    )


def _in_steps(summaries: Sequence[Summary], measure: Selection, total: int) -> str:
    """`: 3 in each of 8 steps`, if steps of one optimizer made the total."""
    counted = [summary for summary in summaries if summary.total(measure)]
    if len(counted) != 1:
        return ""
    timeline = counted[0].timeline(measure)
    known = sum(count * number for (count,), number in timeline.spread.items()) == total
    number, noun = len(counted[0].replicas), replica_noun(counted[0].trace)
    of_all = f", of {some(number, noun)} together" if number > 1 else ""
    how = f": {_spread(timeline, lambda count: count > 0)}{of_all}" if known else ""
    return f"{how}{_with(counted)}"


def _with(summaries: Sequence[Summary]) -> str:
    """` with Adam#2`: the optimizers that counts are of; empty if the trace has only one."""
    names = [shown(summary.optimizers[0].name) for summary in summaries]
    is_one = len(summaries_of(summaries[0].trace)) == 1
    return "" if is_one else f" with {listed(names, _MAX_NAMES)}"


def _wrong(summary: Summary, replica: int, measure: Selection, expected: Expectation) -> str:
    """What wrong steps did on a replica; empty if none did."""
    if not summary.steps_on[replica]:
        return "but no step ran"
    outside = summary.outside(measure.on([replica]))
    timeline = summary.timeline(measure, replica=replica)
    texts = [f"{outside:,} outside any step"] if outside else []
    texts.append(_spread(timeline, lambda count: not expected.holds(count)))
    return f"got {' and '.join(filter(None, texts))}" if any(texts) else ""


def _spread(timeline: Timeline, is_meant: Callable[[int], bool]) -> str:
    """`2 to 3 in 5 of 12 steps (1-3, 7, ...)`: the steps with such counts; empty if none."""
    meant = {values for values in timeline.spread if is_meant(values[0])}
    if not meant:
        return ""
    number, steps = sum(timeline.spread[values] for values in meant), timeline.spread.total()
    labels = [steps_label(steps) for steps, values in timeline.parts() if values in meant]
    spans = ", ".join(labels[:_MAX_NAMES]) + (", ..." if len(labels) > _MAX_NAMES else "")
    where = f"{number:,} of {steps:,} steps ({spans})"
    if number == steps:
        where = f"{'each of ' if steps > 1 else ''}{some(steps, 'step')}"
    return f"{span((min(meant)[0], max(meant)[0]))} in {where}"


# Why the trace is not as expected.


def failure(trace: Trace, expected: Sequence[Expectation], *, partial: bool = False) -> str:
    """Why the trace is not as expected; empty if it is. The expectations are of the same variables.

    An incomplete trace is never as expected; with `partial`, its counts are judged all the same.
    """
    judged = {each: wrong for each in expected if (wrong := _difference(trace, each))}
    if not judged:
        return "" if partial else incomplete(trace, expected)
    heads = [_head(each, got) for each, (got, _) in judged.items()]
    concerned = (summary for _, summaries in judged.values() for summary in summaries)
    tables = [(own, _rows(own, next(iter(judged)))) for own in dict.fromkeys(concerned)]
    return _text(trace, heads, tables, notes=not partial)


def unknown(trace: Trace, expected: Iterable[Expectation], why: str, instead: str = "") -> str:
    """A text that the counts cannot be judged, why, and what the trace has instead."""
    lines = ["", *(line.plain for line in paragraph(shown(instead), WIDTH))] if instead else []
    return "\n".join([_text(trace, [_head(each, f"but {why}") for each in expected]), *lines])


def incomplete(trace: Trace, expected: Iterable[Expectation]) -> str:
    """Why an incomplete trace is not as expected; empty for a complete one."""
    heads = [_head(each, "but the trace is incomplete") for each in expected]
    return "" if trace.complete else _text(trace, heads or ["what was not seen cannot be asserted"])


def _head(expected: Expectation, got: str) -> str:
    return shown(f"{expected.noun}: expected {expected.limits}, {got}")


def _rows(summary: Summary, expected: Expectation) -> columns.Table:
    """The report's rows of what is expected: of the method, or of the variables that count."""
    known = {method.name for method in summary.trace.methods}
    of_method = expected.what == "calls" or runs_for_all(summary.trace, expected.method)
    of_method |= expected.method is not None and expected.method not in known
    by: columns.By = "method" if of_method else "variable"
    meant = frozenset(_unmet(summary.trace, expected)) if expected.per_variable else expected.rows
    part = columns.WHOLE if meant is None else columns.Part(rows={by: meant})
    table = columns.table(summary, by, part)
    rows = [row for row in table.rows if row.values.get("method") == expected.method] or table.rows
    if expected.what == "steps":
        rows = []
    elif expected.high == 0:
        rows = [row for row in rows if row.values.get(expected.kind or expected.what, True)]
    rows = sorted(rows, key=lambda row: not row.note)  # the odd ones first
    if len(rows) > _MAX_ROWS:
        rows = [row for row in rows if row.note] or rows
    return table._replace(rows=rows, below=())


def _text(
    trace: Trace,
    heads: Iterable[str],
    tables: Iterable[tuple[Summary, columns.Table]] = (),
    *,
    notes: bool = True,
) -> str:
    """The wrong counts, the notes of an incomplete trace, the rows, and the findings on them."""
    lines, found = list(heads), list[str]()
    if notes and not trace.complete:
        lines += _items('The trace is incomplete, so its counts are "at least":', trace.notes)
    for summary, table in tables:
        several = [f"{shown(summary.optimizers[0].name)}:"] if len(summaries_of(trace)) > 1 else []
        drawn = columns.drawn(table, WIDTH, _MAX_ROWS) if table.rows else []
        lines += ["", *several, *(line.plain for line in drawn)] if drawn else []
        names = {row.values.get("variable") for row in table.rows}
        for finding in findings_on(trace, summary.root):
            if {None} >= names or not finding.variables or not names.isdisjoint(finding.variables):
                found.append(f"{finding.severity}[{finding.code}]: {finding.text} {finding.advice}")
    return "\n".join(lines + (_items("Findings:", dict.fromkeys(found)) if found else []))


def _items(head: str, texts: Iterable[str]) -> list[str]:
    items = (line.plain for text in texts for line in paragraph(shown(text), WIDTH, "  - "))
    return ["", head, *items]


# The verdicts of `tracer check`.


class Verdict(NamedTuple):
    """An expectation as text, and why it fails, in printable lines; no reason if it holds."""

    text: str
    reason: str = ""


class Settings(msgspec.Struct, forbid_unknown_fields=True):
    """The contents of `[tool.tracer]` in a `pyproject.toml`."""

    expect: dict[str, int | float | str] = {}
    """Counts, each with a number or a text such as `"4/step"` or `">= 4/step"`."""
    ignore: list[str] = []
    """Codes of findings."""


def from_project(folder: Path) -> tuple[list[Expectation], list[str]]:
    """The expectations, and the codes to ignore, in the nearest `pyproject.toml`.

    Raises `Mistake` for a file or an expectation that cannot be read.
    """
    paths = (top / "pyproject.toml" for top in (folder, *folder.parents))
    path = next((path for path in paths if path.is_file()), None)
    try:
        text = "" if path is None else path.read_text(encoding="utf-8-sig")
        table = msgspec.toml.decode(text, type=dict[str, Any]).get("tool", {}).get("tracer", {})
        own = msgspec.convert(table, Settings)
    except (OSError, ValueError, AttributeError, msgspec.MsgspecError) as error:
        raise Mistake(f"{path}: [tool.tracer]: {error}") from error
    texts = ((count, str(value).strip()) for count, value in own.expect.items())
    written = [f"{count}{'' if text[:1] in '<>=' else '='}{text}" for count, text in texts]
    return list(map(read, written)), own.ignore


def verdicts(
    trace: Trace,
    expectations: Sequence[Expectation],
    worst: Severity | None = None,
    *,
    ignore: Collection[str] = (),
    allow_unfinished: bool = False,
) -> list[Verdict]:
    """The verdicts on a trace; an incomplete trace never passes.

    With `worst`, findings at least that severe fail, except those with a code in `ignore`. With
    `allow_unfinished`, the program may have failed or may still run.

    Raises `tracer.UnknownName` for a method unknown to both the trace and `tracer`, and for a code
    without a finding.
    """
    found = [Verdict(shown(each.text), _reason(trace, each)) for each in expectations]
    ignored = listed([rule_of(code).code for code in ignore])
    if worst:
        apart = f" apart from {ignored}" if ignored else ""
        bad = [each for each in at_least(findings(trace), worst) if each.code not in ignore]
        worse = "error" if worst == "error" else f"{worst} or error"
        found += [Verdict(f"finding {each.code}", f"{each.text} {each.advice}") for each in bad]
        lost = "" if bad else _for_each(trace, Expectation("updates", 1, None, per_variable=True))
        hint = f" (updates>=1/variable: {lost})" if trace.variables and lost else ""
        found += [] if bad else [Verdict(f"no {worse} is found{apart}{hint}")]
    if not trace.complete:
        notes = "\n".join(map(shown, trace.notes))
        found.append(Verdict("the trace is complete", notes or "it is not"))
    ends = endings(trace)
    if not trace.finished:
        ends = ["the run went on, or was killed, after it was written", *ends]
    if ends and not allow_unfinished:
        found.append(Verdict("the program ended well", "\n".join(ends)))
    return found


def _reason(trace: Trace, expected: Expectation) -> str:
    """Why the counts are not as expected; a separate verdict says whether the trace is complete."""
    names = [method.name for method in trace.methods]
    # `update` is a method of optax, and `updates` with a letter missing.
    elsewhere = [name for name in METHODS if f"{name}s" not in COUNTS]
    if expected.method is not None and expected.method not in (*names, *elsewhere):
        known = (*COUNTS, *names)
        meant = get_close_matches(expected.method, (*known, *elsewhere), n=1, cutoff=0.7)
        raise unknown_name("count", expected.method, known, meant=meant)
    if (expected.names or expected.per_variable) and runs_for_all(trace, expected.method):
        why = f"{expected.method} runs once for all variables; write updates[...]"
        raise Mistake(f"{expected.text}: {why}")
    rows = None
    try:
        for variable in expected.names:  # one at most
            meant_by_name = variables_meant(variable, trace.variables, None)
            rows = with_namesakes(meant_by_name, trace.variables)
    except UnknownName as error:  # it may be a variable that no optimizer gets
        why = f"the trace holds no variable {shown(expected.names[0])!r}"
        return unknown(trace, [expected], why, error.instead)
    return failure(trace, [replace(expected, rows=rows)], partial=True)


# The verdicts in each format.


def as_text(verdicts: Sequence[Verdict]) -> str:
    """A paragraph for each verdict, with the rest of a longer reason below it."""
    lines = []
    for verdict in verdicts:
        first, *rest = verdict.reason.split("\n")
        head = f"{verdict.text}: {first}" if first else verdict.text
        lines += paragraph(head, 80, "FAILS  " if first else "holds  ")
        for line in rest:  # tables are narrower
            lines += paragraph(line, WIDTH + 7, " " * 7)
    return "".join(f"{line.plain.rstrip()}\n" for line in lines)


def as_junit(verdicts: Sequence[Verdict]) -> str:
    """One test suite with a test case for each expectation."""
    number, failed = str(len(verdicts)), str(sum(bool(verdict.reason) for verdict in verdicts))
    suites = ElementTree.Element("testsuites")
    suite = ElementTree.SubElement(suites, "testsuite", tests=number, failures=failed)
    suite.set("name", "tracer check")
    for text, reason in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname="tracer", name=text)
        if reason:
            first = reason.partition("\n")[0]
            ElementTree.SubElement(case, "failure", message=first).text = reason
    ElementTree.indent(suites)
    return f"{ElementTree.tostring(suites, encoding='unicode')}\n"


def as_github(verdicts: Sequence[Verdict]) -> str:
    """A workflow command for each failed verdict, which GitHub shows as an annotation.

    Sources: `escapeData` and `escapeProperty` of github.com/actions/toolkit, packages/core,
    src/command.ts; docs.github.com/actions/reference/workflow-commands-for-github-actions.
    """
    lines = [f"holds  {each.text}\n" for each in verdicts if not each.reason]
    for verdict in (each for each in verdicts if each.reason):
        title, message = (each.replace("%", "%25").replace("\n", "%0A") for each in verdict)
        title = title.replace(":", "%3A").replace(",", "%2C")
        lines.append(f"::error title=tracer check%3A {title}::{message}\n")
    return "".join(lines)


FORMATS = {"text": as_text, "junit": as_junit, "github": as_github}
