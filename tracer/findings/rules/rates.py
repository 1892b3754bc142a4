"""Rules on learning rates, schedules and weight decay."""

from collections.abc import Iterator

from tracer.findings.rule import Case, made_in, names_in_short, names_of, of_optimizer, rule
from tracer.model import measures, rates
from tracer.model.phrases import steps_label
from tracer.model.records import Rate
from tracer.model.summary import Summary
from tracer.model.trace import has_all_workers
from tracer.model.words import listed, plural, some, times

MIN_STEPS = 10  # the shortest run that shows a schedule's pace
MIN_MOVED = 5  # updates
MANY_SKIPPED = 0.1  # of the steps
_TOO_FAST = (
    "Call the schedule's step once after each step of the optimizer, or make it for as many steps "
    "as it gets: with Accelerate, the steps times the processes."
)


@rule(
    "schedule-pace",
    severity="warning",
    title="a schedule steps far more or far less often than it is made for",
    why="The learning rate moves too fast, or hardly at all.",
    advice=(
        "Call the schedule's step once after each step of the optimizer (in Lightning, "
        '"interval": "step"), or make it for the epochs.'
    ),
    explanation=(
        "For PyTorch schedules made for the steps of this run (`T_max`, `total_steps`, "
        "`total_iters`, `num_training_steps`). Reported if it stepped less than a quarter as often "
        "as it was made for, or more than one and a half times as often."
    ),
    says_line=True,
    needs=("steps",),
)
def schedule_pace(summary: Summary) -> Iterator[Case]:
    values = max(map(_values, rates.rates(summary, "rate")), default=0)
    for _, each in summary.remarks(rates.SCHEDULE):
        made_for = int(each.detail) if each.detail.isdigit() else 0
        steps, pace = each.of, (each.count + 1) / max(1, each.of)
        fits = steps >= MIN_STEPS and abs(made_for - steps) <= made_for / 20
        if fits and not 0.25 <= pace <= 1.5:
            advice = _TOO_FAST if pace > 1 else ""
            had = f": the learning rate had {some(values, 'value')}" if values else ""
            yield Case(
                f"{each.method}{of_optimizer(summary)} is made for {made_for:,} steps, but stepped "
                f"{times(each.count)} in the {steps:,} steps of this run{had}.",
                advice,
            )


def _values(rate: Rate) -> int:
    return rates.number_of_values(rate.runs)


@rule(
    "schedule-ahead",
    severity="warning",
    title="a schedule went on while steps were skipped",
    why=("The learning rate moved for steps that did nothing, and is ahead of the training."),
    advice=(
        "Step it only after a step that was made: scaler.update() lowers "
        "scaler.get_scale() after a skipped one. If many are skipped, look for what "
        "overflows."
    ),
    explanation=(
        "A schedule stepped at each step of an optimizer under a `GradScaler`, which "
        "skipped at least three steps and one in ten."
    ),
    says_line=True,
    needs=("steps",),
)
def schedule_ahead(summary: Summary) -> Iterator[Case]:
    if not summary.optimizers[0].settings.get("grad_scaler"):
        return
    timeline = summary.timeline(measures.updates)
    skipped = [steps for steps, (made,) in timeline.parts() if not made]
    number = sum(each.number for each in skipped)
    for _, each in summary.remarks(rates.SCHEDULE):
        went_on = each.of == summary.steps and each.count >= each.of - 1
        if went_on and number >= max(3, MANY_SKIPPED * each.of):
            yield Case(
                f"{each.method}{of_optimizer(summary)} stepped {times(each.count)} in "
                f"{each.of:,} steps, but the GradScaler skipped {number:,} of these (steps "
                f"{listed([steps_label(part) for part in skipped], 3)}): the schedule is "
                f"{some(number, 'step')} ahead.",
                step=skipped[0].first,
            )


@rule(
    "rate-loaded",
    severity="warning",
    title="load_state_dict replaced the learning rate",
    why="The saved state of a PyTorch optimizer contains its learning rate.",
    advice=(
        "Set it after the load (group['lr'] = ... for each of optimizer.param_groups). To go on "
        "with the old run, make the optimizer with the saved rate."
    ),
    explanation=(
        "Reported if the saved rate is larger than the constructor's and the first step "
        "used it. A smaller one is normal in a resumed run."
    ),
    needs=("steps",),
)
def rate_loaded(summary: Summary) -> Iterator[Case]:
    for optimizer, each in summary.remarks(rates.LOADED):
        old, _, new = each.detail.partition(" ")
        where = f" ({each.where})" if each.where else ""
        yield Case(
            f"{optimizer.name} was made with the learning rate {old}, but used {new} from step 1 "
            f"on: load_state_dict{where} replaced it."
        )


