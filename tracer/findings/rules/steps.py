"""Rules on steps, and on graphs with steps.

Steps that raised, were skipped, accumulated, or miscounted; graphs that never ran, functions traced
repeatedly.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, islice
from math import gcd

from msgspec import structs

from tracer.findings.rule import (
    FEW,
    MAX_NAMES,
    Case,
    Severity,
    names_in_short,
    of_optimizer,
    rule,
)
from tracer.model.callers import nearest
from tracer.model.evidence import (
    GradientsAdded,
    GradientsLeft,
    NothingReturned,
    OverrideUnreached,
    SparseMissing,
)
from tracer.model.measures import updates
from tracer.model.phrases import class_of, has_ended
from tracer.model.reasons import accumulated_steps, accumulations, skipped, skipper
from tracer.model.records import Graph, GraphTracing, Optimizer
from tracer.model.summary import Summary, is_first_only
from tracer.model.words import first_true, listed, plural, some, times

MIN_TRACINGS = 5  # of a function: TensorFlow, too, warns at 5 (eager/function, def_function)
MIN_ADDED = 3  # the fewest steps to judge a training by
STEPS_PER_TRACING = 20  # steps: rarer tracings cost little time


_REPORTED_BY_CLASS_RULES = (OverrideUnreached, SparseMissing, NothingReturned)


@rule(
    "apply-raised",
    severity="error",
    title="a step raised an error",
    why="That step updated nothing.",
    advice="Fix what the error says.",
    explanation=(
        "apply_gradients (Keras 3: `apply`) raised an error, while it ran or while a graph "
        "was traced. Info if training went on, or if the program caught the error and ended well."
    ),
    explains=(*FEW, "few steps"),
)
def apply_raised(summary: Summary) -> Iterator[Case]:
    root, caught = summary.optimizers[0], has_ended(summary.trace)
    evidence = chain.from_iterable(optimizer.evidence for optimizer in summary.optimizers)
    is_explained = any(isinstance(each, _REPORTED_BY_CLASS_RULES) for each in evidence)
    for failure in () if is_explained else root.failures:
        on = f" on {failure.variable}" if failure.variable else ""
        where = f" while {failure.function} was traced" if failure.function else ""
        when = f"after step {failure.after:,}" if failure.after else "in the first step"
        error = failure.error.partition(". ")[0].rstrip(".")
        yield Case(
            f"{class_of(root)}.{failure.method}{of_optimizer(summary)} raised an error{on}{where}, "
            f"{when}: {error}{'' if error.endswith('…') else '.'}",
            severity="error" if failure.last and not caught else "info",
            names=(failure.variable,) if failure.variable else (),
        )


@rule(
    "steps-skipped",
    severity="warning",
    title="steps were skipped",
    why="A few at the beginning are normal; many in a row mean inf or NaN at any scale.",
    advice=(
        "If it goes on, look for the layer that gives inf or NaN: "
        "tf.debugging.enable_check_numerics() (PyTorch: torch.autograd.detect_anomaly(), JAX: "
        "jax_debug_nans), a lower learning rate, that layer in float32."
    ),
    explanation=(
        "By a loss scale, a GradScaler, apply_if_finite or MultiSteps. A warning if all "
        "steps were skipped, or so many in a row that the scale would fall below 1."
    ),
    needs=("complete",),
    explains=FEW,
)
def steps_skipped(summary: Summary) -> Iterator[Case]:
    skips = skipped(summary)
    if skips is None:
        return
    by, number = skipper(summary.optimizers), skips.number
    first, last = skips.longest
    longest = last - first + 1
    begin = f"the first is step {skips.first:,}"
    row = f"in a row, steps {first:,} to {last:,}"
    which = first_true(
        (number == 1, f"step {first:,}"),
        (longest == number, f"all {row}"),
        (longest > 1, f"{begin}, up to {longest:,} {row}"),
        (True, begin),
    )
    lost = skips.by.settings.get("dynamic_scale") == 0
    yield Case(
        f"{some(number, 'step')} of {summary.steps_on[summary.replicas[0]]:,}"
        f"{of_optimizer(summary)} {plural(number, 'was', 'were')} skipped by {by}: {which}"
        f"{_coming(skips.by) if skips.hopeless else ''}.",
        (_NO_SCALE if lost else _OTHERS.get(by, _GOES_ON)).format(summary.dialect.find_nan),
        "warning" if skips.hopeless else "info",
        step=skips.first,
    )


_GOES_ON = (
    "If it goes on, look for the layer that gives inf or NaN: {}, a lower learning rate, that "
    "layer in float32."
)

_OTHERS = {
    "apply_if_finite": (
        "If it goes on, look for what gives inf or NaN: {}, a lower learning rate. After "
        "max_consecutive_errors in a row it applies them."
    ),
    "MultiSteps": "Look at skip_state in its state: what should_skip_update_fn says of a step.",
}

_NO_SCALE = (
    "Restart from a checkpoint with finite weights and a scale above 0, and look for the layer "
    "that gives inf or NaN: {}, a lower learning rate, that layer in float32."
)


def _coming(scale: Optimizer) -> str:
    """The consequence of a loss scale that fell too low; Keras 3's has no lower limit."""
    match scale.settings.get("dynamic_scale"):
        case 0:
            return (
                "; the scale has fallen to 0 and stays there: the next finite gradient is divided "
                "by it, which makes the weights NaN"
            )
        case int() | float() as now if now < 1:
            return (
                f"; the scale has fallen to {now:g}, and each further skipped step halves it, "
                "down to 0"
            )
    return ""


