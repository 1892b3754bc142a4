"""What counting needs of PyTorch: see `tracer.core.backend.Backend`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any
from weakref import finalize

import torch
import torch.distributed as ranks

from tracer.backends.keras.backend import KerasBackend
from tracer.backends.models import ModelMonitor
from tracer.backends.torch import compat, gradients, optimizer_hooks
from tracer.backends.torch.effects import Effects, is_held_back, tensor_of
from tracer.backends.torch.freeze_monitor import FreezeMonitor
from tracer.backends.torch.parameters import Parameters
from tracer.backends.torch.steps import StepCounter
from tracer.core import backend
from tracer.core.calls import EAGER, Call, CallsUnderWay, Step, start_call
from tracer.core.collectors import Collector
from tracer.core.instances import instances
from tracer.core.optimizers import Binding
from tracer.errors import UnsupportedOptimizer, suppress_faults
from tracer.kinds import AUXILIARY, OptimizerKind
from tracer.model.evidence import Evidence, Scheduled
from tracer.model.records import Kind, Variable

KNOWS_IDS = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 10)
"""Whether Dynamo supports the `id` of a Keras optimizer, which makes a program one of this one.

An older Dynamo would end the program with an error.
"""


class Blocks(backend.Blocks):
    """The blocks of one root optimizer; thread-safe."""

    new_effects = Effects

    def wait(self) -> None:
        """Note the abandoned steps."""
        for call in self._root.calls_under_way.abandoned_steps():
            call.recorder.abandon(call)

    def missed(self, names: Sequence[str], before: Mapping[int, int], past: int) -> Iterator[str]:
        """Notes about optimizers with a `step` attribute of their own, which calls no hooks."""
        for name, traced in zip(names, self._root.optimizers.all, strict=True):
            own = getattr(traced.readable(), "__dict__", {}).get("step")
            if own is not None and not compat.is_of_scheduler(own) and not self.counters.steps():
                yield (
                    f"{name}: the program assigned a step of its own to the optimizer, which "
                    "does not call the step of its class: its calls are not counted"
                )


class Schedules(Collector):
    """The learning-rate schedules of the optimizers of one recorder, by name.

    Nothing is replaced: an attribute that a schedule sets on an optimizer shows that it exists.
    """

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self._names: list[str] = []

    def first_step_ends(self, call: Step | None = None) -> None:
        """Look for schedules, which programs make before the first step."""
        alive = self.root.optimizers.alive()
        ids = {id(own) for own in alive if compat.is_of_scheduler(vars(own).get("step"))}
        with suppress_faults():
            every = instances([compat.LRScheduler]) if ids else []
            inside = {id(own) for each in every for own in getattr(each, "_schedulers", ())}
            outer = [each for each in every if id(each) not in inside and id(each.optimizer) in ids]
            self._names = list(dict.fromkeys(type(schedule).__name__ for schedule in outer))

    def evidence(self) -> Iterator[Evidence]:
        """The name of each schedule."""
        if not self._names:
            self.first_step_ends()
        yield from map(Scheduled, self._names)


class PyTorchBackend(backend.Backend):
    """Any optimizer whose variables are parameters of PyTorch."""

    packages: tuple[str, ...] = ("torch", "keras")
    collectors: tuple[type[Collector], ...] = (ModelMonitor,)
    new_blocks = Blocks

    def locate(self, call: Call, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
        """Set the place of a new call, which runs now, and note whether other ranks train too."""
        is_own = start_call(call, EAGER, 0, stack[-1] if stack else None)
        call.distributed = call.role == "step" and compat.has_ranks()
        return is_own

    def kind_of_gradient(self, gradient: object) -> Kind:
        """`sparse` for a sparse tensor, `none` for None, else `dense`."""
        return compat.kind_of(
            None if gradient is None else getattr(gradient, "layout", compat.DENSE)
        )

    def device_of(self, variable: object) -> str:
        """Where a variable is: `cpu`, `cuda:0`."""
        return str(getattr(tensor_of(variable), "device", ""))

    def surroundings(self) -> backend.Surroundings:
        """The rank of this process, and all ranks, as workers of `tracer.merge`."""
        names = [f"rank:{rank}" for rank in range(ranks.get_world_size())]
        strategy = f"torch.distributed ({ranks.get_backend()})"
        return backend.Surroundings(strategy, names[ranks.get_rank()], tuple(names))

    def canonical(self, variable: object) -> object:
        """The parameter, even of a Keras variable: PyTorch's optimizers train the parameter."""
        tensor = tensor_of(variable)
        return tensor if isinstance(tensor, torch.Tensor) else variable

    def row(self, variable: object) -> Variable:
        """The row of a variable, its dtype without `torch.`."""
        row = super().row(variable)
        return Variable(row.name, row.shape, row.dtype.removeprefix("torch."))

    def value_of(self, variable: object, most: int) -> Any:
        """The value of a variable of 1 to `most` elements, as a NumPy array; None for others."""
        tensor = tensor_of(variable)
        is_known = isinstance(tensor, torch.Tensor) and 0 < tensor.numel() <= most
        # A read would end the capture of a CUDA graph; NumPy has no bfloat16.
        can_be_read = is_known and not compat.is_capturing()
        return tensor.detach().cpu().double().numpy() if can_be_read else None


class Variables(backend.Variables):
    """The parameters in the variables of Keras, as in its models and in optimizers of PyTorch."""

    def index(self, variable: object, graph: object, named: object = None) -> int:
        """Return the index of the parameter, which has the name of the Keras variable."""
        return super().index(tensor_of(variable), graph, variable)


