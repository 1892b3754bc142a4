"""Rules on what a transformation made of the gradients that it was given."""

from collections.abc import Iterator

from tracer.findings.rule import Case, names_in_short, rule
from tracer.model.summary import Summary
from tracer.model.words import plural


@rule(
    "not-finite-kept",
    severity="warning",
    title="updates that are not finite were let through",
    why="What is NaN or infinite once stays so: each later step computes with it.",
    advice=(
        "Find out why the gradients were not finite for so many steps in a row; a larger "
        "max_consecutive_errors only delays it."
    ),
    explanation=(
        "For steps of optax that `apply_if_finite` let through because more than "
        "`max_consecutive_errors` in a row were not finite. Its state says it in each step."
    ),
)
def not_finite_kept(summary: Summary) -> Iterator[Case]:
    """`apply_if_finite` gave up."""
    for optimizer, remark in summary.remarks("not-finite-kept"):
        yield Case(
            f"{plural(remark.count, 'Step', 'Steps')} {remark.detail} of {optimizer.name} "
            f"{plural(remark.count, 'was', 'were')} not finite and let through: {remark.method} "
            "gave up after max_consecutive_errors in a row."
        )


@rule(
    "gradient-passed-on",
    severity="warning",
    title="gradients came back as updates, as they were",
    why=(
        "What `optax.masked` leaves out it passes on: the gradient itself is then added to the "
        "weight, upwards and without a rate."
    ),
    advice=(
        "To freeze those, give them set_to_zero: optax.partition({'train': tx, 'freeze': "
        "optax.set_to_zero()}, labels), or chain masked(set_to_zero(), the other mask)."
    ),
    explanation=(
        "For a transformation that multiplies by a rate and returned for some leaves the very "
        "object that it was given, and for others not. It is not reported of what only prepares "
        "gradients, as `masked(clip(...))`, nor of leaves of which the gradient is a constant 0. A "
        "gradient that the program makes 0 otherwise, and an update that it drops, are not known."
    ),
    needs=("steps",),
)
def gradient_passed_on(summary: Summary) -> Iterator[Case]:
    """Some leaves get the update, others the raw gradient."""
    for optimizer, remark in summary.remarks("gradient-passed-on"):
        left, noun = remark.of - remark.count, summary.dialect.variable
        made = f", made in {optimizer.made}," if optimizer.made else ""
        rest = names_in_short(remark.variables, noun=noun)
        yield Case(
            f"Of {remark.of:,} {plural(remark.of, noun)} {optimizer.name}{made} "
            f"updated {left:,}; the gradient of {rest} came back as it was, and is added as it is.",
            names=remark.variables,
        )


@rule(
    "gradient-always-zero",
    severity="warning",
    title="every gradient was 0",
    why="The loss does not depend on the weights, so no step can lower it.",
    advice=(
        "Look for what has no derivative between the weights and the loss: argmax, round, a "
        "comparison, integers, stop_gradient; or a loss that does not use the predictions."
    ),
    explanation=(
        "With optax, if in each program that JAX traced, and in each step of eager mode, the "
        "gradients of all leaves are 0: in a program a constant that JAX made, so it is no chance. "
        "From JAX 0.8 on; what a program of its own computed is not looked at."
    ),
    needs=("steps",),
)
def gradient_always_zero(summary: Summary) -> Iterator[Case]:
    """The loss does not depend on the weights."""
    for optimizer, remark in summary.remarks("gradient-always-zero"):
        steps = f"{summary.steps:,} {plural(summary.steps, 'step')}"
        rest = names_in_short(remark.variables, noun=summary.dialect.variable)
        yield Case(
            f"Every gradient was 0 in all {steps} of {optimizer.name}, of {rest}: the loss does "
            "not depend on them.",
            names=remark.variables,
        )
