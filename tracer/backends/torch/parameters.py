"""The parameters that were met, by the names that they have in their model.

A parameter does not know its name, and an optimizer does not know the model. So the living modules
are searched, once for all parameters of an optimizer, when it steps first; nothing is kept alive.
"""

import gc
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple
from weakref import ref

import msgspec

from tracer.backends.torch import compat
from tracer.core import backend
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.model.records import Variable


class Parameters(backend.Variables):
    """The parameters of the optimizers of one recorder."""

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._row = self._record
        self._names: dict[int, str] = {}
        self._unsearched: dict[int, _Unsearched] = {}  # by index

    def meet(self, optimizer: Any) -> None:
        """Find the names of the parameters of an optimizer, which will be asked for next."""
        if None in map(self._known, parameters_of(optimizer.param_groups)):
            self._names = names_in(optimizer)

    def _record(self, parameter: Any) -> Variable:
        dtype = str(parameter.dtype).removeprefix("torch.")
        name = self._names.get(id(parameter), "parameter")
        if compat.is_parameter(parameter) and not _search.knows(parameter):
            self._unsearched[len(self._plain)] = _Unsearched(ref(parameter), _search.times)
        part_of = name if compat.is_split_by_fsdp(parameter) else ""
        return Variable(name, compat.shape_of(parameter), dtype, part_of=part_of)

    @property
    def rows(self) -> list[Variable]:
        """What a trace says of each; names that have not been searched for yet are now."""
        while self._unsearched:
            index, (reference, times) = self._unsearched.popitem()
            parameter = reference()
            if parameter is not None:
                if _search.times == times:
                    _search.again()
                name = _search.names_of([parameter]).get(id(parameter))
                if name is not None:
                    part_of = name if self._plain[index].part_of else ""
                    self._plain[index] = msgspec.structs.replace(
                        self._plain[index], name=name, part_of=part_of
                    )
        return super().rows


class _Unsearched(NamedTuple):
    """A parameter for which no models have been searched yet."""

    parameter: "ref[Any]"
    times: int
    """How many searches there had been when it was met."""


def names_in(optimizer: Any) -> dict[int, str]:
    """The name of each parameter of an optimizer, by its `id`.

    It is the one that it was handed over with, or that of `named_parameters()` of the outermost
    module that holds it; else its place: `param_groups[0][3]`.
    """
    groups = optimizer.param_groups
    names = _search.names_for(optimizer, parameters_of(groups))
    for place, group in enumerate(groups):
        given = group.get("param_names") or ()
        for index, parameter in enumerate(group["params"]):
            if index < len(given):
                names[id(parameter)] = str(given[index])
            else:
                names.setdefault(id(parameter), f"param_groups[{place}][{index}]")
    return names


def name_of(parameter: Any) -> str:
    """The name of a parameter in its model; `parameter` if no module holds it.

    All models are searched for one that is not known, and so for those that are asked for next.
    """
    if not _search.knows(parameter):
        _search.again()
    return _search.names_of([parameter]).get(id(parameter), "parameter")


def known_names(wanted: Sequence[Any]) -> dict[int, str]:
    """The names of parameters by `id`, as they were when the models were searched last."""
    return _search.names_of(wanted)


def beside(handed: Sequence[Any], *, same_model: bool) -> Iterator[tuple[Any, str]]:
    """The other parameters of models with one of `handed`, or of all other models; their names.

    The models are as they were when they were searched last.
    """
    return _search.beside(handed, same_model)


def names_alive() -> set[str]:
    """The names of the parameters of all models that the program holds.

    What nothing holds any more, as the model of a test that has ended, is collected first.
    """
    gc.collect()
    _search.again()
    return _search.all_names()


ENOUGH = 3
"""After so many searches in a row that found nothing new, what is known of parameters is taken, and
a search for others has to wait."""
_LONGEST_REST = 100
"""It waits at most so many times as long as the last one took."""


