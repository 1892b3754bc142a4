"""Rules on graph tracings: graphs that never ran, functions traced again and again."""

import re
from collections.abc import Iterator, Sequence

import msgspec

from tracer.findings.cases import Case, Severity, of_optimizer
from tracer.findings.rule import rule
from tracer.model.callers import nearest
from tracer.model.records import Graph, GraphTracing
from tracer.model.summary import Summary, is_first_only
from tracer.model.wording import some, times

MIN_TRACINGS = (
    5  # tracings of a function: TensorFlow itself warns of 5 (eager/function, def_function)
)
STEPS_PER_TRACING = 20  # steps: who traces more rarely loses little time by it
MAX_NAMES = 3
_LITERAL = re.compile(r"[-\d'\"]|(?:True|False|None)$")
"""How an argument begins that is a Python value and has no name."""


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
)
def apply_gradients_twice(summary: Summary) -> Iterator[Case]:
    """The code of one step calls `apply_gradients` several times."""
    most: dict[str, int] = {}
    for graph in _graphs(summary):
        if graph.step_calls > 1:
            most[graph.function] = max(most.get(graph.function, 0), graph.step_calls)
    parted = {each.function for each in _graphs(summary) if each.step_calls > 1 and each.parted}
    method = summary.dialect.step_method
    for function, calls in most.items():
        called = f"{function} calls {method}{of_optimizer(summary)} {times(calls)}"
        steps = f"each time it runs, that is {calls:,} steps."
        if function in parted:
            yield Case("warning", f"{called}: {steps}")
        else:
            yield Case(
                "info",
                f"{called}, with all the variables and new gradients in each call: {steps}",
                "If they are steps in a row, as those of a critic for one of its generator, there "
                "is nothing to do. If not, call it once, with the sum of the gradients.",
            )


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
)
def graph_never_ran(summary: Summary) -> Iterator[Case]:
    """A graph with updates was traced, and never executed."""
    every = [_without_failed(each) for each in _graphs(summary)]
    twice = summary.dialect.traces_twice
    rows = [each for each in every if each.idle and not (twice and is_first_only(each))]
    functions = dict.fromkeys(each.function for each in rows)
    if len(functions) > MAX_NAMES:
        more = some(len(functions) - MAX_NAMES, "more function")
        yield _idle(summary, f"{', '.join([*functions][:MAX_NAMES])} and {more}", rows, rows)
        return
    for function in functions:
        idle = [each for each in rows if each.function == function]
        traced = [each for each in every if each.function == function]
        yield _idle(summary, function, traced, idle, _traced_by(summary, idle))


def _without_failed(graph: Graph) -> Graph:
    """What is left without the tracings that an error ended: they gave no graph to run."""
    tracings, idle = graph.tracings - graph.failed, graph.idle - graph.failed
    return msgspec.structs.replace(graph, tracings=tracings, idle=idle)


def _idle(
    summary: Summary, which: str, traced: Sequence[Graph], rows: Sequence[Graph], where: str = ""
) -> Case:
    """The case of functions, of which `traced` are all graphs, and `rows` those that never ran."""
    noun = summary.dialect.program
    tracings, idle = sum(each.tracings for each in traced), sum(each.idle for each in rows)
    graphs = f"the {noun}" if tracings == 1 else f"{idle:,} of the {tracings:,} {noun}s"
    text = f"{which}{of_optimizer(summary)}: {graphs} that its tracing gave never ran{where}."
    if summary.has_run:
        return Case("info", text)
    failed = any(program.error for program in summary.trace.programs)
    if failed:  # it may have been called, and the error have come before its step
        return Case("warning", text, "Mend the error that ended the program before its first step.")
    return Case(
        "warning",
        text,
        "If it was only traced, call the function: tracing it alone trains nothing. If it was "
        "called, it ended before its first step: look for an error, or for data without a batch.",
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
        "The signatures are those of the outermost function that holds the steps. It is info "
        "unless there were five tracings or more, and one for each 20 steps or more; a last batch "
        "that is smaller gives one. On JAX they are those of the function that jax.jit traces; of "
        "an argument with many arrays the signature has their number only, and how many steps had "
        "run is what JAX had told by then, for it runs them behind Python's back. What "
        "torch.compile compiles anew is not reported."
    ),
)
def retraced(summary: Summary) -> Iterator[Case]:
    """A function was traced for another signature after training had begun."""
    for rows in _by_function(summary):
        signatures = [each for each in rows if each.signature]
        later = [each for each in signatures[1:] if each.after > 0]
        if not later:
            continue
        tracings = sum(each.tracings for each in later)
        first = later[0]
        before = signatures[signatures.index(first) - 1]
        event = next(iter(_events_of(summary, [first])), None)
        change = _change(before.signature, first.signature)
        if event is not None and event.cause == "value":  # it knows the name of the argument
            change = f", when {event.detail.replace(' -> ', ' became ')}"
        line = _line(summary, event)
        text = (
            f"{first.function}{of_optimizer(summary)} was traced anew {times(tracings)} in "
            f"training, first after step {first.after:,}{summary.dialect.roughly}{change}"
            + (f", by the call in {line}" if line else "")
        )
        yield Case(_costly(tracings, rows), f"{text}.", step=first.after + 1)


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
)
def traced_again(summary: Summary) -> Iterator[Case]:
    """A function was traced several times for one signature, and more than one graph of it ran."""
    for rows in _by_function(summary):
        again = [each for each in rows if each.tracings - each.idle > 1]
        tracings = sum(each.tracings - each.idle for each in again)
        if again:
            text = (
                f"{again[0].function}{of_optimizer(summary)} was traced {times(tracings)} for "
                f"{'one signature' if len(again) == 1 else f'{len(again):,} signatures'}"
            )
            yield Case(_costly(tracings, rows), f"{text}.")