class TorchBackend(PyTorchBackend, KerasBackend):
    """Keras on PyTorch.

    Dynamo traces a method without running it, and compiled code calls no method. So while Dynamo
    traces a method of a traced class, the method leaves a note and calls that of the plain class.
    """

    new_variables = Variables

    def members(
        self, base: type, kind: OptimizerKind, methods: Mapping[str, Callable[..., object]]
    ) -> Mapping[str, Callable[..., object]]:
        """The traced methods, in a form that Dynamo can trace."""
        names = [*kind.step_methods, *(method.name for method in kind.apply_methods), *AUXILIARY]
        return {name: _noted(methods[name], base, name) for name in names if name in methods}

    def class_seen(self, optimizer: object) -> type:
        """The plain class, but the traced class for Dynamo, which may look up methods in it."""
        is_compiling = torch._guards.CompileContext.try_get() is not None
        return type(optimizer) if is_compiling else super().class_seen(optimizer)


class TorchOptimBackend(PyTorchBackend):
    """PyTorch's own optimizers."""

    packages = ("torch", "lightning", "accelerate", "transformers")
    new_variables = Parameters
    collectors = (FreezeMonitor, gradients.GradientMonitor, Schedules)

    def standing_for(self, given: object) -> torch.optim.Optimizer:
        """The optimizer behind a proxy, such as Accelerate's, whose `step` calls no hooks."""
        optimizer = compat.behind_proxies(given)
        if optimizer is None:
            raise UnsupportedOptimizer(
                f"cannot trace {backend.described(given)}: PyTorch calls no hooks around its step, "
                "because its class does not call the __init__ of torch.optim.Optimizer"
            )
        return optimizer

    def attach(
        self, optimizer: torch.optim.Optimizer, binding: Binding, *, making: bool = False
    ) -> None:
        """Count the steps of an optimizer, whose class stays, by hooks around them.

        A new one is seen again at its first step, when it holds those that are nested in it.
        """
        if making or binding.observer is not None:
            return
        counter = binding.former  # it knows how the steps write
        if counter is None or counter.recorder is not binding.recorder:
            counter = binding.former = StepCounter(binding)
            finalize(optimizer, optimizer_hooks.put_in_place).atexit = False
        binding.observer = counter
        if optimizer_hooks.compiled.get(id(optimizer)) is optimizer:
            optimizer_hooks.stop(optimizer, binding)
        optimizer_hooks.put_in_place()

    def detach(self, optimizer: torch.optim.Optimizer, binding: Binding) -> None:
        """Stop counting the steps of an optimizer."""
        binding.observer = None
        optimizer_hooks.put_in_place()

    def living(self) -> list[torch.optim.Optimizer]:
        """The optimizers whose steps are counted; a global hook sees the first steps of others."""
        return optimizer_hooks.watched()

    def listen(self, made: Callable[..., None] | None) -> None:
        """Call `made` with each optimizer when it is made, and before its first step."""
        optimizer_hooks.watch_new()
        optimizer_hooks.listeners[:] = [made] if made is not None else []
        optimizer_hooks.put_in_place()
        gradients.watch(made is not None)

    def unseen(self) -> list[str]:
        """Notes on the compiled steps of living optimizers, which may run again."""
        return list(map(optimizer_hooks.note_on, optimizer_hooks.compiled.values()))

    def iterations_of(self, optimizer: torch.optim.Optimizer) -> int | None:
        """The steps that it counted for each parameter; None if it counts none, or they differ."""
        with suppress_faults():  # the state of a custom optimizer may hold anything
            held = (own.get("step") for own in optimizer.state.values() if isinstance(own, dict))
            known = {each for each in map(_number, held) if isinstance(each, int | float)}
            return int(min(known)) if len(known) == 1 and 0 <= min(known) < 2**53 else None
        return None

    def is_restored(self, optimizer: torch.optim.Optimizer) -> bool:
        """True: a count that began unseen is that of a parameter, or one that the program set."""
        return True

    watches_rates = True

    def rates_of(self, optimizer: torch.optim.Optimizer) -> Sequence[tuple[object, object]]:
        """The rates of the groups; None for a tensor that cannot be read without waiting.

        No groups of an optimizer with hooks after its steps: they run before this, and may have set
        the rates of the next step.
        """
        groups = () if optimizer._optimizer_step_post_hooks else optimizer.param_groups
        return [
            (
                rate if (rate := group.get("lr")).__class__ is float else _number(rate),
                group.get("weight_decay"),
            )
            for group in groups
        ]

    def groups_of(
        self, optimizer: torch.optim.Optimizer, variables: Sequence[torch.Tensor]
    ) -> Iterable[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]]:
        """The parameters of each group; weight decay applies to all of them."""
        return [(group["params"], group["params"]) for group in optimizer.param_groups]


def _noted(method: Callable[..., object], base: type, name: str) -> Callable[..., object]:
    """Return a method that leaves a note while it is compiled, and runs untraced there."""
    original = getattr(base, name)

    def compiled(self: object, *args: object, **kwargs: object) -> object:
        if not torch.compiler.is_dynamo_compiling():
            return method(self, *args, **kwargs)
        optimizer_hooks.note_compiled(id(self) if KNOWS_IDS else 0)
        return original(self, *args, **kwargs)

    # Dynamo limits the programs for one code object, which all methods would otherwise share.
    compiled.__code__ = compiled.__code__.replace()
    return compiled


def _number(rate: object) -> object:
    """A number, also of a tensor; None if reading it would wait for a device, or it has several."""
    if not isinstance(rate, torch.Tensor):
        return rate
    return None if is_held_back(rate) or rate.numel() != 1 else float(rate)
