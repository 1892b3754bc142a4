"""Rules on graph tracings: graphs that never ran, functions traced again and again."""

from collections.abc import Iterator, Sequence

from tracer.findings.cases import Case, Severity, listed, of_optimizer, some
from tracer.findings.histories import Evidence
from tracer.model.records import Graph
from tracer.model.wording import times

_OFTEN = 5  # tracings of a function: TensorFlow itself warns of 5 (eager/function, def_function)
_EACH = 20  # steps: who traces more rarely loses little time by it
_FEW = 3


def apply_gradients_twice(found: Evidence) -> Iterator[Case]:
    """The code of one step calls `apply_gradients` several times."""
    most: dict[str, int] = {}
    for graph in _graphs(found):
        if graph.step_calls > 1:
            most[graph.function] = max(most.get(graph.function, 0), graph.step_calls)
    for function, calls in most.items():
        yield Case(
            "warning",
            f"{function} calls apply_gradients{of_optimizer(found)} {times(calls)}: each time it "
            f"runs, that is {calls:,} steps.",
        )


def graph_never_ran(found: Evidence) -> Iterator[Case]:
    """A graph with updates was traced, and never executed."""
    rows = [each for each in _graphs(found) if each.idle]
    ran = any(block.total for block in found.blocks)
    functions = dict.fromkeys(each.function for each in rows)
    if len(functions) > _FEW:
        idle, tracings = sum(each.idle for each in rows), sum(each.tracings for each in rows)
        which = f"{listed([*functions][:_FEW])} and {len(functions) - _FEW:,} more functions"
        rows = []
        yield _idle(which + of_optimizer(found), tracings, idle, ran)
    for function in functions if rows else ():
        mine = [each for each in _graphs(found) if each.function == function]
        idle, tracings = sum(each.idle for each in mine), sum(each.tracings for each in mine)
        yield _idle(function + of_optimizer(found), tracings, idle, ran)


def _idle(which: str, tracings: int, idle: int, ran: bool) -> Case:
    graphs = "the graph" if tracings == 1 else f"{idle:,} of the {tracings:,} graphs"
    text = f"{which}: {graphs} that its tracing gave never ran."
    if ran:
        return Case("info", text)
    return Case("warning", text, "Call the function: tracing it alone trains nothing.")


def retraced(found: Evidence) -> Iterator[Case]:
    """A function was traced for another signature after training had begun."""
    for rows in _by_function(found):
        signatures = [each for each in rows if each.signature]
        later = [each for each in signatures if each.after > 0]
        if len(signatures) < 2 or not later:
            continue
        tracings = sum(each.tracings for each in later)
        first = min(later, key=lambda each: each.after)
        place = signatures.index(first)
        before = signatures[place - 1 if place else 1]
        change = _change(before.signature, first.signature)
        text = (
            f"{first.function}{of_optimizer(found)} was traced anew {times(tracings)} in training, "
            f"first after step {first.after:,}{change}"
        )
        yield Case(_costly(tracings, rows), f"{text}.", step=first.after + 1)


def traced_again(found: Evidence) -> Iterator[Case]:
    """A function was traced several times for one signature, and more than one graph of it ran."""
    for rows in _by_function(found):
        again = [each for each in rows if each.tracings - each.idle > 1]
        tracings = sum(each.tracings - each.idle for each in again)
        if again:
            text = (
                f"{again[0].function}{of_optimizer(found)} was traced {times(tracings)} for "
                f"{'one signature' if len(again) == 1 else f'{len(again):,} signatures'}"
            )
            yield Case(_costly(tracings, rows), f"{text}.")


def _costly(tracings: int, rows: Sequence[Graph]) -> Severity:
    steps = sum(each.steps for each in rows)
    return "warning" if tracings >= _OFTEN and tracings * _EACH >= steps else "info"


def _graphs(found: Evidence) -> list[Graph]:
    """The graphs of the optimizer; those of several workers, which do the same, stand for one."""
    first: dict[tuple[str, str], Graph] = {}
    for graph in found.trace.graphs:
        if graph.root == found.root:
            first.setdefault((graph.function, graph.signature), graph)
    return list(first.values())


def _by_function(found: Evidence) -> list[list[Graph]]:
    groups: dict[str, list[Graph]] = {}
    for graph in sorted(_graphs(found), key=lambda each: each.after):
        groups.setdefault(graph.function, []).append(graph)
    return list(groups.values())


def _change(before: str, after: str) -> str:
    """`: x: float32[32, 4] became x: float32[7, 4]`, of what is not the same in both."""
    old, new = _arguments(before), _arguments(after)
    if len(old) == len(new):
        pairs = [pair for pair in zip(old, new, strict=True) if pair[0] != pair[1]]
        old, new = [a for a, _ in pairs], [b for _, b in pairs]
    if not old or not new:
        return ""
    more = f" (and {some(len(new) - _FEW, 'more argument')})" if len(new) > _FEW else ""
    return f": {', '.join(old[:_FEW])} became {', '.join(new[:_FEW])}{more}"


def _arguments(signature: str) -> list[str]:
    """The arguments in a signature: split at the commas that are in no brackets.

    >>> _arguments("x: float32[32, 4], training: True")
    ['x: float32[32, 4]', 'training: True']
    """
    parts, depth, start = [], 0, 0
    for place, char in enumerate(signature):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            parts.append(signature[start:place].strip())
            start = place + 1
    return [*parts, signature[start:].strip()]
