"""Rules on the steps: skipped, accumulated, counted otherwise, or never made."""

from collections.abc import Iterator

from tracer.findings.rule import Case, of_optimizer, rule
from tracer.model.labels import class_of
from tracer.model.measures import counting, ineffective, requests, tries
from tracer.model.programs import has_ended
from tracer.model.records import Optimizer
from tracer.model.skipped_steps import (
    accumulated_steps,
    accumulations,
    skipped,
    skipper,
)
from tracer.model.summary import Summary
from tracer.model.wording import plural, some


@rule(
    "steps-skipped",
    severity="warning",
    title="a loss scale skipped steps",
    why=(
        "A skipped step updates nothing. Some at the beginning are usual; many in a row mean that "
        "the gradients are infinite or NaN whatever the scale is."
    ),
    advice=(
        "If it goes on, look for the layer that gives inf or NaN: tf.debugging.check_numerics, a "
        "lower learning rate, that layer in float32."
    ),
    explanation=(
        "It is info until more steps in a row were skipped than halve the initial scale to 1 (15 "
        "for the default of 2**15), a warning from then on, and if all steps were skipped. A "
        "scale that goes on falling stays at 1 in tf_keras. In Keras 3 it becomes 0, 2**15 after "
        "142 steps, and then a gradient that is finite is divided by 0. A GradScaler of PyTorch is "
        "a loss scale, too; what a fused optimizer skipped in its kernel is counted with the rest. "
        "So is apply_if_finite of optax, and a MultiSteps that is told which steps to skip."
    ),
    needs=("complete",),
)
def steps_skipped(summary: Summary) -> Iterator[Case]:
    """A loss scale found gradients that were not finite, and skipped the step."""
    skips = skipped(summary)
    if skips is None:
        return
    by, number = skipper(summary.optimizers), skips.number
    first, last = skips.longest
    longest = last - first + 1
    which = f"the first of them step {skips.first:,}"
    if number == 1:
        which = f"step {first:,}"
    elif longest > 1:
        row = f"in a row, from step {first:,} to {last:,}"
        which = f"all {row}" if longest == number else f"{which}; {longest:,} of them {row}"
    lost = skips.by.settings.get("dynamic_scale") == 0
    advice = _NO_SCALE if lost else _OTHERS.get(by, _GOES_ON)
    yield Case(
        f"{some(number, 'step')} of {summary.steps_on[summary.replicas[0]]:,}"
        f"{of_optimizer(summary)} {plural(number, 'was', 'were')} skipped by {by}, {which}"
        f"{_coming(skips.by) if skips.hopeless else ''}.",
        advice.format(summary.dialect.find_nan),
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
    "Begin again from a checkpoint with finite weights and a scale above 0, and look for the layer "
    "that gives inf or NaN: {}, a lower learning rate, that layer in float32."
)


def _coming(scale: Optimizer) -> str:
    """What a scale that has fallen too low does next: that of Keras 3 has no lower limit."""
    now = scale.settings.get("dynamic_scale")
    if now == 0:
        return (
            "; the scale is 0 now, and stays 0: a gradient that is finite is divided by it, which "
            "makes the weights NaN"
        )
    if not isinstance(now, int | float) or now >= 1:
        return ""
    return f"; the scale is {now:g} now, and each further step that is skipped halves it, down to 0"


@rule(
    "steps-differ",
    severity="warning",
    title="steps, updates and iterations differ",
    why=(
        "The bias correction of Adam, logs and learning-rate schedules go by iterations. Only the "
        "schedules of Keras 3 with gradient_accumulation_steps go by batches."
    ),
    advice=(
        "Call the apply_gradients of the base class, or do `self.iterations.assign_add(1)` in your "
        "own."
    ),
    explanation=(
        "It is a warning if iterations stayed at 0, or moved several times for each step; and info "
        "if gradients are accumulated, or if iterations moved otherwise, as a checkpoint does it. "
        "What a checkpoint or a loaded model had set before the first step is left out. Steps that "
        "a loss scale skipped are reported by steps-skipped."
    ),
    needs=("steps", "complete", "placed"),
)
def steps_differ(summary: Summary) -> Iterator[Case]:
    """Steps that were asked for, steps that updated anything and `iterations` are not the same."""
    replica = summary.replicas[0]
    steps = summary.steps_on[replica]
    applied = steps - summary.spread(tries, replica=replica)[(0,)]
    for index, made in _made(summary, replica).items() if applied else ():
        optimizer = summary.trace.optimizers[index]
        moved = optimizer.iterations
        begin = f"{optimizer.name} made {some(made, 'step')}, and its iterations "
        if moved == 0:
            yield Case(f"{begin}stayed at 0.")
        elif moved and moved > made and moved % made == 0:
            yield Case(
                f"{begin}moved by {moved:,}, {moved // made:,} for each step.",
                "Count iterations in one place: apply_gradients of the base class does it already.",
            )
        elif moved not in (None, made):
            whys = {
                steps * (index != summary.root): (
                    ", one for each step, also for those that were skipped"
                ),
                applied: ", one for each step that updated anything",
            }
            other = " (a step that failed, a checkpoint or an assignment moves them too)"
            yield Case(f"{begin}moved by {moved:,}{whys.get(moved, other)}.", _FINE, "info")
    every = accumulated_steps(summary)
    meant = every > 1 or not skipper(summary.optimizers)
    if applied < steps and meant and not summary.total(ineffective):
        spread = summary.spread(tries, requests, replica=replica)
        reason = f"no gradient came{' in the others' if applied else ''}"
        if every > 1:
            reason = f"the gradients of {every:,} steps are accumulated"
        elif any(came for made, came in spread if not made):
            reason = "its own code decides which"
        yield Case(
            f"{applied:,} of {some(steps, 'step')}{of_optimizer(summary)} updated anything: "
            f"{reason}.",
            _FINE,
            "info",
        )


