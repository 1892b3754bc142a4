"""The parameters that were met, by the names that they have in their model.

A parameter does not know its name, and an optimizer does not know the model. So the living modules
are searched, once for all parameters of an optimizer, when it steps first; nothing is kept alive.
"""

import gc
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

from tracer.model.records import Variable
from tracer.recorder.host import Variables
from tracer.recorder.instances import instances
from tracer.recorder.torch_optim import compat


class Parameters(Variables):
    """The parameters of the optimizers of one recorder."""

    def __init__(self) -> None:
        super().__init__(lambda parameter: parameter, self._record)
        self._names: dict[int, str] = {}

    def meet(self, groups: Sequence[dict[str, Any]]) -> list[Any]:
        """Find the names of the parameters of an optimizer, which will be asked for next.

        Returns the models that hold them.
        """
        models = _outermost()
        self._names = names_in(groups, models)
        wanted = set(map(id, parameters_of(groups)))
        return [model for model in models if any(True for _ in _named(model, wanted))]

    def _record(self, parameter: Any) -> Variable:
        dtype = str(parameter.dtype).removeprefix("torch.")
        name = self._names.get(id(parameter), "parameter")
        return Variable(name, tuple(map(int, parameter.shape)), dtype)


def names_in(groups: Sequence[dict[str, Any]], models: Sequence[Any]) -> dict[int, str]:
    """The name of each parameter of an optimizer, by its `id`; `models` are all that are alive.

    It is the one that it was handed over with, or that of `named_parameters()` of the outermost
    module that holds it; else its place: `param_groups[0][3]`.
    """
    wanted = {id(parameter) for group in groups for parameter in group["params"]}
    names = names_of(wanted, models)
    for place, group in enumerate(groups):
        given = group.get("param_names") or ()
        for index, parameter in enumerate(group["params"]):
            if index < len(given):
                names[id(parameter)] = str(given[index])
            else:
                names.setdefault(id(parameter), f"param_groups[{place}][{index}]")
    return names


def names_of(wanted: set[int], models: Sequence[Any]) -> dict[int, str]:
    """The names of parameters, by their `id`, in the models that hold them.

    Where several do, as a model and a part of it that something else holds too, that model names
    them which holds the most of them.
    """
    held = [dict(_named(module, wanted)) for module in models]
    names: dict[int, str] = {}
    for each in sorted(held, key=len, reverse=True):
        names = {**each, **names}
    return names


def _outermost() -> list[Any]:
    """The living modules that are no part of another one."""
    modules = instances([compat.Module])
    inner = {id(child) for module in modules for child in vars(module).get("_modules", {}).values()}
    return [module for module in modules if id(module) not in inner and "_modules" in vars(module)]


_WRAPPING = {
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "OptimizedModule": "_orig_mod",
}
"""Modules around a model, and what they call it: the program knows the names without it."""


def _named(module: Any, wanted: set[int], prefix: str = "") -> Iterator[tuple[int, str]]:
    """The `id` and the name of each parameter in a module that is wanted."""
    own = vars(module)
    for name, parameter in own.get("_parameters", {}).items():
        if id(parameter) in wanted:
            yield id(parameter), prefix + name
    for name, child in own.get("_modules", {}).items():
        if child is not None:
            wrapping = _WRAPPING.get(type(module).__name__) == name
            yield from _named(child, wanted, prefix if wrapping else f"{prefix}{name}.")


_known: dict[int, tuple["ref[Any]", str]] = {}
"""The parameters that living models held when they were searched last, by their `id`."""


def name_of(parameter: Any) -> str:
    """The name of a parameter in its model; `parameter` if no module holds it.

    All models are searched for one that is not known, and so for those that are asked for next.
    """
    known = _known.get(id(parameter))
    if known is None or known[0]() is not parameter:
        _known.clear()
        _known.update(_alive())
        known = _known.get(id(parameter))
    return "parameter" if known is None else known[1]


def names_alive() -> set[str]:
    """The names of the parameters of all models that the program holds.

    What nothing holds any more, as the model of a test that has ended, is collected first.
    """
    gc.collect()
    return {name for _, name in _alive().values()}


def _alive() -> dict[int, tuple["ref[Any]", str]]:
    models = _outermost()
    everything = [p for root in models for p in root.parameters()]
    names = names_of({id(parameter) for parameter in everything}, models)
    return {id(p): (ref(p), names[id(p)]) for p in everything}


def parameters_of(groups: Iterable[dict[str, Any]]) -> list[Any]:
    """The parameters of all groups, in their order."""
    return [parameter for group in groups for parameter in group["params"]]
