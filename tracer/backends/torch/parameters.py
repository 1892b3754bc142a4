"""Find the names that parameters have in their model.

A parameter does not know its name, and an optimizer does not know the model. So the living modules
are searched, once for all parameters of an optimizer, before its first step. Nothing is kept alive.
"""

from collections.abc import Iterable, Iterator, Sequence, Set
from itertools import chain
from typing import Any
from weakref import ref

from tracer.backends.torch import compat
from tracer.core import backend
from tracer.core.instances import instances
from tracer.errors import suppress_faults
from tracer.model.records import Variable


class Parameters(backend.Variables):
    """The parameters of the optimizers of one recorder."""

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._names: dict[int, str] = {}
        self._row = lambda own: record_of(own, self._names.get(id(own), _UNNAMED[0]))

    def find_names(self, optimizer: compat.Optimizer) -> None:
        """Find the names of the parameters of an optimizer, for the rows that are made next."""
        if None in map(self._known, parameters_of(optimizer.param_groups)):
            self._names = names_in(optimizer)

    @property
    def rows(self) -> list[Variable]:
        """The rows of all parameters; searches for names that have not been searched for."""
        held = zip(list(self.plain), list(self.objects), strict=False)
        alive = [each and each() for row, each in held if row.name.partition("[")[0] in _UNNAMED]
        unnamed = [each for each in alive if isinstance(each, compat.Parameter)]
        if not all(map(models.knows, unnamed)):
            models.search()
        models.vain = 0
        for key, name in models.names_of(unnamed).items():
            parameter, index = self._index[key]
            self.plain[index] = record_of(parameter(), name)
        return super().rows


_UNNAMED = ("parameter", "param_groups")
"""The names, up to a bracket, of parameters that no model is known to hold."""


def record_of(parameter: compat.Tensor, name: str) -> Variable:
    """The record of a parameter: of the whole one if this is a shard."""
    known = models.flattened.get(id(parameter))
    if known is not None and known[0]() is parameter:
        _, shape, shards = known
    else:
        shape = () if compat.is_lazy(parameter) else tuple(map(int, parameter.shape))
        shards = compat.shards_of(parameter)
    return Variable(name, shape, str(parameter.dtype).removeprefix("torch."), shards=shards)


def names_in(optimizer: compat.Optimizer) -> dict[int, str]:
    """The name of each parameter of an optimizer, by `id`.

    It is the name in the group (`named_parameters` passed to the optimizer), or the name in the
    outermost module that holds the parameter, or its place: `param_groups[0][3]`.
    """
    groups = optimizer.param_groups
    names = models.find(parameters_of(groups))
    for place, group in enumerate(groups):
        for index, parameter in enumerate(group["params"]):
            names.setdefault(id(parameter), f"param_groups[{place}][{index}]")
        given = zip(group["params"], group.get("param_names") or (), strict=False)
        names |= {id(parameter): str(name) for parameter, name in given}
    return names


def name_of(parameter: compat.Tensor) -> str:
    """The name of a parameter in its model; `parameter` if no module holds it.

    The first unknown parameter starts a search of all models, which also serves the next ones.
    """
    if not models.knows(parameter):
        models.search()
    return models.names_of([parameter]).get(id(parameter), _UNNAMED[0])


_TRIES = 100
"""After so many searches in a row that found no name, the next one waits for a reader."""


