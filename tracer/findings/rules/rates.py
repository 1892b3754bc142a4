"""Rules on learning rates, schedules and weight decay."""

from collections.abc import Iterator

from tracer.findings.rule import Case, names_in_short, names_of, of_optimizer, rule
from tracer.model import measures, rates
from tracer.model.phrases import steps_label
from tracer.model.records import Rate
from tracer.model.summary import Summary
from tracer.model.words import listed, plural, some, times

MIN_STEPS = 10  # of a run that tells how fast a schedule goes
MIN_MOVED = 3  # steps
MANY_SKIPPED = 0.1  # of the steps
_TOO_FAST = (
    "Call the schedule's step once after each step of the optimizer, or make it for as many steps "
    "as it gets: with Accelerate, the steps times the processes."
)


@rule(
    "schedule-pace",
    severity="warning",
    title="a schedule is made for the steps of this run, and steps more often or far less often",
    why=(
        "The learning rate moves too fast, or hardly at all: a cosine that is stepped once an "
        "epoch, and made for each step, stays at its first value."
    ),
    advice=(
        "Call the schedule's step once after each step of the optimizer (in Lightning, "
        '"interval": "step"), or make it for the epochs.'
    ),
    explanation=(
        "For schedules of `torch.optim.lr_scheduler` that say for how many steps they are made: "
        "`T_max`, `total_steps`, `total_iters`, or `num_training_steps` of transformers. It is "
        "reported if that is the number of steps that the run made, but for one in twenty, and "
        "the schedule stepped less than a quarter as often, or more than one and a half times. "
        "One that steps once an epoch and is made for the epochs is not reported, nor one of a run "
        "that was ended early."
    ),
    needs=("steps",),
)
def schedule_pace(summary: Summary) -> Iterator[Case]:
    """A schedule is made for the steps of the run, and goes at another pace."""
    values = max(map(_values, rates.rates(summary, "rate")), default=0)
    for _, each in summary.remarks(rates.SCHEDULE):
        made_for = int(each.detail) if each.detail.isdigit() else 0
        steps, pace = each.of, (each.count + 1) / max(1, each.of)
        fits = steps >= MIN_STEPS and abs(made_for - steps) <= made_for / 20
        if fits and not 0.25 <= pace <= 1.5:
            advice = _TOO_FAST if pace > 1 else ""
            had = f"; the learning rate had {some(values, 'value')}" if values else ""
            yield Case(
                f"{each.method}{of_optimizer(summary)} is made for {made_for:,} steps, and stepped "
                f"{times(each.count)} between the {steps:,} steps that the run made{had}.",
                advice,
            )


def _values(rate: Rate) -> int:
    return rates.number_of_values(rate.runs)


@rule(
    "schedule-ahead",
    severity="warning",
    title="steps were skipped, and the schedule went on",
    why=(
        "The learning rate goes down, or warms up, for steps that did nothing: it is ahead of the "
        "training by each of them."
    ),
    advice=(
        "Step the schedule only if the step was made: compare scaler.get_scale() before and after "
        "scaler.update(), which makes it smaller after a step that it skipped. If many steps are "
        "skipped, look for what overflows."
    ),
    explanation=(
        "For a schedule that stepped between all steps of an optimizer under a `GradScaler`, which "
        "skipped three steps or more, and at least one in ten. It skips some at the beginning of "
        "nearly each training, until its scale is low enough."
    ),
    needs=("steps",),
)
def schedule_ahead(summary: Summary) -> Iterator[Case]:
    """A `GradScaler` skipped steps, and the schedule stepped all the same."""
    if not summary.optimizers[0].settings.get("grad_scaler"):
        return
    timeline = summary.timeline(measures.updates)
    skipped = [steps for steps, (made,) in timeline.parts() if not made]
    number = sum(each.number for each in skipped)
    for _, each in summary.remarks(rates.SCHEDULE):
        went_on = each.of == summary.steps and each.count >= each.of - 1
        if went_on and number >= max(3, MANY_SKIPPED * each.of):
            yield Case(
                f"{each.method}{of_optimizer(summary)} stepped {times(each.count)} between "
                f"{each.of:,} steps, and the GradScaler skipped {number:,} of them (steps "
                f"{listed([steps_label(part) for part in skipped], 3)}): the schedule is ahead by "
                f"{some(number, 'step')}.",
                step=skipped[0].first,
            )


@rule(
    "rate-loaded",
    severity="warning",
    title="load_state_dict put another learning rate in place of the one that was given",
    why=(
        "The state of an optimizer of PyTorch has its learning rate in it: what the constructor "
        "was given is gone once a state is loaded."
    ),
    advice=(
        "Set it again after the load: for group in optimizer.param_groups: group['lr'] = ...; or "
        "load the moments alone. If the run is to go on as it was, make the optimizer with the "
        "rate that the state has."
    ),
    explanation=(
        "For an optimizer of `torch.optim` that was made with a smaller learning rate than the one "
        "that was loaded, and that made its first step with that. A smaller rate that is loaded is "
        "what a run was at that goes on, and so is one whose schedule began with the rate that was "
        "given: nothing is said of these."
    ),
    needs=("steps",),
)
def rate_loaded(summary: Summary) -> Iterator[Case]:
    """A state that was loaded brought its learning rate."""
    for optimizer, each in summary.remarks(rates.LOADED):
        old, _, new = each.detail.partition(" ")
        where = f" ({each.where})" if each.where else ""
        yield Case(
            f"{optimizer.name} was made with the learning rate {old}, and stepped with {new} from "
            f"step 1 on: load_state_dict{where} put that in place."
        )