def _traced_by(summary: Summary, rows: Sequence[Graph]) -> str:
    """`, traced by the call in train.py:12 for x: float32[4] -> float32[8]`, if it is known.

    It is not where some graphs of several lines ran, and others did not.
    """
    events = list(_events_of(summary, rows))
    lines = list(dict.fromkeys(_line(summary, event) for event in events))
    if "" in lines or len(events) < sum(row.tracings for row in rows):
        return ""
    if len(lines) != 1 and any(row.idle < row.tracings for row in rows):
        return ""
    more = f" and {some(len(lines) - MAX_NAMES, 'more line')}" if len(lines) > MAX_NAMES else ""
    what = events[0].detail if len(events) == 1 else ""
    text = f", traced by the call in {', '.join(lines[:MAX_NAMES])}{more}"
    return f"{text} for {what}" if what else text


def _events_of(summary: Summary, rows: Sequence[Graph]) -> Iterator[GraphTracing]:
    """The graph tracings of these rows, in the order in which they began."""
    data = summary.trace.data
    named = [(row.function, row.signature, row.replica) for row in rows]
    for event in data.graph_tracings:
        graph = data.graphs[event.graph]
        same = (graph.function, graph.signature, graph.replica) in named
        if graph.root == summary.root and same:
            yield event


def _line(summary: Summary, event: GraphTracing | None) -> str:
    """The line of the program that called what was traced; empty if it is not known."""
    if event is None:
        return ""
    line = nearest(summary.trace.data, event.path)
    return "" if line is None else f"{line.file}:{line.number}"


def _costly(tracings: int, rows: Sequence[Graph]) -> Severity:
    steps = sum(each.steps for each in rows)
    return (
        "warning" if tracings >= MIN_TRACINGS and tracings * STEPS_PER_TRACING >= steps else "info"
    )


def _graphs(summary: Summary) -> list[Graph]:
    """The graphs of the optimizer; those of several workers, which do the same, stand for one."""
    first: dict[tuple[str, str], Graph] = {}
    for graph in summary.trace.graphs:
        if graph.root == summary.root:
            first.setdefault((graph.function, graph.signature), graph)
    return list(first.values())


def _by_function(summary: Summary) -> list[list[Graph]]:
    groups: dict[str, list[Graph]] = {}
    for graph in sorted(_graphs(summary), key=lambda each: each.after):
        groups.setdefault(graph.function, []).append(graph)
    return list(groups.values())


def _change(before: str, after: str) -> str:
    """`, when x: float32[32, 4] became x: float32[7, 4]`, with the arguments that changed.

    >>> _change("x: float32[1], 0", "x: float32[1], 1")
    ', when the Python value 0 became 1'
    """
    old, new = _arguments(before), _arguments(after)
    if len(old) == len(new):
        pairs = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
        old, new = [a for a, _ in pairs], [b for _, b in pairs]
    if not old or not new:
        return ""
    more = f" (and {some(len(new) - MAX_NAMES, 'more argument')})" if len(new) > MAX_NAMES else ""
    value = "the Python value " if len(old) == len(new) == 1 and _LITERAL.match(old[0]) else ""
    return f", when {value}{', '.join(old[:MAX_NAMES])} became {', '.join(new[:MAX_NAMES])}{more}"


def _arguments(signature: str) -> list[str]:
    """The arguments in a signature: split at the commas that are in no brackets.

    >>> _arguments("x: float32[32, 4], training: True")
    ['x: float32[32, 4]', 'training: True']
    """
    arguments, depth, start = [], 0, 0
    for index, char in enumerate(signature):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            arguments.append(signature[start:index].strip())
            start = index + 1
    return [*arguments, signature[start:].strip()]
