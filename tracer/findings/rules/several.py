"""Rules on several optimizers that update the same variables."""

from collections.abc import Iterator
from itertools import combinations, pairwise

from tracer.findings.rule import Case, names_in_short, names_of, rule
from tracer.model.labels import class_of
from tracer.model.skipped_steps import is_loss_scale
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import listed, plural, some

MIN_RENEWED = 3  # optimizers in a row: two are the two phases of a fine-tuning
MAX_COMPARED = 100  # optimizers: of more than that no pairs are looked at


@rule(
    "shared-variable",
    severity="warning",
    title="two optimizers update the same variables in turns",
    why=(
        "Each follows a gradient of its own, and keeps moments that do not know what the other "
        "one did. In a GAN it may be the discriminator, which the generator's optimizer makes "
        "worse."
    ),
    advice=(
        "If both are meant to train it, as a reconstruction and an adversary train one encoder, "
        "there is nothing to do. If not, hand each optimizer its own variables; with compile, "
        "freeze the part (`part.trainable = False`) before the model that only passes through it "
        "is compiled."
    ),
    explanation=(
        "A warning if all that one of the optimizers updates is also updated by the other, which "
        "updates more. It is info if each has variables of its own, as two tasks that share an "
        "encoder, or both have the same ones. Which variables each updates is all that a trace "
        "knows, so the encoder of an adversarial autoencoder, which two are meant to train, is "
        "reported, too. Optimizers of which one begins after the other has "
        "ended, as the phases of a fine-tuning, are not reported, nor are steps of a `Session`."
    ),
    whole=True,
)
def shared_variable(trace: Trace) -> Iterator[Case]:
    """Variables are updated by two optimizers that step in turns."""
    updated = _updated(trace)
    for one, other in combinations(list(updated)[:MAX_COMPARED], 2):
        shared = updated[one] & updated[other]
        if not shared or not _in_turns(one.optimizers[0].turns, other.optimizers[0].turns):
            continue
        small, large = sorted((one, other), key=lambda each: len(updated[each]))
        inside = updated[small] < updated[large]
        names = names_of(one, sorted(shared))
        both = f"{one.optimizers[0].name} and {other.optimizers[0].name}"
        if inside:
            others = len(updated[large] - updated[small])
            both = (
                f"{small.optimizers[0].name}, which trains nothing else, and "
                f"{large.optimizers[0].name}, which also trains "
                f"{some(others, f'other {one.dialect.variable}')}"
            )
        yield Case(
            f"{names_in_short(names)} {plural(len(names), 'is', 'are')} updated by two "
            f"optimizers in turns: {both}.",
            one.dialect.advice("shared-variable"),
            "warning" if inside else "info",
            names=names,
        )


def _in_turns(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether each had a turn before and after one of the other."""
    both_again = one[0] < one[1] and other[0] < other[1]
    return both_again and one[0] < other[1] and other[0] < one[1]


def _updated(trace: Trace) -> dict[Summary, frozenset[int]]:
    """What each root optimizer updated, of those of which the turns are known."""
    arguments = {index for index, each in enumerate(trace.variables) if each.argument}
    updated = {each: each.updated - arguments for each in summaries_of(trace)}
    return {each: of for each, of in updated.items() if of and each.optimizers[0].turns[0]}


@rule(
    "optimizer-renewed",
    severity="warning",
    title="a new optimizer is made again and again for the same variables",
    why=(
        "What the one before has learnt is lost each time: its moments, its count of steps and "
        "with it the bias correction of Adam and the place in a schedule."
    ),
    advice=(
        "If each is meant to begin anew, as one for each task in continual learning, there is "
        "nothing to do. If not, make the optimizer, and compile, once, before the loop; to change "
        "the rate, assign to optimizer.learning_rate."
    ),
    explanation=(
        f"For {MIN_RENEWED} optimizers or more of one class, rate and options, made in one "
        "line of the program, of which each begins after the one before has ended, and updates the "
        "same variables. Those that keep nothing, as SGD without momentum, are not reported, nor "
        "are those of different models, nor where two in a row begin with the same weights, as "
        "the folds of a validation. It is info where that is not known: on JAX, and in eager mode "
        "where apply_gradients gets an iterator. Of `torch.optim` the line is that of `wrap`, or "
        "of its first step in a recording; one that went on with a state that it had loaded is "
        "left out. On JAX and with optax it is also a state that is dropped: each of 5 steps or "
        "more, and all that are known, began with the same count of steps. A trace "
        "does not tell an epoch from a task, so a new optimizer for each task of continual "
        "learning is reported, too."
    ),
    whole=True,
)
def optimizer_renewed(trace: Trace) -> Iterator[Case]:
    """One line makes optimizer after optimizer, and each trains the same variables."""
    yield from _states_dropped(trace)
    alike: dict[object, list[Summary]] = {}
    updated = _updated(trace)
    for summary, variables in updated.items():
        root = summary.optimizers[0]
        options = frozenset((k, v) for k, v in root.settings.items() if k != "built")
        if root.made and not root.settings.get("state_loaded"):
            key = root.class_name, root.made, root.rate, options, variables
            alike.setdefault(key, []).append(summary)
    for group in alike.values():
        row = sorted((each.optimizers[0] for each in group), key=lambda each: each.turns)
        one_after_the_other = all(a.turns[1] < b.turns[0] for a, b in pairwise(row))
        every = [each for summary in group for each in summary.optimizers]
        keep_something = any(each.slots for each in every if not is_loss_scale(each))
        values = [each.values for each in row]
        reset = any(a == b is not None for a, b in pairwise(values))  # folds, or a search
        if len(row) >= MIN_RENEWED and one_after_the_other and keep_something and not reset:
            names, dialect = names_of(group[0], sorted(updated[group[0]])), group[0].dialect
            which = f"{row[0].name} to {row[-1].name}"
            if len(row) <= MIN_RENEWED:
                which = listed([each.name for each in row])
            yield Case(
                f"{len(row):,} optimizers of the class {class_of(row[0])} {dialect.made_in} in "
                f"{row[0].made}, one after the other, and each trained "
                f"{names_in_short(names, noun=dialect.variable)}: {which}. Each began without "
                "the moments of the one before.",
                dialect.advice("optimizer-renewed"),
                "info" if None in values else "warning",
                names=names,
            )


def _states_dropped(trace: Trace) -> Iterator[Case]:
    """Each step of a program of JAX is given a state with the same count of steps."""
    for summary in summaries_of(trace) if trace.complete else ():
        for optimizer, remark in summary.remarks("optimizer-renewed"):
            yield Case(
                f"{optimizer.name} began anew in each of {remark.detail}: the state that it "
                "was given had the same count of steps each time.",
                "Give each step the state that the one before returned; make it (`init`) once, "
                "before the loop. If each step is meant to begin anew, as one step of an inner "
                "loop, there is nothing to do.",
            )