@rule(
    "gradients-left",
    severity="warning",
    title="accumulated gradients were never applied",
    why="Training loses what these batches would have taught.",
    advice=(
        "Choose a number of batches that gradient_accumulation_steps divides: Keras "
        "keeps the rest for the next epoch, and nothing applies it at the end."
    ),
    explanation=(
        "Keras 3 and optax: the last group was incomplete. `torch.optim`: gradients were "
        "cleared before a step used them, or left at the end. Info if few are left."
    ),
    needs=("steps", "complete", "steps known"),
)
def gradients_left(summary: Summary) -> Iterator[Case]:
    for _, passes in summary.evidence(GradientsLeft):
        yield _passes_left(summary, passes)
    every, reached = accumulated_steps(summary), accumulations(summary)
    if every < 2 or reached is None or summary.step_unknown(reached):
        return
    replica = summary.replicas[0]
    steps = summary.steps_on[replica]
    parts = summary.timeline(updates, replica=replica).parts()
    last = max((part.last for part, (made,) in parts if made), default=0)
    group = summary.timeline(reached, replica=replica).within(last + 1, steps)
    left = sum(number * kept for number, (kept,) in group)
    if 0 < left < every:
        after = steps - last
        which = "the last step" if after == 1 else f"the last {after:,} steps"
        yield Case(
            f"The gradients of {which if left == after else f'{left:,} of {which}'} of {steps:,}"
            f"{of_optimizer(summary)} were accumulated, but never applied: an update takes the "
            f"gradients of {every:,} steps.",
            severity="warning" if left * 10 >= steps and has_ended(summary.trace) else "info",
            step=last + 1,
        )


def _passes_left(summary: Summary, left: GradientsLeft) -> Case:
    """The case for backward passes whose gradients no step used."""
    every = left.every
    where = f" ({left.line})" if left.line else ""
    if every == 1:
        common = gcd(left.passes, left.of) or 1
        return Case(
            f"The gradients of {left.passes // common:,} of every {left.of // common:,} "
            f"backward passes{where} were cleared before a step{of_optimizer(summary)} used them.",
            "To accumulate them, call zero_grad once for each step, after it, and not in each "
            "pass. Otherwise these passes are wasted.",
        )
    every_one = (range(run.first, run.last + 1, run.stride) for run in left.numbers)
    numbers = [f"{each:,}" for each in islice(chain.from_iterable(every_one), MAX_NAMES)]
    more = left.passes - len(numbers)
    which = listed([*numbers, f"{more:,} more"] if more else numbers)
    once = [run.stride == 1 for run in left.numbers] == [True]  # usually at the end
    small = left.passes * 10 < left.of or not has_ended(summary.trace)
    return Case(
        f"The gradients of {plural(left.passes, 'backward pass', 'backward passes')} {which} of "
        f"{left.of:,}{where} were never applied: most steps{of_optimizer(summary)} use "
        f"{every:,} passes.",
        f"Step once more after the last batch, or choose a number of batches that {every:,} "
        "divides.",
        "info" if once and small else None,
    )


