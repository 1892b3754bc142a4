"""Find the variables of a trace that variables, layers, models, trees and names mean."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracer.backends.objects import (
    is_loose_tensor,
    leaves_of,
    name_of,
    weights_of,
)
from tracer.errors import UnknownName, shown, unknown_name
from tracer.model.names import (
    variables_meant,
    with_namesakes,
)
from tracer.model.records import Variable
from tracer.model.trace import Trace

__tracebackhide__ = True  # for wrong arguments, pytest shows the line that passes them


@dataclass(frozen=True)
class Target:
    """A variable that an assertion concerns."""

    name: str
    index: int | None = None
    """Its index in the trace; None if the trace does not have it."""
    given: object = None
    """The argument that means it, a name or a variable; None for a leaf of a tree."""


def names_of(variable: object) -> tuple[str, ...]:
    """The names of what `variable=` selects: a name, a glob, a variable, a layer or a model.

    Raises `TypeError` for any other object.
    """
    if variable is None:
        return ()
    # A PyTorch module has no name; its parameters have.
    parts = [variable] if hasattr(variable, "name") else list(_own(variable) or [variable])
    try:
        return tuple(each if isinstance(each, str) else name_of(each) for each in parts)
    except TypeError:
        raise TypeError(
            f"variable must be a name, a glob, a variable, a layer or a model, not {variable!r}"
        ) from None


def indices_of(trace: Trace, given: object) -> frozenset[int]:
    """The indices of the variables that `variable=` selects.

    A name means all variables with that name, also in several models.

    Raises `tracer.UnknownName` if the trace has none of them.
    """
    known = indices(targets_of(trace, given))
    first = next(iter(_own(given) or ()), given)
    return known or variables_meant(first, trace.variables, trace.objects)  # which raises


def targets_of(trace: Trace, given: Any, *, weights: bool = False) -> list[Target]:
    """The targets for each given variable or name, and for the variables of layers and models.

    With `weights`, only for variables of these that gradients can train, frozen or not.
    """
    if leaves := leaves_of(given):
        return _leaves(trace, leaves)
    targets: list[Target] = []
    for variable in variables_in(given, weights):
        try:
            meant = variables_meant(variable, trace.variables, trace.objects)
        except UnknownName:
            name = variable if isinstance(variable, str) else name_of(variable)
            targets.append(Target(name, None, variable))
        else:
            is_name = isinstance(variable, str)
            meant = with_namesakes(meant, trace.variables) if is_name else meant
            targets += [Target(trace.variables[i].name, i, variable) for i in sorted(meant)]
    return targets


def _leaves(trace: Trace, leaves: Iterable[Variable]) -> list[Target]:
    """The targets for these leaves of a tree, in each transformation that has them.

    The tree does not tell which transformation is meant: `kernel` also means `kernel#2` if both
    have its shape. A leaf of a model trained by `vmap` or `pmap` may have more leading dimensions.
    """
    meant: list[Target] = []
    for leaf in leaves:
        path = leaf.name.removesuffix("/value")  # Flax NNX has it, optax does not
        same = re.compile(rf"({re.escape(leaf.name)}|{re.escape(path)})(#\d+)?")
        named = [i for i, each in enumerate(trace.variables) if same.fullmatch(each.name)]
        shapes = [leaf.shape[more:] for more in range(len(leaf.shape) + 1)]
        alike = ([i for i in named if trace.variables[i].shape == shape] for shape in shapes)
        known = next(filter(None, alike), [])
        meant += [Target(trace.variables[i].name, i) for i in known] or [Target(leaf.name)]
    return meant


def indices(targets: Iterable[Target]) -> frozenset[int]:
    """The indices of the targets that the trace has."""
    return frozenset(target.index for target in targets if target.index is not None)


def variables_in(given: Any, weights: bool) -> Iterator[Any]:
    """Yield the variables in `given`, also of models, layers and nested lists; names stay names."""
    own = _own(given, weights)
    if own is not None:
        yield from own
    elif hasattr(given, "dtype") or isinstance(given, str):
        yield given
    else:
        for item in given:
            yield from variables_in(item, weights)


def _own(given: Any, weights: bool = False) -> Iterable[Any] | None:
    """The variables of a layer, a model or a PyTorch module; None for a variable or a name."""
    is_layer = hasattr(given, "trainable_variables")  # a Keras layer may be a module, too
    if callable(getattr(given, "named_parameters", None)) and not is_layer:
        return list(given.parameters())
    variables = getattr(given, "variables", None)
    if variables is None or callable(variables):
        return None
    return weights_of(given) if weights else variables


def why_unknown(trace: Trace, targets: Sequence[Target], given: object) -> tuple[str, str]:
    """Why a target cannot be judged, and what the trace has instead.

    Both are empty if each target may be a variable of the program that was never passed: an object,
    as a name that the trace does not hold may be misspelled.
    """
    known = [variable.name for variable in trace.variables]
    unknown = [each for each in targets if each.index is None and trace.complete]
    missing, found = {each.name for each in unknown}, indices(targets)
    others = [each for i, each in enumerate(trace.variables) if i not in found]
    for leaf in (each for each in leaves_of(given) if each.name in missing):
        alike = [each.name for each in others if each.shape == leaf.shape]
        if alike:
            why = (
                f"no path in the parameters is {shown(leaf.name)!r}: give the whole tree that the "
                "optimizer gets, a part of it with its keys from the root on, or a variable of "
                "Keras"
            )
            return why, unknown_name("variable", leaf.name, known, meant=alike).instead
    if any(is_loose_tensor(each.given) for each in unknown):
        return "this tensor is not a parameter: give the parameter itself, not a copy", ""
    for name in (each.name for each in unknown if isinstance(each.given, str)):
        instead = unknown_name("variable", name, known).instead
        return f"the trace holds no variable {shown(name)!r}", instead
    return "", ""
