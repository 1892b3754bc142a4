"""Rules on graph tracings: graphs that never ran, functions traced again and again."""

from collections.abc import Iterator, Sequence

from msgspec import structs

from tracer.findings.rule import (
    FEW,
    MANY,
    MAX_NAMES,
    Case,
    Severity,
    names_in_short,
    of_optimizer,
    rule,
)
from tracer.model.callers import nearest
from tracer.model.records import Graph, GraphTracing
from tracer.model.summary import Summary, is_first_only
from tracer.model.wording import first_true, plural, times

MIN_TRACINGS = (
    5  # tracings of a function: TensorFlow itself warns of 5 (eager/function, def_function)
)
STEPS_PER_TRACING = 20  # steps: who traces more rarely loses little time by it


@rule(
    "apply-gradients-twice",
    severity="warning",
    title="a train step calls apply_gradients twice",
    why=(
        "Each call is a step of its own: iterations, learning-rate schedules and the bias "
        "correction of Adam go on several times for one batch."
    ),
    advice="Call apply_gradients once, with all gradients, or use an optimizer for each part.",
    explanation=(
        "Counted in the graph of the function: the body of a loop counts once, and of the branches "
        "of a condition the one that has most. It is info if each call has all the variables and "
        "gradients of its own, as where a critic makes several steps for one of the generator."
    ),
    explains=(*MANY, "many steps"),
)
def apply_gradients_twice(summary: Summary) -> Iterator[Case]:
    """The code of one step calls `apply_gradients` several times."""
    for rows in _by_function(summary):
        calls = max(each.step_calls for each in rows)
        parted = any(each.parted for each in rows if each.step_calls > 1)
        if calls > 1:
            yield Case(
                f"{rows[0].function} calls {summary.dialect.step_method}{of_optimizer(summary)} "
                f"{times(calls)}{'' if parted else _IN_A_ROW}: each time it runs, that is "
                f"{calls:,} steps.",
                ""
                if parted
                else "If they are steps in a row, as those of a critic for one of its generator, "
                "there is nothing to do. If not, call it once, with the sum of the gradients.",
                "warning" if parted else "info",
            )


_IN_A_ROW = ", with all the variables and new gradients in each call"


@rule(
    "graph-never-ran",
    severity="warning",
    title="a graph was traced and never ran",
    why="Python was called while it was traced, and nothing came of it.",
    advice="Nothing, if it was traced to be saved or looked at; otherwise call the function.",
    explanation=(
        "It is info where another graph, or eager steps, did run, and a warning where nothing of "
        "the optimizer ever ran. That TensorFlow traces a function twice which makes variables, "
        "and runs the second graph, is usual and not reported. A tracing that an error ended in "
        "the optimizer gave no graph, and is not reported either."
    ),
    needs=("complete",),
    explains=(*FEW, "few steps", "calls"),
)
def graph_never_ran(summary: Summary) -> Iterator[Case]:
    """A graph with updates was traced, and never executed."""
    failed = any(program.error for program in summary.trace.programs)
    usual = is_first_only if summary.dialect.traces_twice else lambda graph: False
    # Tracings that an error ended gave no graph to run.
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
        graphs = f"the {noun}" if tracings == 1 else f"{number:,} of the {tracings:,} {noun}s"
        yield Case(
            f"{names_in_short(names, of_optimizer(summary), 'function')}: {graphs} that "
            f"{plural(len(names), 'its', 'their')} tracing gave never ran"
            f"{_traced_by(summary, never_ran)}.",
            first_true(
                (summary.has_run, ""),
                (failed, "Mend the error that ended the program before its first step."),
                (True, _CALL_THE_FUNCTION),
            ),
            "info" if summary.has_run else "warning",
        )


_CALL_THE_FUNCTION = (
    "If it was only traced, call the function: tracing it alone trains nothing. If it was called, "
    "it ended before its first step: look for an error, or for data without a batch."
)


def _traced_by(summary: Summary, rows: Sequence[Graph]) -> str:
    """`, traced by the call in train.py:12 for x: float32[4] -> float32[8]`, if it is known.

    It is not where some graphs of several lines ran, and others did not.
    """
    events = _events_of(summary, rows)
    lines = list(dict.fromkeys(_line(summary, event) for event in events))
    known = "" not in lines and len(events) == sum(row.tracings for row in rows)
    if not known or (len(lines) != 1 and any(row.idle < row.tracings for row in rows)):
        return ""
    what = f" for {events[0].detail}" if len(events) == 1 and events[0].detail else ""
    return f", traced by the call in {names_in_short(lines, noun='line')}{what}"


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
        "The signatures are those of the outermost function that holds the steps. It is info "
        "unless there were five tracings or more, and one for each 20 steps or more; a last batch "
        "that is smaller gives one. On JAX they are those of the function that jax.jit traces; of "
        "an argument with many arrays the signature has their number only, and how many steps had "
        "run is what JAX had told by then, for it runs them behind Python's back. What "
        "torch.compile compiles anew is not reported."
    ),
    explains=("calls",),
)
def retraced(summary: Summary) -> Iterator[Case]:
    """A function was traced for another signature after training had begun."""
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
            f"{rows[0].function}{of_optimizer(summary)} was traced anew {times(tracings)} in "
            f"training, first after step {later[0].after:,}"
            f"{summary.dialect.advice('retraced:roughly')}{change}.",
            severity=_costly(tracings, rows),
            step=later[0].after + 1,
        )


@rule(
    "traced-again",
    severity="warning",
    title="traced several times for one signature",
    why=(
        "Each tracing takes as long as many steps. It mostly means that a new tf.function is made "
        "again and again."
    ),
    advice="Make the tf.function once, outside of the loop; do not compile the model again.",
    explanation=(
        "Only graphs that ran count: TensorFlow traces a function that makes variables twice, and "
        "runs one of them. It is info unless there were five tracings or more, and one for each 20 "
        "steps or more."
    ),
    explains=("calls",),
)
def traced_again(summary: Summary) -> Iterator[Case]:
    """A function was traced several times for one signature, and more than one graph of it ran."""
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
    """The line of the program that called what was traced; empty if it is not known."""
    line = nearest(summary.trace.data, event.path)
    return f"{line.file}:{line.number}" if line else ""


def _costly(tracings: int, rows: Sequence[Graph]) -> Severity:
    steps = sum(each.steps for each in rows)
    often = tracings >= MIN_TRACINGS and tracings * STEPS_PER_TRACING >= steps
    return "warning" if often else "info"


def _by_function(summary: Summary) -> list[list[Graph]]:
    """The graphs of the optimizer; those of several workers, which do the same, stand for one."""
    functions: dict[str, dict[str, Graph]] = {}
    for graph in sorted(summary.trace.graphs, key=lambda each: each.after):
        if graph.root == summary.root:
            functions.setdefault(graph.function, {}).setdefault(graph.signature, graph)
    return [list(signatures.values()) for signatures in functions.values()]