@rule(
    "gradients-added",
    severity="warning",
    title="gradients were added to those of the previous step",
    why="Each step uses the sum of all gradients so far.",
    advice="Call optimizer.zero_grad() once for each step: after it, or before backward.",
    explanation=(
        f"Backward found the gradients of the previous step, in at least {MIN_ADDED} "
        "steps and half of all. Silent if the program scales or writes gradients "
        "between steps, or a step takes a closure."
    ),
    says_line=True,
    needs=("steps",),
)
def gradients_added(summary: Summary) -> Iterator[Case]:
    for _, added in summary.evidence(GradientsAdded):
        if added.steps >= max(MIN_ADDED, added.of / 2):
            yield Case(
                f"In {added.steps:,} of {some(added.of, 'step')}{of_optimizer(summary)} backward "
                "added to gradients that the previous step had used: zero_grad did not clear them.",
            )


@rule(
    "retraced",
    severity="warning",
    title="traced again for another signature",
    why="Each tracing takes as long as many steps, and the graphs stay in memory.",
    advice=(
        "Pass tensors instead of Python numbers, use `drop_remainder=True`, or give the "
        "tf.function an input_signature with None for the sizes that change."
    ),
    explanation=(
        "A warning for five tracings or more, and at least one for every 20 steps; else info, as "
        "for a smaller last batch. On JAX the step is approximate."
    ),
    explains=("calls",),
)
def retraced(summary: Summary) -> Iterator[Case]:
    for rows in _by_function(summary):
        later = [each for each in [row for row in rows if row.signature][1:] if each.after > 0]
        if not later:
            continue
        tracings, change = sum(each.tracings for each in later), ""
        for event in _events_of(summary, later[:1])[:1]:
            became = event.detail.replace(" -> ", " became ")
            line = _line(summary, event)
            change = (became and f", when {became}") + (line and f", by the call in {line}")
        yield Case(
            f"{rows[0].function}{of_optimizer(summary)} was traced again"
            f"{f' {times(tracings)}, first' if tracings > 1 else ''} after step {later[0].after:,}"
            f"{summary.dialect.advice('retraced:roughly')}{change}.",
            severity=_costly(tracings, rows),
            step=later[0].after + 1,
        )


@rule(
    "traced-again",
    severity="warning",
    title="traced several times for one signature",
    why=(
        "Each tracing takes as long as many steps. Most often a new tf.function is made "
        "again and again."
    ),
    advice="Make the tf.function once, outside the loop; do not compile the model again.",
    explanation=(
        "Counts only graphs that ran, because the first graph of a function that makes variables "
        "never runs. A warning for five tracings or more, and at least one for every 20 steps."
    ),
    explains=("calls",),
)
def traced_again(summary: Summary) -> Iterator[Case]:
    for rows in _by_function(summary):
        again = [number for each in rows if (number := each.tracings - each.idle) > 1]
        if again:
            signatures = "one signature" if len(again) == 1 else f"{len(again):,} signatures"
            yield Case(
                f"{rows[0].function}{of_optimizer(summary)} was traced {times(sum(again))} for "
                f"{signatures}.",
                severity=_costly(sum(again), rows),
            )