class Models:
    """The names of parameters in the living models, as of the last search.

    A search looks at all objects, which takes about 100 ms. A program may make an optimizer in each
    step, of parameters that no model holds: after many searches, the next waits for a reader.
    """

    def __init__(self) -> None:
        self._models: dict[int, tuple[str, dict[int, tuple[ref[compat.Tensor], str]]]] = {}
        """By `id` of a model, its class name, and by `id` its parameters and their names."""
        self._asked: dict[int, ref[compat.Tensor]] = {}
        """The parameters for which a search was requested."""
        self._seen: dict[int, ref[compat.Tensor]] = {}
        """The parameters that were searched for or found in a model."""
        self.flattened: dict[int, tuple[ref[compat.Tensor], tuple[int, ...], int]] = {}
        """By `id`, the parameters that `FullyShardedDataParallel` shards, with the whole shape and
        the number of shards."""
        self.vain = 0
        """The searches that found no name since one that did, or since a trace was read."""

    def find(self, wanted: Sequence[compat.Tensor]) -> dict[int, str]:
        """The names of parameters by `id`; searches the models if any parameter is unknown."""
        parameters = [each for each in wanted if isinstance(each, compat.Parameter)]
        if not all(map(self.knows, parameters)):
            self._asked |= {id(each): ref(each) for each in parameters}
            before = self.names_of(wanted)
            if self.vain < _TRIES:
                self.search()
                self.vain = self.vain + 1 if self.names_of(wanted) == before else 0
        return self.names_of(wanted)

    def knows(self, parameter: compat.Tensor) -> bool:
        """True if the last search included this parameter."""
        seen = self._seen.get(id(parameter))
        return seen is not None and seen() is parameter

    def names_of(self, wanted: Iterable[compat.Tensor]) -> dict[int, str]:
        """The known names of parameters, by `id`.

        If several models hold a parameter, as a model and a part that the program also holds, the
        model that holds most of them names it.
        """
        wanted = {id(each): each for each in wanted if each is not None}
        found = [
            {key: own[key][1] for key in wanted if key in own and own[key][0]() is wanted[key]}
            for _, own in self._models.values()
        ]
        names: dict[int, str] = {}
        for each in sorted(found, key=len, reverse=True):
            names = each | names
        return names

    def others_than(self, ids: Set[int]) -> Iterator[tuple[compat.Tensor, str, bool]]:
        """The other parameters of the models, with names, as of the last search.

        And whether the model is near: whether it has one of `ids`.
        """
        for cls, model in self._models.values():
            alive = {key: own for key, (each, _) in model.items() if (own := each()) is not None}
            is_near = not ids.isdisjoint(alive)
            prefix = "" if is_near else f"{cls}."
            for key in (key for key in alive if key not in ids):
                yield alive[key], prefix + model[key][1], is_near

    def search(self) -> None:
        """Search all objects for models."""
        modules = instances([compat.Module])
        self._asked = {key: each for key, each in self._asked.items() if each() is not None}
        self._seen, self._models, self.flattened = dict(self._asked), {}, {}
        inner = {id(c) for each in modules for c in list(vars(each).get("_modules", {}).values())}
        sharded: dict[int, compat.Tensor] = {}
        for module in modules:
            with suppress_faults():
                sharded |= {id(now): own for now, own in compat.replaced_in(module)}
        for module in modules:
            outermost = id(module) not in inner and "_modules" in vars(module)
            with suppress_faults():  # a module may hold anything, and another thread may change it
                for each, shape, shards in compat.flattened_in(module):
                    self.flattened[id(each)] = ref(each), shape, shards
                if outermost:
                    names: dict[int, tuple[ref[compat.Tensor], str]] = {}
                    for now, name in _named(module):
                        parameter = sharded.get(id(now), now)
                        names.setdefault(id(parameter), (ref(parameter), name))
                    self._models[id(module)] = type(module).__name__, names
                    self._seen |= {key: reference for key, (reference, _) in names.items()}


_WRAPPING = {
    "ActivationWrapper": "_checkpoint_wrapped_module",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Wrappers of a model, with the attribute that holds it, which names in the trace omit."""


def _named(
    module: compat.Module, prefix: str = "", lists: bool = True
) -> Iterator[tuple[compat.Tensor, str]]:
    """Each parameter in a module, with its name, in the order of `named_parameters()`.

    The parameters of layers in plain `lists` and dicts, which PyTorch does not register, follow.
    """
    own = vars(module)
    for name, parameter in list(own.get("_parameters", {}).items()):
        if parameter is not None:
            yield parameter, prefix + name
    around = {_WRAPPING.get(each.__name__) for each in type(module).__mro__}
    for name, child in list(own.get("_modules", {}).items()):
        if child is not None:
            yield from _named(child, prefix if name in around else f"{prefix}{name}.", lists)
    for name, held in list(own.items()) if lists else ():
        if type(held) in (list, tuple, dict) and name != "_modules":
            for key, layer in held.items() if isinstance(held, dict) else enumerate(held):
                if not issubclass(type(layer), compat.Module):
                    break
                yield from _named(layer, f"{prefix}{name}[{key!r}].", lists=False)


models = Models()


def parameters_of(groups: Sequence[dict[str, Any]]) -> Sequence[compat.Tensor]:
    """The parameters of all groups, in order: the list of the group itself if there is only one."""
    held: list[Sequence[compat.Tensor]] = [group["params"] for group in groups]
    return held[0] if len(held) == 1 else [*chain.from_iterable(held)]
