"""Names variables, and finds the variables that a name, a glob or an object means.

A trace holds names. A caller that has the variables themselves passes functions to identify and
name objects (`Objects`): this module knows no TensorFlow, and a loaded trace knows only names.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from itertools import chain, count
from typing import Any
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
    """The name of `variable`: its path in Keras 3, otherwise TensorFlow's name.

    Raises `TypeError` for an object that is no variable.
    """
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) and path else tensorflow_name(variable)


def tensorflow_name(variable: object) -> str:
    """TensorFlow's name of `variable`, without `:0` and the replica.

    Raises `TypeError` for an object that is no variable.
    """
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"variable must be a name, a glob or a variable, not {variable!r}")
    return re.sub(r"/replica_\d+\Z", "", name.removesuffix(":0"))


Objects = Callable[[object], int | None] | None
"""Returns the index of this very variable, or None if the trace lacks it; no function for a loaded
trace, which knows no objects."""


def finder(
    objects: Sequence[ref[Any] | None], canonical: Callable[[object], object]
) -> Callable[[object], int | None]:
    """Return a function from a variable to its index in `objects`, or None.

    `canonical` returns the object that identifies a variable.
    """
    known: dict[int, tuple[int | None, ref[Any] | None]] = {}
    for index, reference in enumerate(objects):
        if reference is not None and (own := reference()) is not None:
            known[id(canonical(own))] = index, reference

    def find(variable: object) -> int | None:
        own = canonical(variable)
        index, reference = known.get(id(own), (None, None))
        found = reference and reference()  # None if collected: the id may be another object's
        return index if found is not None and canonical(found) is own else None

    return find


def variables_meant(
    wanted: object, variables: Sequence[Variable], objects: Objects
) -> frozenset[int]:
    """Return the indices of the variables that `wanted` means: a name, a glob, or a variable.

    The name of a sharded variable, or the variable itself, means all its shards. A trace that knows
    objects identifies a variable by identity, whatever its name; a trace that knows only names, by
    name.

    Raises `tracer.UnknownName`, with similar names, if nothing matches, and `TypeError` if `wanted`
    is neither a string nor a variable.
    """
    if isinstance(wanted, str):
        names = [each.name for each in variables]
        return named("variable", wanted, names, [each.part_of for each in variables])
    if shards := shards_of(wanted):
        meant = (variables_meant(shard, variables, objects) for shard in shards)
        return frozenset[int]().union(*meant)
    return frozenset({_by_object(wanted, variables, objects)})


def with_namesakes(meant: frozenset[int], variables: Sequence[Variable]) -> frozenset[int]:
    """Return the indices `meant`, plus variables whose names differ only in the number.

    If two models have a `1.weight`, the name alone does not identify one.
    """
    names = {variables[index].name for index in meant}
    return meant | {i for i, each in enumerate(variables) if without_number(each.name) in names}


def shards_of(variable: object) -> Sequence[object]:
    """The shards of TensorFlow's `ShardedVariable`, which has no name of its own; else none."""
    if type(variable).__name__ != "ShardedVariable":
        return ()
    shards: Sequence[object] = variable.variables  # type: ignore[attr-defined]
    return shards


def is_meant(wanted: str, name: str) -> bool:
    """Whether `wanted`, a name or a glob, matches `name`."""
    return name == wanted or fnmatchcase(name, wanted)


def named(
    noun: str, wanted: str, names: Sequence[str], wholes: Sequence[str] = ()
) -> frozenset[int]:
    """Return the indices named `wanted` or, if none is, matched by it as a glob.

    Each item has one of `names`. If it is a part, or of a class, `wholes` has the name of that,
    which means all these items unless an item has that name.

    Raises `tracer.UnknownName` if nothing matches; `noun` is the kind of name.
    """
    parts = wholes if wanted else ()
    for same, among in ((str.__eq__, (names,)), (str.__eq__, (parts,)), (is_meant, (names, parts))):
        found = (i for each in among for i, name in enumerate(each) if same(str(wanted), name))
        if meant := frozenset(found):
            return meant
    raise unknown_name(noun, wanted, dict.fromkeys((*names, *filter(None, wholes))))


def optimizers_meant(wanted: str, optimizers: Sequence[Optimizer]) -> frozenset[int]:
    """Return the indices of the optimizers that `wanted` means: a name, a class, or a glob.

    Raises `tracer.UnknownName` if none matches.
    """
    classes = [each.class_name.rpartition(".")[2] for each in optimizers]
    return named("optimizer", wanted, [each.name for each in optimizers], classes)


def _by_object(wanted: object, variables: Sequence[Variable], objects: Objects) -> int:
    index = objects(wanted) if objects else None
    if index is not None:
        return index
    name = import_module("tracer.backends.objects").name_of(wanted)  # which knows the frameworks
    names = [variable.name for variable in variables]
    alike = [i for i, known in enumerate(names) if name in (known, without_number(known))]
    if alike and objects:
        raise UnknownName(
            f"this object is not the variable {name!r} of the trace, which is another one; ask "
            "for that one by its name"
        )
    if len(alike) == 1:
        return alike[0]
    by_object = " that the object alone identifies:" if alike else ""
    raise unknown_name(f"variable{by_object}", name, names)  # no glob: a path may contain brackets
