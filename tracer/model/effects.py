"""What is asked of a trace about effects: in which steps a variable stayed as it was, and the like.

No TensorFlow. A trace has no effects unless they were asked for, and then says so.
"""

from typing import Any, get_args

from tracer.errors import UnknownName, is_mistake
from tracer.model.records import Block, Effect, Entry, Observation, TraceData
from tracer.model.runs import apart

__tracebackhide__ = is_mistake

OBSERVATIONS: tuple[Observation, ...] = get_args(Observation)


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


def as_block(effect: Effect) -> Block:
    """The effect as what executes in these steps, to be counted as the work of an optimizer is."""
    role: Any = effect.what
    entry = Entry(effect.root, -1, role, None, effect.variables)
    parts = effect.total, apart(effect.runs)
    return Block(effect.root, effect.replica, "eager", "", False, (entry,), *parts)
