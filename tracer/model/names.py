"""Names variables, and finds the variables that a name, a glob or an object means.

A trace holds names. A caller that has the variables themselves passes functions to identify and
name objects (`Objects`): this module knows no TensorFlow, and a loaded trace knows only names.
"""

import operator
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from functools import cache
from importlib import import_module
from itertools import chain, count
from weakref import ref

from tracer.errors import UnknownName, is_mistake, unknown_name
from tracer.model.records import Optimizer, Variable

__tracebackhide__ = is_mistake


def distinct(names: Iterable[str]) -> list[str]:
    """Number repeated names: `["a", "a#2"]`."""
    found: dict[str, None] = {}
    times = Counter[str]()
    for name in names:
        times[name] += 1  # all lower numbers are taken
        numbered = (f"{name}#{number}" for number in count(max(2, times[name])))
        found[next(each for each in chain([name], numbered) if each not in found)] = None
    return list(found)


def without_number(name: str) -> str:
    """The name without the number from `distinct`."""
    return re.sub(r"#\d+\Z", "", name)


def plain_name(variable: object) -> str:
    """The name of `variable`: its path in Keras 3; else TensorFlow's, without `:0` and the replica.

    Raises `TypeError` for an object that is no variable.
    """
    path, name = getattr(variable, "path", None), getattr(variable, "name", None)
    if isinstance(path, str) and path:
        return path
    if not isinstance(name, str):
        raise TypeError(f"variable must be a name, a glob or a variable, not {variable!r}")
    return re.sub(r"/replica_\d+\Z", "", name.removesuffix(":0"))


Objects = Callable[[object], int | None] | None
"""Returns the index of this very variable, or None if the trace lacks it; no function for a loaded
trace, which knows no objects."""


def finder(
    objects: Sequence[ref[object] | None], canonical: Callable[[object], object]
) -> Callable[[object], int | None]:
    """Return a function from a variable to its index in `objects`, or None.

    `canonical` returns the object that identifies a variable.
    """

    @cache  # most traces are never asked for an object
    def indices() -> dict[int, int]:
        living = enumerate(reference and reference() for reference in objects)
        return {id(canonical(own)): index for index, own in living if own is not None}

    def find(variable: object) -> int | None:
        own = canonical(variable)
        index = indices().get(id(own))
        reference = None if index is None else objects[index]
        found = reference and reference()  # None if collected: the id may be another object's
        return index if found is not None and canonical(found) is own else None

    return find


def variables_meant(
    wanted: object, variables: Sequence[Variable], objects: Objects
) -> frozenset[int]:
    """Return the indices of the variables that `wanted` means: a name, a glob, or a variable.

    A trace that knows objects identifies a variable by identity, whatever its name; a trace that
    knows only names, by name.

    Raises `tracer.UnknownName`, with similar names, if nothing matches, and `TypeError` if `wanted`
    is neither a string nor a variable.
    """
    names = [variable.name for variable in variables]
    if isinstance(wanted, str):
        return named("variable", wanted, names)
    index = objects(wanted) if objects else None
    if index is not None:
        return frozenset({index})
    name = import_module("tracer.backends.objects").name_of(wanted)  # which knows the frameworks
    alike = [i for i, known in enumerate(names) if name in (known, without_number(known))]
    if alike and objects:
        raise UnknownName(
            f"this object is not the variable {name!r} of the trace, which is another one; ask "
            "for that one by its name"
        )
    if len(alike) == 1:
        return frozenset(alike)
    by_object = " that the object alone identifies:" if alike else ""
    raise unknown_name(f"variable{by_object}", name, names)  # no glob: a path may contain brackets


def with_namesakes(meant: frozenset[int], variables: Sequence[Variable]) -> frozenset[int]:
    """Return the indices `meant`, plus variables whose names differ only in the number.

    If two models have a `1.weight`, the name alone does not identify one.
    """
    names = {variables[index].name for index in meant}
    return meant | {i for i, each in enumerate(variables) if without_number(each.name) in names}


def named(
    noun: str, wanted: str, names: Sequence[str], wholes: Sequence[str] = ()
) -> frozenset[int]:
    """Return the indices named `wanted` or, if none is, matched by it as a glob.

    Each item has one of `names`. If it is of a class, `wholes` has the name of that, which means
    all these items unless an item has that name.

    Raises `tracer.UnknownName` if nothing matches; `noun` is the kind of name.
    """
    every = (*names, *(wholes if wanted else ()))
    for same, among in ((operator.eq, names), (operator.eq, every), (fnmatchcase, every)):
        found = (at % len(names) for at, name in enumerate(among) if same(name, str(wanted)))
        if meant := frozenset(found):
            return meant
    raise unknown_name(noun, wanted, dict.fromkeys((*names, *filter(None, wholes))))


def optimizers_meant(wanted: str, optimizers: Sequence[Optimizer]) -> frozenset[int]:
    """Return the indices of the optimizers that `wanted` means: a name, a class, or a glob.

    Raises `tracer.UnknownName` if none matches.
    """
    classes = [each.class_name.rpartition(".")[2] for each in optimizers]
    return named("optimizer", wanted, [each.name for each in optimizers], classes)
