"""What variables are called, and which of them a name, a glob or an object means.

A trace holds names. Whoever makes one may know the variables themselves too, and hands in how an
object is identified and named (`Objects`): this module knows no TensorFlow, and a trace that was
loaded knows names only.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase, translate
from itertools import chain, combinations, count
from typing import Any, NamedTuple
from weakref import ref

from tracer.errors import UnknownName, is_mistake, unknown_name
from tracer.model.records import Optimizer, Variable
from tracer.model.words import listed

__tracebackhide__ = is_mistake


def distinct(names: Iterable[str]) -> list[str]:
    """The names, a repeated one with its number: `["a", "a#2"]`."""
    found: dict[str, None] = {}
    times = Counter[str]()
    for name in names:
        times[name] += 1  # all lower numbers are taken
        numbered = (f"{name}#{number}" for number in count(max(2, times[name])))
        found[next(each for each in chain([name], numbered) if each not in found)] = None
    return list(found)


def without_number(name: str) -> str:
    """The name without the number that `distinct` gives it."""
    return re.sub(r"#\d+\Z", "", name)


def plain_name(variable: object) -> str:
    """The name that `variable` says it has: its path, as in Keras 3, or else TensorFlow's name.

    Raises `TypeError` for an object that is no variable.
    """
    path = getattr(variable, "path", None)
    return path if isinstance(path, str) and path else tensorflow_name(variable)


def tensorflow_name(variable: object) -> str:
    """TensorFlow's name of `variable`, without `:0` and replica.

    Raises `TypeError` for an object that is no variable.
    """
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"variable must be a name, a glob or a variable, not {variable!r}")
    return re.sub(r"/replica_\d+\Z", "", name.removesuffix(":0"))


class Objects(NamedTuple):
    """How a trace tells which of its variables an object is."""

    name_of: Callable[[object], str] = plain_name
    """The framework's name of a variable; raises `TypeError` for an object that is none."""
    index_of: Callable[[object], int | None] | None = None
    """The index of this very variable, None for one that the trace does not hold; no function for
    a trace that does not know objects, because it was loaded."""
    frozen: Callable[[], Sequence[tuple[str, tuple[str, ...]]]] = tuple
    """The frozen layers of the models whose variables were passed: each name, with the names of
    the variables that it would train. For an assertion that failed; others know none."""


def finder(
    objects: Sequence[ref[Any] | None], canonical: Callable[[object], object]
) -> Callable[[object], int | None]:
    """A function from a variable to its place in `objects`; to None if it is not among them.

    `canonical` gives the one object that stands for a variable.
    """
    known: dict[int, tuple[int | None, ref[Any] | None]] = {}
    for index, reference in enumerate(objects):
        if reference is not None and (own := reference()) is not None:
            known[id(canonical(own))] = index, reference

    def find(variable: object) -> int | None:
        own = canonical(variable)
        index, reference = known.get(id(own), (None, None))
        found = reference and reference()  # None once it was collected: the id may be another's
        return index if found is not None and canonical(found) is own else None

    return find


NAMES_ONLY = Objects()
"""What a trace that was loaded knows of objects, where nothing knows TensorFlow."""


def variables_meant(
    wanted: object, variables: Sequence[Variable], objects: Objects
) -> frozenset[int]:
    """The indices of the variables that `wanted` means: a name, a glob, or a variable itself.

    The name of a sharded variable, and the sharded variable itself, mean all of its shards. A trace
    that knows its variables tells them apart by identity, whatever their names; for one that knows
    names only, an object means the variable of its name.

    Raises `tracer.UnknownName` with the near names for what is not among `variables`, and
    `TypeError` for what is neither a text nor a variable.
    """
    if isinstance(wanted, str):
        names = [each.name for each in variables]
        return named("variable", wanted, names, [each.part_of for each in variables])
    if shards := shards_of(wanted):
        meant = (variables_meant(shard, variables, objects) for shard in shards)
        return frozenset[int]().union(*meant)
    return frozenset({_by_object(wanted, variables, objects)})


def with_namesakes(meant: frozenset[int], variables: Sequence[Variable]) -> frozenset[int]:
    """The indices `meant` by a name, and those of variables that differ in their number only.

    Where two models have a `1.weight`, the name alone does not say whose it is.
    """
    names = {variables[index].name for index in meant}
    return meant | {i for i, each in enumerate(variables) if without_number(each.name) in names}