_FINE = "If that is what you meant, there is nothing to do."


def _made(summary: Summary, replica: int) -> dict[int, int]:
    """For each optimizer that updates variables, how often its step method ran on a replica."""
    roles = ("update", "vain", "discarded")
    inside = [of for of in summary.executions if of.role in roles and not of.outside]
    made = {
        index: max(
            summary.total(counting(["step"], None, [method], optimizer=index), replica)
            for method in summary.methods
        )
        for index in sorted({of.optimizer for of in inside})
    }
    return {index: number for index, number in made.items() if number}


@rule(
    "gradients-left",
    severity="warning",
    title="accumulated gradients that were never applied",
    why="What was learnt from the last batches is thrown away.",
    advice=(
        "Choose a number of batches that gradient_accumulation_steps divides, or drop the rest: "
        "the accumulators of Keras go on from epoch to epoch, and nothing applies what is in them "
        "at the end."
    ),
    explanation=(
        "For optimizers of Keras 3 with gradient_accumulation_steps: the steps after the last one "
        "that updated anything, fewer than a group has; those that a loss scale skipped are not "
        "counted. It is a warning if they are a tenth of all "
        "steps or more, of a program that has ended under `tracer run` without an error; and info "
        "otherwise: at the end of a long run it is a small loss, and training may go on."
    ),
    needs=("steps", "complete", "placed"),
)
def gradients_left(summary: Summary) -> Iterator[Case]:
    """The last group of steps whose gradients are accumulated is not complete."""
    every, reached = accumulated_steps(summary), accumulations(summary)
    if every < 2 or reached is None or summary.unplaced(reached):
        return
    replica = summary.replicas[0]
    steps = summary.steps_on[replica]
    parts = summary.timeline(tries, replica=replica).parts()
    last = max((part.last for part, (made,) in parts if made), default=0)
    group = summary.timeline(reached, replica=replica).within(last + 1, steps)
    left = sum(number * kept for number, (kept,) in group)
    if 0 < left < every:
        after = steps - last
        which = "the last step" if after == 1 else f"the last {after:,} steps"
        yield Case(
            f"The gradients of {which if left == after else f'{left:,} of {which}'} of {steps:,}"
            f"{of_optimizer(summary)} were accumulated and never applied: those of {every:,} steps "
            "are applied together.",
            severity="warning" if left * 10 >= steps and has_ended(summary.trace) else "info",
            step=last + 1,
        )


@rule(
    "never-used",
    severity="warning",
    title="an optimizer was built and never used",
    why=(
        "It holds memory for each variable, and the program may train with another optimizer than "
        "it seems to."
    ),
    advice="Look which optimizer the train step calls; compile keeps the one that it was given.",
    explanation=(
        "The optimizer was wrapped, and built for its variables (as by loading a model), and "
        "apply_gradients was not called so far; or `fit` came to its end with it, whose "
        "`train_step` calls no apply_gradients. `tracer.record` and `tracer run` leave out what "
        "was not used, but for such a `fit` where no other optimizer was used, and the optimizer "
        "is none that `compile` has chosen (RMSprop)."
    ),
    needs=("complete",),
)
def never_used(summary: Summary) -> Iterator[Case]:
    """An optimizer was given its variables, and made no step."""
    root = summary.optimizers[0]
    fitted = any(remark.code == "fitted" for remark in root.remarks)
    built = root.settings.get("built") or (root.kind == "legacy" and root.iterations is not None)
    idle = not summary.replicas and not any(each.iterations for each in summary.optimizers)
    if fitted and idle:
        yield Case(
            f"A model was compiled with {root.name} ({class_of(root)}) and trained by fit, and "
            "the optimizer made no step: the train_step never calls its apply_gradients.",
            "Call self.optimizer.apply_gradients(zip(gradients, self.trainable_variables)) in "
            "train_step.",
        )
    elif built and idle and not root.failures:
        yield Case(f"{root.name} ({class_of(root)}) was built for its variables, and made no step.")
