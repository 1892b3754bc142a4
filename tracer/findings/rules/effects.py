"""Rules on apply methods that ran, or should have, and had no effect."""

from collections.abc import Iterator

from tracer.findings.cases import Case, names_of, subject
from tracer.findings.rule import rule
from tracer.model.dialects import KIND_WORDS
from tracer.model.labels import class_of
from tracer.model.measures import counting
from tracer.model.summary import Summary
from tracer.model.wording import times


@rule(
    "never-assigned",
    severity="error",
    title="an apply method assigned nothing",
    why="The variable keeps its value, however often the method runs: it never learns.",
    advice="Assign to the variable itself.",
    explanation=(
        "`variable = variable - rate * gradient` only gives the result a Python name; it takes "
        "`assign_sub`, or another op that writes to the variable. In a graph that is known by the "
        "ops that the method added, in eager mode by a look at the variable's memory, and there "
        "only for a method without a condition. Gradients of 0 and a rate of 0 are not reported, "
        "for then something is assigned. What such a method did is not counted as an update. Also "
        "reported is a method of a legacy Keras or tf.compat.v1 optimizer that returned None in a "
        "graph, where TensorFlow needs the op that makes the update."
    ),
)
def never_assigned(summary: Summary) -> Iterator[Case]:
    """An apply method ran, and nothing of it writes to the variable."""
    called = {method.name for method in summary.trace.methods}
    for optimizer, remark in summary.remarks("no-result"):
        if remark.method in called:
            yield Case(
                "error",
                f"{class_of(optimizer)}.{remark.method} returned None while a graph was traced, "
                "where TensorFlow needs the op that makes the update.",
                f"Return the op: {KIND_WORDS[optimizer.kind].assign}.",
            )
    for (index, method), variables in _in_vain(summary).items():
        optimizer = summary.trace.optimizers[index]
        ran = summary.total(counting(["vain"], methods=[method]))
        if ran:
            name = summary.trace.methods[method].name
            yield Case(
                "error",
                f"{class_of(optimizer)}.{name} ran {times(ran)} and assigned nothing to "
                f"{subject(summary, variables)}.",
                f"Assign to the variable itself, as with {KIND_WORDS[optimizer.kind].assign}: "
                "`variable = ...` changes no weight.",
                names_of(summary, variables),
            )


def _in_vain(summary: Summary) -> dict[tuple[int, int], list[int]]:
    """The variables to which an optimizer's method assigned nothing."""
    executed = summary.executions.items()
    found = {}
    for key in sorted({(of.optimizer, of.method) for of, n in executed if of.role == "vain" and n}):
        only = counting(["vain"], None, [key[1]], optimizer=key[0])
        patterns = (each for each in summary.patterns if each.total(only))
        found[key] = sorted(index for each in patterns for index in each.variables)
    return found
