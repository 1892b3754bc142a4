"""What is asked of a trace about effects: in which steps a variable stayed as it was, and the like.

No TensorFlow. A trace has no effects unless they were asked for, and then says so.
"""

from collections.abc import Iterable, Iterator
from typing import Any, get_args

from tracer.errors import UnknownName, is_mistake
from tracer.model.records import Effect, Observation, TraceData
from tracer.model.runs import Run
from tracer.model.selection import Selection

__tracebackhide__ = is_mistake

OBSERVATIONS: tuple[Observation, ...] = get_args(Observation)
FILTERS = ("variable", "step", "replica", "worker", "optimizer")
"""What a question about effects can be limited to, and split by."""


def require_effects(data: TraceData, what: object, steps: int) -> None:
    """Raise `tracer.UnknownName` if steps ran, and it is not known what they did to the variables.

    As a rule nobody asked for it; or nothing could be compared, which a note says.
    """
    if steps and not data.effects:
        for note in data.notes:
            if "effects" in note:
                raise UnknownName(f"no count {str(what)!r}: nothing was compared: {note}")
        raise UnknownName(
            f"no count {str(what)!r}: the trace has no effects, which have to be asked for: "
            "tracer.wrap(optimizer, effects=True), tracer.record(effects=True) or tracer run "
            "--effects"
        )


def selected(
    data: TraceData, what: object, selection: Selection
) -> Iterator[tuple[Effect, tuple[int, ...]]]:
    """The records that count, each with those of its variables that do."""
    roots = None
    if selection.optimizers is not None:
        roots = {data.optimizers[index].root for index in selection.optimizers}
    for effect in data.effects:
        if (
            effect.what == what
            and (roots is None or effect.root in roots)
            and (selection.replicas is None or effect.replica in selection.replicas)
        ):
            variables = tuple(
                index
                for index in effect.variables
                if selection.variables is None or index in selection.variables
            )
            if variables:
                yield effect, variables


def runs_in(effect: Effect, steps: range | None) -> Iterable[Run]:
    """The runs of a record, as far as they are in these steps."""
    if steps is None:
        return effect.runs
    return [within for run in effect.runs if (within := run.only(steps)) is not None]


def rows(
    data: TraceData, what: object, selection: Selection, by_step: bool
) -> Iterator[tuple[dict[str, Any], int]]:
    """What can be split by, for each count that is added up."""
    for effect, variables in selected(data, what, selection):
        runs = runs_in(effect, selection.steps)
        if by_step:
            counts = [
                (step, run.times)
                for run in runs
                for step in range(run.first, run.last + 1, run.stride)
            ]
        elif selection.steps is None:
            counts = [(0, effect.total)]
        else:
            counts = [(0, sum(run.total for run in runs))]
        replica = data.replicas[effect.replica]
        keys = {
            "optimizer": data.optimizers[effect.root].name,
            "replica": replica.id,
            "worker": replica.worker,
        }
        for index in variables:
            for step, number in counts:
                yield {**keys, "variable": data.variables[index].name, "step": step}, number
