"""Whether frozen layers are why too little was updated: what is alive and was not handed over."""

from collections.abc import Sequence
from itertools import chain

from tracer.layout import shown
from tracer.model.names import is_meant
from tracer.model.trace import Trace
from tracer.model.wording import listed, plural
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
    return listed(names, _MAX_NAMES)


def are_frozen(layers: Sequence[Frozen]) -> str:
    """`layer encoder is frozen (trainable=False)`."""
    layer, are = plural(len(layers), "layer"), plural(len(layers), "is", "are")
    return f"{layer} {together([name for name, _ in layers])} {are} frozen (trainable=False)"


def not_handed(trace: Trace, names: Sequence[str]) -> str:
    """A sentence that says so of these variables; if some of them are frozen, of those alone."""
    layers = [each for each in trace.objects.frozen() if not set(names).isdisjoint(each[1])]
    names = [name for _, own in layers for name in own if name in names] or names
    roots = [each.name for i, each in enumerate(trace.optimizers) if each.root == i]
    optimizer = shown(roots[0]) if len(roots) == 1 else "the optimizer"
    why = f": {are_frozen(layers)}" if layers else ""
    return f"{together(names)} {plural(len(names), 'was', 'were')} not handed to {optimizer}{why}"


def names_in(layers: Sequence[Frozen]) -> list[str]:
    """The names of all that these layers would train."""
    return [name for _, names in layers for name in names]


def explaining(claim: Claim) -> list[str]:
    """The variables of frozen layers that are as many as updates are missing in each step.

    Those of all of the frozen layers, or of the only one with that number.
    """
    expected = claim.expected
    meant = "*" if expected.variable is None else expected.variable
    is_counted = claim.of_work and not claim.of_steps and len(claim.summaries) == 1
    if not is_counted or not isinstance(meant, str):
        return []
    (summary,), frozen = claim.summaries, claim.trace.objects.frozen()
    times = summary.steps if expected.per_step else 1
    times *= len(summary.replicas) if expected.per_replica else 1
    missing = {(each.low or 0) * times - claim.total(each) for each in claim.failed}
    layers = [[each for each in names if is_meant(meant, each)] for _, names in frozen]
    every, a_step = [*chain(*layers)], sum(summary.steps_on.values())
    fitting = [each for each in (every, *layers) if {len(each) * a_step} == missing]
    explains = claim.trace.complete and (len(fitting) == 1 or every in fitting)
    return fitting[0] if explains and missing != {0} else []