def _events_of(summary: Summary, rows: Sequence[Graph]) -> list[GraphTracing]:
    """The graph tracings of these rows, in the order in which they began."""
    data = summary.trace.data
    named = [(summary.root, row.function, row.signature, row.replica) for row in rows]
    graphs = [(each.root, each.function, each.signature, each.replica) for each in data.graphs]
    return [event for event in data.graph_tracings if graphs[event.graph] in named]


def _line(summary: Summary, event: GraphTracing) -> str:
    """The program line that called the traced function; empty if unknown."""
    line = nearest(summary.trace.data, event.path)
    return f"{line.file}:{line.number}" if line else ""


def _costly(tracings: int, rows: Sequence[Graph]) -> Severity:
    steps = sum(each.steps for each in rows)
    often = tracings >= MIN_TRACINGS and tracings * STEPS_PER_TRACING >= steps
    return "warning" if often else "info"


def _by_function(summary: Summary) -> list[list[Graph]]:
    """The graphs of the optimizer by function, taking one of several workers' equal graphs."""
    functions: dict[str, dict[str, Graph]] = {}
    for graph in sorted(summary.trace.graphs, key=lambda each: each.after):
        if graph.root == summary.root:
            functions.setdefault(graph.function, {}).setdefault(graph.signature, graph)
    return [list(signatures.values()) for signatures in functions.values()]


@rule(
    "graph-never-ran",
    severity="warning",
    title="a graph was traced and never ran",
    why="Python ran while it was traced, but no step followed.",
    advice="Call the function. Nothing to do if it was traced only to be saved or inspected.",
    explanation=(
        "A warning if nothing of the optimizer ever ran, else info. The first graph of a "
        "function that makes variables never runs, and is not reported. Silent until the program "
        "has ended."
    ),
    needs=("complete", "finished"),
    explains=(*FEW, "few steps", "calls"),
)
def graph_never_ran(summary: Summary) -> Iterator[Case]:
    failed = any(program.error for program in summary.trace.programs)
    usual = is_first_only if summary.dialect.traces_twice else lambda graph: False
    # A tracing that an error ended made no graph to run.
    traced = [
        structs.replace(each, tracings=each.tracings - each.failed, idle=each.idle - each.failed)
        for rows in _by_function(summary)
        for each in rows
    ]
    idle = [each for each in traced if each.idle and not usual(each)]
    functions = list(dict.fromkeys(each.function for each in idle))
    for names in [functions] if len(functions) > MAX_NAMES else [[each] for each in functions]:
        never_ran = [each for each in idle if each.function in names]
        number, noun = sum(each.idle for each in never_ran), summary.dialect.program
        tracings = sum(each.tracings for each in traced if each.function in names)
        graphs = f"{{}} {noun}" if tracings == 1 else f"{number:,} of {{}} {tracings:,} {noun}s"
        yield Case(
            f"{names_in_short(names, of_optimizer(summary), 'function')}: "
            f"{graphs.format(plural(len(names), 'its', 'their'))} never ran"
            f"{_traced_by(summary, never_ran)}.",
            first_true(
                (summary.has_run, ""),
                (failed, "Fix the error that ended the program before its first step."),
                (True, _CALL_THE_FUNCTION),
            ),
            "info" if summary.has_run else "warning",
        )


_CALL_THE_FUNCTION = (
    "If it was only traced, call the function: tracing it alone trains nothing. If it was called, "
    "it ended before its first step: look for an error, or for data without a batch."
)


def _traced_by(summary: Summary, rows: Sequence[Graph]) -> str:
    """`, traced by the call in train.py:12 for x: float32[4] -> float32[8]`; empty if unknown.

    Unknown if several lines made graphs and only some graphs ran.
    """
    events = _events_of(summary, rows)
    lines = list(dict.fromkeys(_line(summary, event) for event in events))
    known = "" not in lines and len(events) == sum(row.tracings for row in rows)
    if not known or (len(lines) != 1 and any(row.idle < row.tracings for row in rows)):
        return ""
    what = f" for {events[0].detail}" if len(events) == 1 and events[0].detail else ""
    return f", traced by the call in {names_in_short(lines, noun='line')}{what}"