class _Search:
    """What the living models call their parameters, as it was found last.

    All objects are searched for them, which takes some 100 ms. There may be an optimizer for each
    parameter, or a new one in each step, of parameters that no model holds: if searches find
    nothing, the next one waits, at most until a trace is read. Meanwhile young objects alone are
    searched, among which the model of a new optimizer mostly is.
    """

    times = 0
    """How often it was done."""

    def __init__(self) -> None:
        self._models: dict[int, tuple[str, dict[int, str]]] = {}  # by id: class, names
        self._seen: dict[int, ref[Any]] = {}  # the parameters of models and optimizers
        self._optimizers: dict[int, ref[Any]] = {}  # that were alive
        self._in_vain = 0  # searches in a row
        self._due = 0.0

    def names_for(self, optimizer: Any, wanted: Sequence[Any]) -> dict[int, str]:
        """The names of the parameters of an optimizer, by `id`."""
        parameters = [each for each in wanted if compat.is_parameter(each)]
        known, alive = all(map(self.knows, parameters)), self._optimizers.pop(id(optimizer), None)
        is_new = alive is None or alive() is not optimizer
        begin, before = time.perf_counter(), self.names_of(wanted)
        if begin < self._due:
            if not known:
                self.again(young=True)  # a part of an older model would have a name of its own
        elif parameters and (not known or (is_new and self._in_vain < ENOUGH)):
            self.again()
            end = time.perf_counter()
            self._in_vain = self._in_vain + 1 if self.names_of(wanted) == before else 0
            rest = min(_LONGEST_REST, 2 ** (self._in_vain - ENOUGH))
            self._due = end + rest * (end - begin) if self._in_vain >= ENOUGH else 0.0
        return self.names_of(wanted)

    def knows(self, parameter: Any) -> bool:
        """Whether a parameter was there."""
        seen = self._seen.get(id(parameter))
        return seen is not None and seen() is parameter

    def names_of(self, wanted: Iterable[Any]) -> dict[int, str]:
        """The names of parameters that it knows, by `id`.

        Where several models hold them, as a model and a part of it that something else holds too,
        that one names them which holds the most of them.
        """
        ids = {id(each) for each in wanted if self.knows(each)}
        names: dict[int, str] = {}
        models = [model for _, model in self._models.values()]
        for model in sorted(models, key=lambda model: -len(ids & model.keys())):
            names = {**{each: model[each] for each in ids & model.keys()}, **names}
        return names

    def beside(self, handed: Iterable[Any], same_model: bool) -> Iterator[tuple[Any, str]]:
        """See `beside`."""
        ids = {id(each) for each in handed}
        for cls, model in self._models.values():
            if bool(ids & model.keys()) == same_model:
                for key, name in model.items():
                    own = self._seen[key]()
                    if key not in ids and own is not None:
                        yield own, name if same_model else f"{cls}.{name}"

    def all_names(self) -> set[str]:
        """All that any model has."""
        return {name for _, model in self._models.values() for name in model.values()}

    def again(self, *, young: bool = False) -> None:
        """Search all objects, or add what is found among young ones to what is known."""
        found = instances([compat.Module, compat.Optimizer], young=young)
        if young:
            self._forget_dead()
        else:
            self.times += 1
            self._seen, self._models, self._optimizers = {}, {}, {}
        modules = [each for each in found if issubclass(type(each), compat.Module)]
        inner = {id(c) for each in modules for c in vars(each).get("_modules", {}).values()}
        for module in modules:
            outermost = id(module) not in inner and "_modules" in vars(module)
            if outermost and not compat.is_generated(module):
                names: dict[int, str] = {}
                for parameter, name in (*_named(module), *_named_in_lists(module)):
                    names.setdefault(id(parameter), name)  # `named_parameters` takes the first, too
                    self._seen[id(parameter)] = ref(parameter)
                self._models[id(module)] = type(module).__name__, names
        for optimizer in filter(compat.is_optimizer, found):
            self._optimizers[id(optimizer)] = ref(optimizer)
            with suppress_faults():  # one that is being made, or is like none that there is
                for parameter in parameters_of(optimizer.param_groups):
                    self._seen.setdefault(id(parameter), ref(parameter))

    def _forget_dead(self) -> None:
        """Forget parameters that are gone: others may have their ids by now."""
        self._seen = {key: each for key, each in self._seen.items() if each() is not None}
        alive = self._seen.keys()
        of_living = {
            key: (cls, {each: name for each, name in names.items() if each in alive})
            for key, (cls, names) in self._models.items()
        }
        self._models = {key: model for key, model in of_living.items() if model[1]}


_WRAPPING = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Modules around a model, and what they call it: the program knows the names without it."""


def _named(module: Any, prefix: str = "") -> Iterator[tuple[Any, str]]:
    """Each parameter in a module, with its name, in the order of `named_parameters()`."""
    own = vars(module)
    for name, parameter in own.get("_parameters", {}).items():
        if parameter is not None:
            yield parameter, prefix + name
    around = {_WRAPPING.get(each.__name__) for each in type(module).__mro__}
    for name, child in own.get("_modules", {}).items():
        if child is not None:
            yield from _named(child, prefix if name in around else f"{prefix}{name}.")


def _named_in_lists(module: Any, prefix: str = "") -> Iterator[tuple[Any, str]]:
    """Each parameter of the layers in plain lists and dicts, of which PyTorch does not know."""
    for name, held in vars(module).items():
        plain = type(held) in (list, tuple, dict) and name != "_modules"
        items = [*(held.items() if isinstance(held, dict) else enumerate(held))] if plain else []
        if items and issubclass(type(items[0][1]), compat.Module):
            for key, layer in items:
                if issubclass(type(layer), compat.Module):
                    yield from _named(layer, f"{prefix}{name}[{key!r}].")
    for name, child in vars(module).get("_modules", {}).items():
        if child is not None:
            yield from _named_in_lists(child, f"{prefix}{name}.")


_search = _Search()


def parameters_of(groups: Sequence[dict[str, Any]]) -> Sequence[Any]:
    """The parameters of all groups, in their order."""
    if len(groups) == 1:
        only: Sequence[Any] = groups[0]["params"]
        return only
    return [parameter for group in groups for parameter in group["params"]]
