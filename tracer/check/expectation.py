"""Model what is expected of a run: for the assertions, the pytest plugin and `tracer check`.

An `Expectation` says what to count and where, with `Limits`. `Target`s are the variables meant by a
variable, a layer, a model, a tree of JAX arrays or a name. A `Claim` is an expectation of a trace,
and `JudgedSteps` are the steps of one of its optimizers, with the wrong ones.
`tracer.check.failure` explains failures.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple

from tracer.backends.objects import is_loose_tensor, leaves_of, name_of, names_alive
from tracer.errors import UnknownName, shown, unknown_name
from tracer.kinds import KINDS
from tracer.model.measures import (
    KINDS as GRADIENTS,
    ROLES,
    Selection,
    counted,
    missing,
    requests,
    zeroed,
)
from tracer.model.names import (
    is_meant,
    near_patterns,
    shards_of,
    variables_meant,
    with_namesakes,
)
from tracer.model.phrases import SET_TO_ZERO, replica_names
from tracer.model.records import OBSERVATIONS, Kind, Variable, contribution
from tracer.model.summary import Counts, Pattern, Summary, summaries_of
from tracer.model.timeline import Steps, Timeline, Values
from tracer.model.trace import Trace
from tracer.model.words import first_of, first_true, some, span

__tracebackhide__ = True  # for wrong arguments, pytest shows the line that passes them
MAX_NAMES = 3
"""How many names a sentence lists, and how many stretches of steps a row."""


@dataclass(frozen=True)
class Target:
    """A variable that an expectation concerns."""

    name: str
    index: int | None = None
    """Its index in the trace; None if the trace does not have it."""
    given: object = None
    """The argument that means it, a name or a variable; None for a leaf of a tree."""


def of_given(variable: object, word: str = " of ") -> str:
    """` of dense/kernel`; empty for None. Raises `TypeError` for an object without a name.

    A PyTorch module has no name; its parameters are named instead.
    """
    parts = [] if variable is None else shards_of(variable) or [variable]
    if not hasattr(variable, "name"):
        parts = list(_own(variable) or parts)
    try:
        names = [each if isinstance(each, str) else name_of(each) for each in parts]
    except TypeError:
        raise TypeError(
            f"variable must be a name, a glob, a variable, a layer or a model, not {variable!r}"
        ) from None
    return word + first_of(names, MAX_NAMES) if names else ""


def indices_of(trace: Trace, given: object) -> frozenset[int]:
    """The indices of the variables that a name, a variable, a layer or a model means.

    A name means all variables with that name, also in several models.

    Raises `tracer.UnknownName` if the trace has none of them.
    """
    known = indices(targets_meant(trace, given, "variables"))
    first = next(iter(_own(given) or ()), given)  # a PyTorch module has no name
    return known or variables_meant(first, trace.variables, trace.objects)  # which raises


def leaves_meant(trace: Trace, leaves: Iterable[Variable]) -> list[Target]:
    """The targets for these leaves, in each transformation that has them.

    The tree does not tell which transformation is meant: `kernel` also means `kernel#2` if both
    have its shape. Here, a leaf of a model trained by `vmap` or `pmap` may have additional leading
    dimensions.
    """
    meant: list[Target] = []
    for leaf in leaves:
        path = leaf.name.removesuffix("/value")  # Flax NNX has it, optax does not
        same = re.compile(rf"({re.escape(leaf.name)}|{re.escape(path)})(#\d+)?")
        named = [n for n, each in enumerate(trace.variables) if same.fullmatch(each.name)]
        shapes = [leaf.shape[more:] for more in range(len(leaf.shape) + 1)]
        alike = ([n for n in named if trace.variables[n].shape == each] for each in shapes)
        known = next(filter(None, alike), [])
        meant += [Target(trace.variables[each].name, each) for each in known] or [Target(leaf.name)]
    return meant


def targets_meant(trace: Trace, given: Any, attribute: str) -> list[Target]:
    """The targets for each given variable or name.

    `attribute` selects the variables of a layer or a model.
    """
    if leaves := leaves_of(given):
        return leaves_meant(trace, leaves)
    targets: list[Target] = []
    for each in variables_in(given, attribute):
        try:
            meant = variables_meant(each, trace.variables, trace.objects)
        except UnknownName:
            name = each if isinstance(each, str) else name_of(each)
            targets.append(Target(name, None, each))
        else:
            named = with_namesakes(meant, trace.variables) if isinstance(each, str) else meant
            targets += [Target(trace.variables[index].name, index, each) for index in sorted(named)]
    return targets


def indices(targets: Iterable[Target]) -> frozenset[int]:
    """The indices of the targets that the trace has."""
    return frozenset(each.index for each in targets if each.index is not None)


def each_given(given: Any) -> Iterator[Any]:
    """Each layer, model, variable or name in `given`, also in nested lists."""
    shards = shards_of(given)
    is_one = hasattr(given, "dtype") or isinstance(given, str) or _own(given) is not None
    if is_one and not shards:
        yield given
    else:
        for item in shards or given:
            yield from each_given(item)


def read_once(given: Any) -> Any:
    """`given`, with its items in a list if they can be read only once, as those of a generator."""
    if isinstance(given, Iterator):
        given = list(given)
    return list(map(read_once, given)) if type(given) is list else given


def variables_in(given: Any, attribute: str) -> list[Any]:
    """The variables in `given`, including those of models and layers.

    A name stays a name.
    """
    variables: list[Any] = []
    for each in each_given(given):
        own = _own(each, attribute)
        variables += [each] if own is None else own
    return variables


def _own(given: Any, attribute: str = "variables") -> Iterable[Any] | None:
    """The variables of a layer, a model or a PyTorch module; None for a variable or a name."""
    is_layer = hasattr(given, "trainable_variables")  # a Keras layer may be a module, too
    if callable(getattr(given, "named_parameters", None)) and not is_layer:
        trained = attribute == "trainable_variables"
        return [own for own in given.parameters() if own.requires_grad or not trained]
    variables = getattr(given, "variables", None)
    return None if variables is None or callable(variables) else getattr(given, attribute)


def why_unknown(
    trace: Trace, targets: Sequence[Target], leaves: Sequence[Variable]
) -> tuple[str, str]:
    """Why a target cannot be judged, and what the trace has instead.

    Both are empty if each target may be a variable of the program that was never passed.
    """
    known = [variable.name for variable in trace.variables]
    unknown = [each for each in targets if each.index is None and trace.complete]
    missing, found = {each.name for each in unknown}, indices(targets)
    others = [each for n, each in enumerate(trace.variables) if n not in found]
    for leaf in (each for each in leaves if each.name in missing):
        end = leaf.name.rpartition("/")[2]
        alike = [each.name for each in others if each.shape == leaf.shape]
        for like in sorted(alike, key=lambda name: not name.endswith(end))[:1]:
            why = (
                f"no path in the parameters is {shown(leaf.name)!r}, and {shown(like)} may be the "
                "same leaf: give the whole tree that the optimizer gets, a part of it with its "
                "keys from the root on, or a variable of Keras"
            )
            return why, unknown_name("variable", leaf.name, known, meant=[like]).instead
    if any(is_loose_tensor(each.given) for each in unknown):
        return "this tensor is not a parameter: give the parameter itself, not a copy", ""
    named = [each.name for each in unknown if isinstance(each.given, str)]
    alive = names_alive() if named else set()
    for name in named:
        if not any(is_meant(name, each) for each in alive):
            meant = near_patterns(name, known) or near_patterns(name, sorted(alive - {*known}))
            instead = unknown_name("variable", name, known, meant=meant).instead
            return f"the program holds no variable {shown(name)!r}", instead
    return "", ""


# Expectations.

Quantity = Literal["updates", "executions", "calls", "steps", "unchanged", "not_finite"]
"""The quantities that can be expected of a run."""


class Limits(NamedTuple):
    """An expected count; `low` and `high` are equal if it is exact."""

    what: str
    low: int | None
    high: int | None
    kinds: frozenset[Kind | None] | None = None
    """The kinds of gradient that count; None for all kinds, and for counts without gradients."""

    def holds(self, count: int) -> bool:
        """True if `count` is within the limits, inclusively."""
        return (self.low is None or count >= self.low) and (self.high is None or count <= self.high)

    def __str__(self) -> str:
        if self.low is None:
            return f"at most {self.high:,}"
        if self.low == self.high:
            return f"{self.low:,}"
        return f"at least {self.low:,}" if self.high is None else f"{self.low:,} to {self.high:,}"


@dataclass(frozen=True)
class Expectation:
    """What is expected of updates, executions, calls, steps or effects, after the filters.

    Each count in `wanted` must hold: of the whole run or `per_step`, of all replicas together or
    `per_replica`, of all variables together or of each of `targets`.
    """

    what: Quantity
    wanted: tuple[Limits, ...]
    method: str | None = None
    variable: object = None
    indices: frozenset[int] | None = None
    """The variables that are meant, if known."""
    per_step: bool = False
    per_replica: bool = False
    targets: tuple[Target, ...] | None = None
    text: str = ""
    """The expression of `tracer check`, or empty: hints use its syntax or that of assertions."""

    @property
    def where(self) -> str:
        """` in each step on each replica`, as far as it applies."""
        of_each = f" of each of {some(len(self.targets), 'variable')}" if self.targets else ""
        return f"{of_each}{' in each step' * self.per_step}{' on each replica' * self.per_replica}"

    def is_right(self, counts: Iterable[int]) -> bool:
        """True if each of these counts of a step is as wanted; always False for totals."""
        return self.per_step and all(map(Limits.holds, self.wanted, counts))

    def selection(self, trace: Trace) -> Selection:
        """The entries that count; none for a method that was never called.

        Raises `tracer.UnknownName` for a variable that the trace does not have.
        """
        is_kind = self.what in ("updates", *OBSERVATIONS)
        meant = self.indices if self.variable is None else indices_of(trace, self.variable)
        selection = Selection(roles=ROLES[self.what if is_kind else "executions"], variables=meant)
        if self.method is None:
            return selection
        methods = (i for i, method in enumerate(trace.methods) if method.name == self.method)
        return replace(selection, methods=frozenset(methods))


@dataclass(frozen=True)
class Claim:
    """An expectation of a trace, with the parts of the trace that it concerns."""

    trace: Trace
    expected: Expectation
    selection: Selection
    """The entries that count."""
    summaries: Sequence[Summary]
    """The optimizers that it concerns."""
    failed: Sequence[Limits] = ()
    """The counts that are not as wanted, once known."""

    @property
    def of_steps(self) -> bool:
        """True if it concerns a step method."""
        methods = self.selection.methods or ()
        return any(self.trace.methods[index].role == "step" for index in methods)

    @property
    def of_work(self) -> bool:
        """True if it concerns updates or other executions."""
        return self.expected.what in ("updates", "executions")

    @property
    def patterns_of(self) -> dict[int, list[Pattern]]:
        """The patterns of each variable; several if several optimizers have it."""
        found: dict[int, list[Pattern]] = {}
        for pattern in (each for summary in self.summaries for each in summary.patterns):
            for variable in pattern.variables:
                found.setdefault(variable, []).append(pattern)
        return found

    def replicas(self, summary: Summary) -> Sequence[int | None]:
        """The replicas to judge separately; None stands for all replicas together."""
        return summary.replicas if self.expected.per_replica else (None,)

    def total(self, wanted: Limits, replica: int | None = None) -> int:
        """The total count, on all replicas or on one."""
        measure = replace(self.selection, kinds=wanted.kinds)
        return sum(each.total(measure, replica) for each in self.summaries)

    def counted(self, wanted: Limits, replica: int | None = None) -> int:
        """The total of the expected quantity."""
        if self.expected.what == "steps":
            return self.trace.steps
        if self.expected.what == "calls":
            return self.calls().total()
        return self.total(wanted, replica)

    def calls(self) -> Counter[tuple[str, str]]:
        """How often Python called each method or, for one method, each variable, by context."""
        trace, meant = self.trace, replace(self.selection, roles=ROLES["calls"])
        calls = Counter[tuple[str, str]]()
        for block in counted(trace.data):
            for entry in filter(meant.holds, block.entries):
                names = [trace.methods[entry.method].name] * contribution(entry, meant.variables)
                if self.expected.method is not None and entry.variables:
                    names = [trace.variables[index].name for index in meant.kept(entry.variables)]
                for name in names:
                    calls[name, block.context] += block.total
        return +calls


def claim_of(trace: Trace, expected: Expectation) -> Claim:
    """The claim about all optimizers of a trace, or about those that have the variables.

    Raises `tracer.UnknownName` for a variable that the trace does not have.
    """
    selection, summaries = expected.selection(trace), summaries_of(trace)
    if selection.variables is not None:
        having = [s for s in summaries if not selection.variables.isdisjoint(s.variables)]
        summaries = having or summaries
    return Claim(trace, expected, selection, summaries)


def require_sense(wanted: Iterable[Limits], needed: str) -> tuple[Limits, ...]:
    """The limits that require anything.

    Raises `TypeError` with the text `needed` if none does, and `ValueError` for impossible counts.
    """
    given = tuple(expected for expected in wanted if (expected.low, expected.high) != (None, None))
    if not given:
        raise TypeError(needed)
    for expected in given:
        for number in (expected.low, expected.high):
            if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
                raise TypeError(f"{expected.what}: a count is an int, not {number!r}")
        low, high = expected.low or 0, expected.high
        if low < 0 or (high is not None and high < low):
            raise ValueError(f"{expected.what}: no count is {expected}")
    return given


def why_no_variable(trace: Trace, expected: Expectation) -> str:
    """Why an expectation of a method cannot name a variable: a step method runs for all of them."""
    roles: set[str] = {each.role for each in trace.methods if each.name == expected.method}
    roles = roles or {
        role
        for kind in KINDS
        for role, names in (("step", kind.step_methods), ("apply", kind.apply_methods))
        if expected.method in (getattr(each, "name", each) for each in names)
    }
    is_wrong = expected.variable is not None and roles == {"step"}
    return f"{expected.method} runs once for all variables" if is_wrong else ""


@cache
def known_methods() -> tuple[str, ...]:
    """The methods that `tracer` counts, for all kinds of optimizer."""
    names = (
        name
        for kind in KINDS
        for name in (*kind.step_methods, *(each.name for each in kind.apply_methods))
    )
    return tuple(dict.fromkeys(names))


# Wrong steps.

MISSED = (missing, requests, zeroed)
"""The counts that tell why there was no update: see `why_none`."""


class WrongSteps(NamedTuple):
    """What some steps did to a variable on one replica, if most steps did something else."""

    first: int
    """The first of these steps."""
    variable: int
    """Its index; -1 for a step method."""
    name: str
    steps: tuple[Steps, ...]
    counts: Values
    """The counts of each of the steps, in the columns of the table."""
    note: str


def why_none(made: int, missed: Sequence[int], otherwise: str = "not passed") -> str:
    """Why there was no update, from the counts in `MISSED`; empty if there was."""
    none, requested, set_to_zero = missed
    return first_true(
        (made, ""),
        (set_to_zero, SET_TO_ZERO),
        (requested, "not applied"),
        (none, "no gradient"),
        (True, otherwise),
    )


def columns_of(claim: Claim) -> dict[str, Selection]:
    """The counts in a table's columns, for each variable or for a step method."""
    if claim.of_steps or not claim.of_work:
        return {claim.expected.what.replace("_", " "): claim.selection}
    return {each: replace(claim.selection, kinds=frozenset({each})) for each in GRADIENTS[:2]}