@rule(
    "decay-flipped",
    severity="warning",
    title="only biases and norms have weight decay",
    why=(
        "Weight decay is meant for the matrices; biases and the scales of norms are what one "
        "leaves out of it."
    ),
    advice=(
        "Look at the mask or the groups: a mask is True, or a group has weight_decay, for what is "
        "to decay."
    ),
    explanation=(
        "All variables that decay have one dimension or none, and none of those with more "
        "dimensions does. What decays is known of the parameter groups of `torch.optim`, of the "
        "exclusions of Keras, and of the masks of optax."
    ),
    needs=("steps",),
)
def decay_flipped(summary: Summary) -> Iterator[Case]:
    """What decays is just what should not."""
    decayed, others = rates.decaying(summary)
    flat = rates.vectors(summary, decayed)
    free = {*names_of(summary, others)}.difference(rates.vectors(summary, others))
    if decayed and len(flat) == len(decayed) and free:
        noun = summary.dialect.variable
        yield Case(
            f"{names_in_short(flat, of_optimizer(summary), noun)}, of one dimension, "
            f"{plural(len(flat), 'has', 'have')} weight decay, and "
            f"{names_in_short(sorted(free), '', noun)} {plural(len(free), 'has', 'have')} none.",
            names=tuple(flat),
        )


@rule(
    "decay-of-norms",
    severity="info",
    title="some variables of one dimension decay, and others do not",
    why="Who leaves biases out of weight decay mostly means the scales of norms, too.",
    advice=(
        "If the norms are to be left out, choose by the number of dimensions (p.ndim < 2) and not "
        "by names, which differ from model to model: LayerNorm.weight, layer_norm.weight, ln_1."
    ),
    explanation=(
        "Groups, a mask or patterns leave some variables of one dimension out of weight decay, and "
        "not all. It is info: to leave out the biases alone is an old habit, too."
    ),
    needs=("steps",),
)
def decay_of_norms(summary: Summary) -> Iterator[Case]:
    """The exclusion from weight decay does not reach all that have one dimension."""
    decayed, others = rates.decaying(summary)
    flat = rates.vectors(summary, decayed)
    if len(flat) < len(decayed) and flat and (left := rates.vectors(summary, others)):
        noun = summary.dialect.variable
        decay, does = plural(len(flat), "decays", "decay"), plural(len(left), "does", "do")
        yield Case(
            f"{names_in_short(flat, of_optimizer(summary), noun)} {decay}, though of one "
            f"dimension; {names_in_short(left, '', noun)} {does} not.",
            names=tuple(flat),
        )


@rule(
    "moved-without-gradient",
    severity="warning",
    title="variables move though their gradient is 0 in all steps",
    why=(
        "Weight decay and momentum move a variable by themselves: a gradient that is set to 0, or "
        "multiplied by a mask, freezes nothing."
    ),
    advice=(
        "Leave out of the optimizer what is to stay as it is, or set its gradient to None; put "
        "back what a mask protects after each step, or give it no weight decay and no momentum. If "
        "nothing is to be frozen, look for what cuts it from the loss."
    ),
    explanation=(
        "Needs effects: `tracer.wrap(optimizer, effects=True)` or `tracer run --effects`. For "
        "parameters of `torch.optim` on the CPU, in eager mode, that moved in at least three "
        "steps, and in half of them. The gradient was 0 in all steps, of the whole parameter, or "
        "of the same tenth of it or more after somebody changed it past the backward pass. Rows "
        "and columns of zeros, as of words that do not come, are not reported, nor is what a mask "
        "in the model itself leaves out."
    ),
    needs=("steps",),
)
def moved_without_gradient(summary: Summary) -> Iterator[Case]:
    """What the optimizer does by itself moves a variable."""
    decayed, _ = rates.decaying(summary)
    index_of = {summary.trace.variables[index].name: index for index in summary.variables}
    for _, each in summary.remarks(rates.DRIFT):
        index = index_of.get("".join(each.variables))
        if index is None or each.count < max(MIN_MOVED, each.of / 2):
            continue
        steps = some(each.of, "step")
        yield Case(
            "{part}{which} changed in {moved}, though the gradient was 0{there} in all of them: "
            "{cause}.",
            variables=[index],
            words={
                "part": f"{each.detail} elements of " if each.detail else "",
                "moved": f"{'each' if each.count == each.of else f'{each.count:,}'} of {steps}",
                "there": " there" if each.detail else "",
                "cause": "weight decay moves what has no gradient"
                if index in decayed
                else "momentum moves what has no gradient any more",
            },
        )
