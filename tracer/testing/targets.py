"""What an assertion is given: a variable, a layer, a model, a tree of JAX's arrays, or a name."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tracer.backends.objects import is_loose_tensor, leaves_of, name_of, names_alive
from tracer.errors import UnknownName, shown, unknown_name
from tracer.model.names import (
    is_meant,
    near_patterns,
    shards_of,
    variables_meant,
    with_namesakes,
)
from tracer.model.records import Variable
from tracer.model.trace import Trace

__tracebackhide__ = True  # as in `assertions`


@dataclass(frozen=True)
class Target:
    """A variable that is meant."""

    name: str
    index: int | None = None
    """Its index in the trace; None if the trace does not hold it."""
    given: object = None
    """The name or the variable that means it; None for a leaf of a tree."""


def of_given(variable: object, word: str = " of ") -> str:
    """` of dense/kernel`; nothing if none was given. Raises `TypeError` if it has no name."""
    parts = [] if variable is None else shards_of(variable) or [variable]
    try:
        names = [each if isinstance(each, str) else name_of(each) for each in parts]
    except TypeError:
        raise TypeError(
            f"variable must be a name, a glob, a variable, a layer or a model, not {variable!r}"
        ) from None
    return word + ", ".join(names) if names else ""


def indices_of(trace: Trace, given: object) -> frozenset[int]:
    """The indices of the variables that a name, a variable, a layer or a model means.

    A name means all variables of that name, as of two models.

    Raises `tracer.UnknownName` if the trace holds none of them.
    """
    known = indices(targets_meant(trace, given, "variables"))
    return known or variables_meant(given, trace.variables, trace.objects)  # which raises


def leaves_meant(trace: Trace, leaves: Iterable[Variable]) -> list[Target]:
    """The name and the index of each of these leaves, in each transformation that has it.

    A tree does not say of which of several it is: `kernel` means `kernel#2`, too, if both have its
    shape. The leaf of a model that is trained by `vmap` or `pmap` has more dimensions here.
    """
    meant: list[Target] = []
    for leaf in leaves:
        path = leaf.name.removesuffix("/value")  # so a module of Flax NNX has it, and optax not
        same = re.compile(rf"({re.escape(leaf.name)}|{re.escape(path)})(#\d+)?")
        named = [n for n, each in enumerate(trace.variables) if same.fullmatch(each.name)]
        shapes = [leaf.shape[more:] for more in range(len(leaf.shape) + 1)]
        alike = ([n for n in named if trace.variables[n].shape == each] for each in shapes)
        known = next(filter(None, alike), [])
        meant += [Target(trace.variables[each].name, each) for each in known] or [Target(leaf.name)]
    return meant


def targets_meant(trace: Trace, given: Any, attribute: str) -> list[Target]:
    """The name and the index of each variable that is given, or that a name means.

    `attribute` is which variables of a layer or a model are meant.
    """
    if leaves := leaves_of(given):
        return leaves_meant(trace, leaves)
    targets: list[Target] = []
    for each in variables_in(given, attribute):
        try:
            meant = variables_meant(each, trace.variables, trace.objects)
        except UnknownName:
            name = each if isinstance(each, str) else name_of(each)
            targets.append(Target(name, None, each))
        else:
            named = with_namesakes(meant, trace.variables) if isinstance(each, str) else meant
            targets += [Target(trace.variables[index].name, index, each) for index in sorted(named)]
    return targets


def indices(targets: Iterable[Target]) -> frozenset[int]:
    """The indices of those that the trace holds."""
    return frozenset(each.index for each in targets if each.index is not None)


def each_given(given: Any) -> Iterator[Any]:
    """Each layer, model, variable or name that was given, by itself or in lists."""
    shards = shards_of(given)
    is_one = hasattr(given, "dtype") or isinstance(given, str) or _own(given) is not None
    if is_one and not shards:
        yield given
    else:
        for item in shards or given:
            yield from each_given(item)


def variables_in(given: Any, attribute: str) -> list[Any]:
    """The variables of a model or a layer, or those that were given, or of several such things.

    A name stands for itself.
    """
    variables: list[Any] = []
    for each in each_given(given):
        own = _own(each, attribute)
        variables += [each] if own is None else own
    return variables


def _own(given: Any, attribute: str = "variables") -> Iterable[Any] | None:
    """The variables of a layer, a model or a module of PyTorch; None for a variable or a name."""
    is_layer = hasattr(given, "trainable_variables")  # one of Keras may be a module, too
    if callable(getattr(given, "named_parameters", None)) and not is_layer:
        trained = attribute == "trainable_variables"
        return [own for own in given.parameters() if own.requires_grad or not trained]
    variables = getattr(given, "variables", None)
    return None if variables is None or callable(variables) else getattr(given, attribute)


def why_unknown(
    trace: Trace, targets: Sequence[Target], leaves: Sequence[Variable]
) -> tuple[str, str]:
    """Why nothing can be said of a target, and what the trace holds instead.

    Both are empty if each can be a variable of the program that no optimizer was handed.
    """
    known = [variable.name for variable in trace.variables]
    unknown = [each for each in targets if each.index is None and trace.complete]
    missing, found = {each.name for each in unknown}, indices(targets)
    others = [each for n, each in enumerate(trace.variables) if n not in found]
    for leaf in (each for each in leaves if each.name in missing):
        end = leaf.name.rpartition("/")[2]
        alike = [each.name for each in others if each.shape == leaf.shape]
        for like in sorted(alike, key=lambda name: not name.endswith(end))[:1]:
            why = (
                f"no path in the parameters is {shown(leaf.name)!r}, and {shown(like)} may be the "
                "same leaf: give the whole tree, as the optimizer gets it, a part with its keys "
                "from the root on, or a variable of Keras itself"
            )
            return why, unknown_name("variable", leaf.name, known, meant=[like]).instead
    if any(is_loose_tensor(each.given) for each in unknown):
        return "this tensor is no parameter: give the parameter itself, no copy of it", ""
    named = [each.name for each in unknown if isinstance(each.given, str)]
    alive = names_alive() if named else set()
    for name in named:
        if not any(is_meant(name, each) for each in alive):
            meant = near_patterns(name, known) or near_patterns(name, sorted(alive - {*known}))
            instead = unknown_name("variable", name, known, meant=meant).instead
            return f"the program holds no variable {shown(name)!r}", instead
    return "", ""