@rule(
    "decay-flipped",
    severity="warning",
    title="only biases and norms have weight decay",
    why=(
        "Weight decay is meant for matrices, not for biases and norms: the mask is "
        "probably inverted."
    ),
    advice=(
        "Check the mask or the groups: a parameter decays if its mask is True, or its group has "
        "weight_decay."
    ),
    explanation=(
        "All variables that decay have at most one dimension, and no other variable "
        "decays. Known from parameter groups of `torch.optim`, exclusions of Keras, "
        "masks of optax."
    ),
    needs=("steps",),
)
def decay_flipped(summary: Summary) -> Iterator[Case]:
    decayed, others = rates.decaying(summary)
    flat = rates.vectors(summary, decayed)
    free = {*names_of(summary, others)}.difference(rates.vectors(summary, others))
    if decayed and len(flat) == len(decayed) and free:
        noun = summary.dialect.variable
        yield Case(
            f"Only one-dimensional {noun}s have weight decay: "
            f"{names_in_short(flat, of_optimizer(summary), noun)} "
            f"{plural(len(flat), 'has', 'have')} it, {names_in_short(sorted(free), '', noun)} "
            f"{plural(len(free), 'has', 'have')} none{made_in(summary)}.",
            names=tuple(flat),
        )


@rule(
    "decay-of-norms",
    severity="info",
    title="some one-dimensional variables decay, others do not",
    why="The intention is usually to exclude the scales of norms as well as biases.",
    advice=(
        "To exclude norms, choose by the number of dimensions (p.ndim < 2), not by "
        "names, which differ from model to model: LayerNorm.weight, layer_norm.weight, "
        "ln_1."
    ),
    explanation=(
        "Groups, a mask or patterns exclude only some of the one-dimensional variables. Info, "
        "because excluding only biases is an old habit."
    ),
    needs=("steps",),
)
def decay_of_norms(summary: Summary) -> Iterator[Case]:
    decayed, others = rates.decaying(summary)
    flat = rates.vectors(summary, decayed)
    if len(flat) < len(decayed) and flat and (left := rates.vectors(summary, others)):
        noun = summary.dialect.variable
        have, lack = (plural(len(each), "has", "have") for each in (flat, left))
        yield Case(
            f"{names_in_short(flat, of_optimizer(summary), noun)} {have} weight decay, and "
            f"{names_in_short(left, '', noun)} {lack} none, though all are one-dimensional"
            f"{made_in(summary)}.",
            names=tuple(flat),
        )


@rule(
    "moved-without-gradient",
    severity="warning",
    title="variables move although their gradient is always 0",
    why="Weight decay and momentum move a variable whose gradient is 0 or masked.",
    advice=(
        "To freeze it, leave it out of the gradients that the optimizer gets: trainable = False "
        "before the model is compiled. Otherwise look for what cuts it from the loss, as "
        "stop_gradient does, or exclude it (exclude_from_weight_decay)."
    ),
    explanation=(
        "Needs `--effects` or `effects=True`, except for weight decay of optax where the program "
        "that JAX traces has a constant 0 as the gradient. Reported if the variable moved in at "
        "least five updates, and in half of all. Parts of a variable are examined for "
        "`torch.optim` on the CPU, in eager mode, under `tracer run` or `tracer.record`, if it is "
        "not sharded."
    ),
    says_line=True,
    needs=("steps",),
)
def moved_without_gradient(summary: Summary) -> Iterator[Case]:
    decayed, _ = rates.decaying(summary)
    of_others = not has_all_workers(summary.trace)  # with gradients that may differ
    if of_others or any(True for _ in summary.remarks("gradient-always-zero")):
        return
    for index, part, did, moved, of in (*_whole(summary), *_remarked(summary, decayed)):
        if moved >= max(MIN_MOVED, of / 2):
            yield Case(
                "{part}{which} {did} in {moved}, although the gradient{there} was always 0: "
                "{cause} moves weights without a gradient.",
                variables=[index],
                words={
                    "part": f"{part} elements of " if part else "",
                    "did": did,
                    "moved": f"{'each' if moved == of else f'{moved:,}'} of {some(of, 'update')}",
                    "there": " there" if part else "",
                    "cause": "weight decay" if index in decayed else _NO_DECAY,
                },
            )


_NO_DECAY = "momentum or another part of the optimizer"


def _whole(summary: Summary) -> Iterator[tuple[int, str, str, int, int]]:
    """Yield the variables whose gradients were all 0, with their changes and updates.

    These are from the replica with the most changes.
    """
    compared, unchanged, _ = measures.effects
    for pattern in summary.asked:
        if pattern.total(measures.zero_gradients) == pattern.total(compared) > 0:
            for index in pattern.variables:
                moved, on = max(
                    (pattern.total(compared, each) - pattern.total(unchanged, each), each)
                    for each in pattern.replicas
                )
                of = pattern.total(measures.updates, on)
                yield index, "", "moved", min(moved, of), of


def _remarked(summary: Summary, decayed: set[int]) -> Iterator[tuple[int, str, str, int, int]]:
    """Yield the same for variables in remarks; in a JAX program, with the number of decays."""
    index_of = {summary.trace.variables[index].name: index for index in summary.variables}
    for _, each in summary.remarks(rates.DRIFT):
        for name in each.variables:
            index = index_of.get(name)
            if index is not None and each.of:
                yield index, each.detail, "moved", each.count, each.of
            elif index in decayed and not summary.effects:
                updates = measures.counting(["update"], variable=index)
                made = summary.total(updates, summary.replicas[0])
                yield index, "", "decayed", made, made