class JudgedSteps:
    """The steps of an optimizer, on all replicas together or on one, and which are wrong.

    All steps are wrong if their total is.
    """

    def __init__(self, claim: Claim, summary: Summary, replica: int | None) -> None:
        self.claim, self.summary, self.replica = claim, summary, replica
        self._replicas = summary.replicas if replica is None else (replica,)
        asserted = [replace(claim.selection, kinds=each.kinds) for each in claim.expected.wanted]
        passed = replace(requests, variables=claim.selection.variables)
        self._measures = [*asserted, claim.selection, passed]

    @property
    def name(self) -> str:
        """`adam#2 on replica 1`; empty for all replicas of the only optimizer."""
        trace, of_several = self.claim.trace, len(self.claim.summaries) > 1
        names = [self.summary.optimizers[0].name] if of_several else []
        names += [] if self.replica is None else [trace.derived(replica_names)[self.replica]]
        return shown(" on ".join(names))

    @cached_property
    def timeline(self) -> Timeline:
        """For each step, the asserted counts, then executions and requests."""
        return self.summary.timeline(*self._measures, replica=self.replica)

    @cached_property
    def wrong(self) -> frozenset[Values]:
        """The counts of wrong steps; without idle steps if some executions have unknown steps."""
        expected, lost = self.claim.expected, self.summary.step_unknown(self.claim.selection)
        wrong = (each for each in self.timeline.spread if not expected.is_right(each))
        return frozenset(each for each in wrong if not lost or any(each[-2:]))

    @cached_property
    def unapplied_steps(self) -> tuple[Steps, ...]:
        """The wrong steps that got gradients but applied none."""
        wrong = self.wrong if self.claim.of_work else ()
        unapplied = {each for each in wrong if each[-1] and not each[-2]}
        return self.timeline.steps_with(unapplied)

    @cached_property
    def short(self) -> bool:
        """True if a count is too small."""
        wanted = self.claim.expected.wanted
        totals = tuple(self.claim.total(each, self.replica) for each in wanted)
        counts = (self.claim.expected.per_step and self.wrong) or {totals}
        return any(of[at] < (each.low or 0) for of in counts for at, each in enumerate(wanted))

    def got(self, number: int) -> str:
        """`got 0 in step 33 of 64`, or `got 0 to 3 in 12 of 64 steps`; empty if no step is wrong.

        `number` is the index of the asserted count.
        """
        spread, holds = self.timeline.spread, self.claim.expected.wanted[number].holds
        wrong = {values: times for values, times in spread.items() if not holds(values[number])}
        steps, times = sum(spread.values()), sum(wrong.values())
        if self.summary.steps and not steps:
            return "but no step ran"
        measure = replace(self._measures[number], replicas=frozenset(self._replicas))
        counts = sorted({values[number] for values in wrong}) or [0]
        text = span((counts[0], counts[-1])).replace("to", "or" if len(counts) == 2 else "to")
        first = next(self.timeline.spans(wrong.__contains__), (0,))[0]
        said = first_true(
            (not wrong, ""),
            (times == 1, f"{text} in step {first:,} of {steps:,}"),
            (times == steps, f"{text} in each of {steps:,} steps"),
            (True, f"{text} in {times:,} of {steps:,} steps"),
        )
        outside = self.summary.outside(measure)
        texts = [f"{outside:,} outside any step"] * (outside > 0) + [said] * bool(wrong)
        return f"got {' and '.join(texts)}" if texts else ""

    def rows(self) -> Iterator[tuple[WrongSteps, int]]:
        """What wrong steps did to each variable, each with its replica, except the usual."""
        claim = self.claim
        columns = [replace(each, variables=None) for each in columns_of(claim).values()]
        of = f"{shown(self.summary.optimizers[0].name)}: " if len(claim.summaries) > 1 else ""
        wrong = [(steps, (1,)) for steps in self.timeline.steps_with(self.wrong)]
        with_wrong = cache(Timeline.folded(wrong, sum(self.timeline.spread.values()), 1).joined)
        for replica in filter(self.summary.steps_on.get, self._replicas if wrong else ()):
            timelines = []
            for group, names in self._groups():
                of_variables = frozenset[int]() if -1 in names else None
                missed = (replace(each, variables=of_variables) for each in MISSED)
                own = group.timeline(*columns, *missed, replica=replica)
                timelines.append((names, with_wrong(own)))
            varies = any(
                sum(not is_wrong for is_wrong, *_ in each.spread) > 1 for _, each in timelines
            )
            for names, each in timelines:
                for steps, counts in self._unusual(each, varies):
                    made, others = counts[: len(columns)], counts[len(columns) :]
                    noted = claim.of_work and (claim.selection.methods is None or others[0])
                    note = why_none(sum(made), others) if noted else ""
                    for index, name in names.items():
                        place = steps[0].first, index, of + name
                        yield WrongSteps(*place, steps, made, note), replica

    def _groups(self) -> Iterator[tuple[Counts, Mapping[int, str]]]:
        """Counts with the variables they are of; -1 stands for a step method."""
        selection, names = self.claim.selection, self.claim.trace.variables
        if self.claim.of_steps and selection.variables is None:
            yield self.summary, {-1: self.claim.expected.method or ""}
            return
        patterns = [each for each in self.summary.patterns if each.has(selection)]
        if selection.methods is None or not patterns:
            asked = (selection, *MISSED)
            patterns = [each for each in self.summary.patterns if any(map(each.has, asked))]
        for pattern in patterns:
            yield pattern, {at: names[at].name for at in selection.kept(pattern.variables)}

    def _unusual(
        self, timeline: Timeline, varies: bool
    ) -> Iterator[tuple[tuple[Steps, ...], Values]]:
        """The wrong steps in which a variable's counts differ from most steps, and these counts.

        The timeline has 1 for wrong steps and 0 for others, then the variable's counts. If these
        counts vary (`varies`), other variables may have compensated for a variable that is never
        updated: then counts of nothing are not usual.
        """
        wrong = {values[1:] for values in timeline.spread if values[0]}
        right = {values[1:]: n for values, n in timeline.spread.items() if not values[0]}
        usual = max(right, key=lambda values: right[values], default=())
        if varies and self.short and not any(usual[: -len(MISSED)]):
            usual = ()
        for counts in wrong - {usual}:
            if self.short or self.claim.expected.per_step or any(counts[: -len(MISSED)]):
                yield timeline.steps_with([(1, *counts)]), counts


def rows_of(parts: Iterable[JudgedSteps]) -> dict[WrongSteps, list[int]]:
    """The rows of all parts, each with its replicas."""
    rows: dict[WrongSteps, list[int]] = {}
    for row, replica in (each for part in parts for each in part.rows()):
        rows.setdefault(row, []).append(replica)
    return rows
