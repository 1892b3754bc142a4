"""Whether frozen layers are why too little was updated: what is alive and was not handed over."""

from collections.abc import Sequence

from tracer.layout import shown
from tracer.model.names import is_meant
from tracer.model.trace import Trace
from tracer.model.wording import listed
from tracer.testing.expected import Claim

_MAX_NAMES = 3

Frozen = tuple[str, tuple[str, ...]]
"""The name of a frozen layer, and the names of the variables that it would train."""


def together(names: Sequence[str]) -> str:
    """The names as a sentence has them.

    >>> together(["net/encoder/kernel", "net/encoder/bias"])
    'net/encoder/kernel and bias'
    >>> together(["a/kernel", "a/bias", "b/kernel", "b/bias"])
    'a/kernel, a/bias, b/kernel and 1 more'
    """
    names = [shown(name) for name in names]
    heads = {name.rpartition("/")[0] for name in names}
    if len(heads) == 1 and heads != {""}:
        names = [names[0], *(name.rpartition("/")[2] for name in names[1:])]
    if len(names) > _MAX_NAMES:
        names = [*names[:_MAX_NAMES], f"{len(names) - _MAX_NAMES:,} more"]
    return listed(names)


def are_frozen(layers: Sequence[Frozen]) -> str:
    """`layer encoder is frozen (trainable=False)`."""
    names = [layer for layer, _ in layers]
    word = "layer" if len(names) == 1 else "layers"
    is_or_are = "is" if len(names) == 1 else "are"
    return f"{word} {together(names)} {is_or_are} frozen (trainable=False)"


def not_handed(trace: Trace, names: Sequence[str], layers: Sequence[Frozen]) -> str:
    """A sentence that says so of these variables; of `layers` that they hold them, if any does."""
    roots = [each.name for i, each in enumerate(trace.optimizers) if each.root == i]
    optimizer = shown(roots[0]) if len(roots) == 1 else "the optimizer"
    was = "was" if len(names) == 1 else "were"
    why = f": {are_frozen(layers)}" if layers else ""
    return f"{together(names)} {was} not handed to {optimizer}{why}"


def of_layers(trace: Trace, layers: Sequence[Frozen]) -> str:
    """The same of all that these layers would train."""
    return not_handed(trace, [name for _, names in layers for name in names], layers)


def explaining(claim: Claim) -> list[Frozen]:
    """The frozen layers with as many variables as are missing in each step, by each wrong count.

    All of the frozen layers, or the one with that number: where several have it, it may be any.
    """
    methods = [claim.trace.methods[index] for index in claim.selection.methods or ()]
    if len(claim.summaries) != 1 or not claim.trace.complete or not claim.summaries[0].steps:
        return []
    if any(method.role != "apply" for method in methods):
        return []
    expected, (summary,) = claim.expected, claim.summaries
    layers = list(summary.trace.objects.frozen())
    if isinstance(expected.variable, str):
        meant = expected.variable
        kept = ((name, tuple(n for n in own if is_meant(meant, n))) for name, own in layers)
        layers = [(name, own) for name, own in kept if own]
    elif expected.variable is not None:
        return []
    counts = summary.steps if expected.per_step else 1
    counts *= len(summary.replicas) if expected.per_replica else 1
    steps = sum(summary.steps_on.values())
    culprits: list[Frozen] = []
    for wanted in claim.failed:
        missing = (wanted.low or 0) * counts - claim.total(summary, wanted)
        if missing <= 0:
            return []
        if sum(len(own) for _, own in layers) * steps == missing:
            found = layers
        else:
            found = [each for each in layers if len(each[1]) * steps == missing]
            if len(found) != 1:
                return []
        culprits += [each for each in found if each not in culprits]
    return culprits
