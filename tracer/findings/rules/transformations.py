"""Rules on the output of optax transformations, compared with their gradients."""

from collections.abc import Iterator

from tracer.findings.rule import Case, names_in_short, rule
from tracer.model.summary import Summary
from tracer.model.words import plural


@rule(
    "not-finite-kept",
    severity="warning",
    title="updates with NaN or infinity were let through",
    why="A weight that becomes NaN stays NaN.",
    advice=(
        "Find out why the gradients were not finite so many times in a row; a larger "
        "max_consecutive_errors only delays it."
    ),
    explanation=(
        "After `max_consecutive_errors` updates in a row that are not finite, "
        "`apply_if_finite` of optax lets them through."
    ),
    says_line=True,
)
def not_finite_kept(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("not-finite-kept"):
        yield Case(
            f"{remark.method} let {plural(remark.count, 'step')} "
            f"{remark.detail}{f' of {optimizer.name}' * (optimizer.name != remark.method)} "
            "through with NaN or infinity in the updates: it gives up after "
            "max_consecutive_errors in a row."
        )


@rule(
    "gradient-passed-on",
    severity="warning",
    title="raw gradients came back as updates",
    why=(
        "`optax.masked` returns the excluded leaves as raw gradients. Added to the "
        "weights, they move these the wrong way, without a learning rate."
    ),
    advice=(
        "To freeze these leaves, use optax.partition({'train': tx, 'freeze': "
        "optax.set_to_zero()}, labels), or chain masked(set_to_zero(), the other mask). "
        "Nothing to do if the program drops these updates itself."
    ),
    explanation=(
        "For optax transformations with a learning rate, also in a chain after parts that only "
        "prepare the gradients (`chain(clip(...), masked(adam(...)))`) if it was made while the "
        "program was recorded. Silent for `masked(clip(...))` alone."
    ),
    needs=("steps",),
)
def gradient_passed_on(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("gradient-passed-on"):
        left, noun = remark.of - remark.count, summary.dialect.variable
        made = f", made in {optimizer.made}," if optimizer.made else ""
        rest = names_in_short(remark.variables, noun=noun)
        yield Case(
            f"{optimizer.name}{made} updated {left:,} of {remark.of:,} {plural(remark.of, noun)}, "
            f"and returned the raw gradient of {rest}, which apply_updates adds to the weight as "
            "it is.",
            names=remark.variables,
        )


@rule(
    "gradient-always-zero",
    severity="warning",
    title="every gradient was 0",
    why="The loss does not depend on the weights, so no step can lower it.",
    advice=(
        "Look for an operation without a derivative (argmax, round, a comparison, "
        "integers, stop_gradient), or a loss that ignores the predictions."
    ),
    explanation=(
        "For optax and JAX 0.8 or later: the gradient of every leaf was a constant 0 in "
        "each traced program, or 0 in each eager step."
    ),
    says_line=True,
    needs=("steps",),
)
def gradient_always_zero(summary: Summary) -> Iterator[Case]:
    for optimizer, remark in summary.remarks("gradient-always-zero"):
        steps = f"{summary.steps:,} {plural(summary.steps, 'step')}"
        rest = names_in_short(remark.variables, noun=summary.dialect.variable)
        flat = ", or is flat where they are" * bool(remark.detail)
        yield Case(
            f"All gradients of {rest} were 0 in all {steps} of {optimizer.name}: the loss does not "
            f"depend on them{flat}.",
            names=remark.variables,
        )
