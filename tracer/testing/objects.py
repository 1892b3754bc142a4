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


def names_of(given: object) -> tuple[str, ...]:
    """The names of what `variable=` selects: a name, a glob, or variables, also of layers.

    Raises `TypeError` for any other object.
    """
    variables = () if given is None else variables_in(given, False)
    return tuple(each if isinstance(each, str) else name_of(each) for each in variables)


def targets_of(trace: Trace, given: object, *, weights: bool = False) -> list[Target]:
    """The targets for each given variable or name, and for the variables of layers and models.

    With `weights`, only for variables of these that gradients can train, frozen or not.
    """
    if leaves := leaves_of(given):
        return _leaves(trace, leaves)
    targets: list[Target] = []
    for variable in variables_in(given, weights):
        is_name = isinstance(variable, str)
        try:
            meant = variables_meant(variable, trace.variables, trace.objects)
            meant = with_namesakes(meant, trace.variables) if is_name else meant
            targets += [Target(trace.variables[i].name, i, variable) for i in sorted(meant)]
        except UnknownName:
            targets.append(Target(str(variable) if is_name else name_of(variable), None, variable))
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


def variables_in(given: Any, weights: bool) -> Iterator[object]:
    """Yield the variables in `given`, also of models, layers and nested lists; names stay names.

    Raises `TypeError` for an object without variables.
    """
    is_layer = hasattr(given, "trainable_variables")  # a Keras layer may be a PyTorch module, too
    variables = getattr(given, "variables", None)
    if callable(getattr(given, "named_parameters", None)) and not is_layer:
        yield from given.parameters()
    elif variables is not None and not callable(variables):
        yield from weights_of(given) if weights and is_layer else variables
    elif hasattr(given, "dtype") or isinstance(given, str):
        yield given
    elif isinstance(given, Iterable):
        for item in given:
            yield from variables_in(item, weights)
    else:
        words = "a name, a glob, a variable, a layer or a model"
        raise TypeError(f"variable must be {words}, not {given!r}")


def why_unknown(trace: Trace, targets: Sequence[Target], given: object) -> tuple[str, str]:
    """Why the targets cannot be judged, and what the trace has instead.

    Both are empty if each target may be a variable of the program that was never passed: an object,
    as a name that the trace does not hold may be misspelled.
    """
    known = [variable.name for variable in trace.variables]
    others = [each for i, each in enumerate(trace.variables) if i not in indices(targets)]
    shapes = {leaf.name: leaf.shape for leaf in leaves_of(given)}
    if trace.complete and not targets:
        return "there is no variable", ""
    for target in (each for each in targets if each.index is None and trace.complete):
        alike = [variable.name for variable in others if variable.shape == shapes.get(target.name)]
        if is_loose_tensor(target.given):
            return "this tensor is not a parameter: give the parameter itself, not a copy", ""
        if alike or isinstance(target.given, str):
            keys = ": give the whole tree that the optimizer gets, or a part with all its keys"
            why = f"the trace holds no variable {shown(target.name)!r}{keys if alike else ''}"
            return why, unknown_name("variable", target.name, known, meant=alike).instead
    return "", ""