def shards_of(variable: object) -> Sequence[object]:
    """The shards of a sharded variable of TensorFlow, which has no name of its own; else none."""
    if type(variable).__name__ != "ShardedVariable":
        return ()
    shards: Sequence[object] = variable.variables  # type: ignore[attr-defined]
    return shards


def is_meant(wanted: str, name: str) -> bool:
    """Whether `wanted`, a name or a glob, means `name`."""
    return name == wanted or fnmatchcase(name, wanted)


def named(
    noun: str, wanted: str, names: Sequence[str], wholes: Sequence[str] = ()
) -> frozenset[int]:
    """The indices of what is named `wanted` or, if nothing is, of what it matches as a glob.

    Each has one of `names` and, if it is a part, the name of the whole, which means all parts of
    it if nothing else has that name.

    Raises `tracer.UnknownName` if there is none; `noun` says what the names are of.
    """
    parts = wholes if wanted else ()
    for same, among in ((str.__eq__, (names,)), (str.__eq__, (parts,)), (is_meant, (names, parts))):
        found = (i for each in among for i, name in enumerate(each) if same(str(wanted), name))
        if meant := frozenset(found):
            return meant
    known = dict.fromkeys((*names, *filter(None, wholes)))
    raise unknown_name(noun, wanted, known, meant=near_patterns(wanted, known) if wholes else ())


def optimizers_meant(wanted: str, optimizers: Sequence[Optimizer]) -> frozenset[int]:
    """The indices of the optimizers that `wanted` means: a name, a glob, or the class of one alone.

    Raises `tracer.UnknownName` for what is not among them, and for the class of several.
    """
    names = [each.name for each in optimizers]
    of_class = [i for i, e in enumerate(optimizers) if e.class_name.rpartition(".")[2] == wanted]
    if not of_class or wanted in names:
        return named("optimizer", wanted, names)
    if len(of_class) > 1:
        every = listed([names[index] for index in of_class], 5)
        raise UnknownName(f"several optimizers are of the class {wanted}: name one, of {every}")
    return frozenset(of_class)


def near_patterns(wanted: str, names: Iterable[str]) -> list[str]:
    """The name or glob that who wrote `wanted` most probably meant; none if nothing is near.

    It lacks the beginning of a path, or it is the name of a layer, or it is misspelt.

    >>> near_patterns("hidden/*", ["net/hidden/kernel", "net/hidden/bias", "net/out/kernel"])
    ['net/hidden/*']
    >>> near_patterns("hiden", ["net/hidden/kernel", "net/hidden/bias", "net/out/kernel"])
    ['net/hidden/*']
    >>> near_patterns("kernel", ["net/hidden/kernel", "net/hidden/bias", "net/out/kernel"])
    ['*/kernel']
    >>> near_patterns("bakbone.*", ["backbone.0.weight", "backbone.0.bias", "head.weight"])
    ['backbone.*']
    """
    names = list(names)
    dot = "/" if any("/" in name for name in names) else "."  # as PyTorch writes its names
    parts = dict.fromkeys(part for name in names for part in _parts(name, dot))
    for written in (wanted, *get_close_matches(wanted, parts, n=1, cutoff=0.7)):
        for end in (written, f"{written}{dot}*"):
            path = re.compile(f"((?:.+?{re.escape(dot)})??){translate(end)}")
            if heads := list(dict.fromkeys(found[1] for found in map(path.match, names) if found)):
                return [f"{heads[0] if len(heads) == 1 else f'*{dot}'}{end}"]
    return []


def _parts(name: str, dot: str) -> Iterator[str]:
    """What may be written for a name: `hidden/kernel`, `net/hidden`, `hidden/*`, ..."""
    parts = name.split(dot)
    for first, last in combinations(range(len(parts) + 1), 2):
        part = dot.join(parts[first:last])
        yield from (part, f"{part}{dot}*") if last < len(parts) else (part,)


def _by_object(wanted: object, variables: Sequence[Variable], objects: Objects) -> int:
    index = objects.index_of(wanted) if objects.index_of else None
    if index is not None:
        return index
    name = objects.name_of(wanted)
    names = [variable.name for variable in variables]
    alike = [i for i, known in enumerate(names) if name in (known, without_number(known))]
    if alike and objects.index_of:
        raise UnknownName(
            f"no variable {name!r} that is this object: the one that the trace holds is another; "
            "ask for it by its name"
        )
    if len(alike) == 1:
        return alike[0]
    by_object = " that the object alone identifies:" if alike else ""
    raise unknown_name(f"variable{by_object}", name, names)  # no glob: a path may hold brackets
