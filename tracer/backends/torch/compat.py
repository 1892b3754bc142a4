"""The parts of PyTorch that the backend for `torch.optim` relies on; only this module names them.

Read in PyTorch 2.15: `optim/optimizer.py` (`profile_hook_step` calls the hooks around each `step`
of each class, including an inner `super().step()`), `amp/grad_scaler.py` (`step` skips the
optimizer's `step`, or passes `found_inf` to a fused one, whose kernel skips its work).
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial, wraps
from inspect import unwrap
from math import prod
from operator import attrgetter
from types import CodeType, FunctionType
from typing import Any, TypeVar, cast

import torch
import torch.distributed as _ranks
from torch import Tensor as Tensor, autograd as autograd
from torch._C._dynamo import eval_frame as _dynamo
from torch._C._dynamo.eval_frame import set_eval_frame as set_eval_frame
from torch.amp import GradScaler as GradScaler
from torch.nn import Module as Module, Parameter as Parameter
from torch.optim import optimizer as _home
from torch.optim.lr_scheduler import LRScheduler as LRScheduler
from torch.optim.optimizer import Optimizer as Optimizer
from torch.utils.hooks import RemovableHandle

from tracer.core.patches import Patch
from tracer.model.records import Kind

global_hooks: tuple[dict[int, object], dict[int, object]] = (
    _home._global_optimizer_pre_hooks,
    _home._global_optimizer_post_hooks,
)
"""The hooks before and after the steps of all optimizers; one of each is ours."""


class Hook(Patch):
    """A hook before or after the steps of all optimizers; it has a fixed key.

    A compiled program depends on the keys.
    """

    def __init__(self, hooks: dict[int, object], ours: Callable[..., None]) -> None:
        self._key: int = RemovableHandle(OrderedDict()).id
        super().__init__(hooks, "a global hook", ours, "to see the steps", "traced")

    def _now(self) -> object:
        return self.home().get(self._key)

    def _assign(self, value: object) -> None:
        """Add the hook as the last one, or remove it.

        Another thread may be iterating over the hooks: an OrderedDict that loses a key meanwhile
        raises there, and one whose value changes does not.
        """
        hooks = self.home()
        if value is not self.ours and (len(hooks) == 1 or threading.active_count() == 1):
            hooks.pop(self._key, None)
        else:
            hooks[self._key] = value or _NOTHING


_NOTHING = nullcontext().__exit__
"""A hook that does nothing, and can be copied and pickled."""


FROZEN = "frozen"
"""In place of a layout: the parameter has no gradient and needs none."""

_layout_of = attrgetter("grad.layout")


def layouts_of(parameters: Sequence[Tensor]) -> list[object]:
    """The layout of each parameter's gradient; None without one, `FROZEN` if it needs none.

    This runs in each step, so it must be fast.
    """
    try:
        return list(map(_layout_of, parameters))
    except AttributeError:  # a parameter has no gradient
        return [
            grad.layout
            if (grad := p.grad) is not None
            else None
            if p.requires_grad and not is_elsewhere(p)
            else FROZEN
            for p in parameters
        ]


_RANKS = _ranks.is_available()


def has_ranks() -> bool:
    """True if several processes train together."""
    return bool(_RANKS and _ranks.group.WORLD is not None and _ranks.get_world_size() > 1)


DENSE: object = torch.strided
"""The layout of a dense gradient."""


def kind_of(layout: object) -> Kind:
    """The kind of a gradient with this layout; None means no gradient."""
    if layout is DENSE or layout is torch._mkldnn:
        return "dense"
    return "none" if layout is None else "sparse"


def behind_proxies(optimizer: object, *around: object) -> Optimizer | None:
    """The optimizer whose `step` calls the hooks: itself, or the one in a proxy; None if none.

    A proxy may hold itself, or one of those `around` it.
    """
    step, held = getattr(type(optimizer), "step", None), getattr(optimizer, "__dict__", {})
    if getattr(step, "hooked", False) and hasattr(optimizer, "_optimizer_step_post_hooks"):
        return optimizer
    others = {id(each): each for each in held.values() if is_optimizer(each)}
    inner = next((others[key] for key in others if key not in map(id, (optimizer, *around))), None)
    return None if inner is None else behind_proxies(inner, optimizer, *around)


def is_optimizer(given: object) -> bool:
    return issubclass(type(given), Optimizer)


def is_plain(parameter: Tensor) -> bool:
    """True for a plain parameter with a plain dense gradient, or none."""
    is_plain = type(parameter) in (Parameter, Tensor) and parameter.is_leaf
    has_dense = parameter.grad is None or parameter.grad.layout is DENSE
    return is_plain and has_dense and bool(parameter.requires_grad)


def is_loose_tensor(given: Any) -> bool:
    """True for a tensor that cannot be a parameter, such as `weight.data`."""
    is_tensor = isinstance(given, torch.Tensor) and not isinstance(given, Parameter)
    return is_tensor and not (given.is_leaf and given.requires_grad)


def versions_of(parameters: Sequence[Tensor]) -> dict[int, int | None]:
    """How many writes PyTorch counted for each parameter but lazy ones, for autograd, by `id`.

    None for a tensor made in `torch.inference_mode`, whose writes are not counted.
    """
    known = [each for each in parameters if not is_lazy(each)]
    return {id(each): None if each.is_inference() else each._version for each in known}


def steps_by_itself(optimizer: Optimizer) -> bool:
    """True if a step of this optimizer runs code outside PyTorch, which may skip any update.

    A class that only adds methods to one of PyTorch steps as that one does, and one that only
    replaces methods that no step of PyTorch calls.
    """
    bases = type(optimizer).__mro__
    own = [base for base in bases if not (base is object or _is_theirs(base.__module__))]
    theirs = {name for base in bases if base not in own for name in vars(base)}
    members = [(base in own, *member) for base in bases for member in vars(base).items()]
    members += [(True, *member) for member in vars(optimizer).items() if member[0][0] == "_"]
    return any(
        name in theirs and not name.startswith(_OUTSIDE_STEPS) and _is_own(value)
        for is_own, name, value in members
        if is_own or isinstance(value, FunctionType)  # assigned to a class of PyTorch
    )


_OUTSIDE_STEPS = (
    "__",
    "zero_grad",
    "state_dict",
    "load_state_dict",
    "add_param_group",
    "register_",
)


def _is_own(method: object) -> bool:
    """True for a method with code outside PyTorch: its own, or that of what it decorates."""
    function = getattr(method, "__func__", method)
    if not isinstance(function, FunctionType):
        return callable(method) or hasattr(method, "__get__")
    inside = [cell.cell_contents for cell in function.__closure__ or ()]
    is_own = not _is_theirs(function.__globals__.get("__name__"))
    return is_own or any(_is_own(each) for each in inside if isinstance(each, FunctionType))


def _is_theirs(module: object) -> bool:
    """True for a module of PyTorch, of decorators that it uses, and of bases of any class."""
    modules = ("torch", "abc", "typing", "typing_extensions", "contextlib", "functools", "warnings")
    return str(module).partition(".")[0] in modules


def code_of(function: Callable[..., object]) -> CodeType | None:
    """The code of a function behind its decorators; None if Python cannot see it."""
    while isinstance(function, partial):
        function = function.func
    function = unwrap(function)
    return getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)


def is_capturing() -> bool:
    """True while a CUDA graph is captured, when nothing may wait for the device."""
    return bool(torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def is_of_scheduler(step: object) -> bool:
    """True if a learning-rate schedule set this `step` on an optimizer, around the class's `step`.

    Read in `optim/lr_scheduler.py` (`LRScheduler._initial_step`).
    """
    return hasattr(step, "_wrapped_by_lr_sched")


def is_lazy(parameter: Tensor) -> bool:
    """True for a lazy parameter that has no data yet."""
    return isinstance(parameter, torch.nn.parameter.UninitializedTensorMixin)


def shards_of(parameter: Tensor) -> int:
    """The number of shards of a `DTensor` (`fully_shard`, tensor parallel); else 1.

    `is_shard` is False for a `_StridedShard`, which both together make.
    """
    placed = enumerate(getattr(parameter, "placements", ()))
    sharded = [at for at, each in placed if not (each.is_replicate() or each.is_partial())]
    return prod(map(parameter.device_mesh.size, sharded)) if sharded else 1


def flattened_in(module: Module) -> Iterator[tuple[Tensor, tuple[int, ...], int]]:
    """The parameters that a `FullyShardedDataParallel` shards; whole shape and number of shards.

    Each parameter is this rank's part, flattened (`torch/distributed/fsdp/_flat_param.py:
    FlatParameter`).
    """
    handle: Any = vars(module).get("_handle")
    flat: Any = getattr(handle, "flat_param", None)
    if getattr(flat, "_fsdp_flattened", False) and handle.uses_sharded_strategy:
        own, shapes = flat._params, flat._shapes
        if own is None:  # without `use_orig_params`
            own, shapes = [flat], [flat._unpadded_unsharded_size]
        for parameter, shape in zip(own, shapes, strict=True):
            yield parameter, tuple(shape), handle.world_size


def replaced_in(module: Module) -> Iterator[tuple[Tensor, Tensor]]:
    """The parameters that a `fully_shard` module holds now; the optimizer has the second of a pair.

    From the forward to the backward pass, they are whole copies of the sharded ones
    (`torch/distributed/fsdp/_fully_shard/_fsdp_param.py: _setattr_on_modules`).
    """
    state_of = getattr(type(module), "_get_fsdp_state", None)
    state: Any = None if state_of is None else state_of(module)
    groups = getattr(state, "_fsdp_param_groups", None)  # older versions of PyTorch have one
    for group in groups or filter(None, [getattr(state, "_fsdp_param_group", None)]):
        for each in group.fsdp_params:
            place = each._module_info
            yield vars(place.module)["_parameters"][place.param_name], each.sharded_param


def is_elsewhere(parameter: Tensor) -> bool:
    """True if other ranks hold all elements of a `FullyShardedDataParallel` parameter.

    Then it never has a gradient here (`FlatParamHandle._use_sharded_grad_views`). The mark is from
    `torch/distributed/fsdp/_common_utils.py`.
    """
    return getattr(parameter, "_fsdp_flattened", False) is True and not parameter.numel()


# Dynamo, the tracer of `torch.compile`.

F = TypeVar("F", bound=Callable[..., object])

is_compiling: Callable[[], bool] = torch.compiler.is_compiling
"""True while `torch.compile` traces the code that calls this."""


def without_dynamo(function: F) -> F:
    """Have Python run a function, also if compiled code calls it; its callees may be compiled.

    This does what `torch.compiler.disable(recursive=False)` does (`_dynamo/decorators.py`), without
    its import, which takes seconds.
    """
    vars(function)["_torchdynamo_disable"] = True
    if hasattr(_dynamo, "set_code_exec_strategy"):
        skip, default = _dynamo._FrameAction.SKIP, _dynamo._FrameAction.DEFAULT
        strategy = _dynamo._FrameExecStrategy(skip, default)
        _dynamo.set_code_exec_strategy(function.__code__, strategy)
    else:  # until PyTorch 2.7
        _dynamo.skip_code(function.__code__)
    return function


def left_alone(function: F) -> F:
    """Have Python run a function and all its callees, also where Dynamo fell back to eager mode.

    If Dynamo cannot break the graph in a frame, as in a `step` that calls another one, the frame
    runs in eager mode, and its callees would be compiled. This does what `torch.compiler.disable`
    does, without the import.
    """

    @wraps(function)
    def undisturbed(*given: object, **named: object) -> object:
        compiler = set_eval_frame(None)
        try:
            return function(*given, **named)
        finally:
            set_eval_frame(compiler)

    return cast(F, without_dynamo(undisturbed))
