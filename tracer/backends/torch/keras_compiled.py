"""Count calls in code that `torch.compile` compiles for Keras, by operators that report each run.

Dynamo traces a method without running it, and compiled code calls no method. So the methods of
traced classes on PyTorch add operators to the graph: one at the start and one at the end of each
step, and one for each call of an apply method. Each has the number of a `_CompiledCall`, which
describes the call as it was compiled, and which notifies the recorder at each run as a call from
Python would. All operators declare a write to one tensor, so compilers keep their order and remove
none. After a graph break, each part has its own operators.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import finalize, ref

import torch
from torch._dynamo import trace_rules

from tracer.backends.torch.dynamo import constant, frame_around
from tracer.backends.torch.operators import BEGIN, END, MOVED, VALUES, number_for
from tracer.backends.torch.steps import drop
from tracer.core.calls import Call, known_by, outermost
from tracer.core.instances import instances
from tracer.core.recorder import Recorder
from tracer.core.registry import Binding, bindings, plain_class, traced_classes
from tracer.kinds import AUXILIARY, ApplyMethod, OptimizerKind

for _name in ("tracer.core", "tracer.hooks.interception", "tracer.hooks.importlib_bootstrap"):
    trace_rules.add(_name)  # not worth compiling


PROGRAM = "torch.compile"
"""The function name of compiled steps."""


class _Gradient(NamedTuple):
    """A gradient that is a tensor in compiled code."""

    is_sparse: bool


class _CompiledCall:
    """A call of a method as it was compiled; notified at each run."""

    def __init__(
        self,
        optimizer: Any,
        method: str,
        apply: ApplyMethod | None,
        gradients: tuple[_Gradient | None, ...],
        ids: tuple[int, ...],
    ) -> None:
        """`ids` are the ids of the variables: an older Dynamo passes no objects."""
        self.optimizer = ref(optimizer)
        self.method = method
        self.apply = apply
        self.gradients = gradients
        self.ids = ids
        self.number = number_for(self)
        self._found: list[ref[Any]] = []

    @property
    def variables(self) -> list[Any]:
        """The variables, looked up in the optimizer when the call runs."""
        found = [variable() for variable in self._found]
        if len(found) != len(self.ids) or any(each is None for each in found):
            found = _with_ids(self.optimizer(), self.ids)
            self._found = [ref(variable) for variable in found]
        return found

    def begins(self, values: list[Any]) -> None:
        """Report that a step begins to run."""
        self._notify(_enter, values)

    def ends(self, values: list[Any], skipped: Any) -> None:
        """Report that a step or an apply method has run."""
        self._notify(_leave if self.apply is None else _applied, values)

    def _notify(self, of_call: Callable[..., None], values: list[Any]) -> None:
        binding = bindings.get(id(self.optimizer()))
        if binding is not None and not binding.recorder.broken:
            try:
                of_call(self, binding.recorder, binding.index, values)
            except Exception as error:
                binding.recorder.fault(error)


class _Step(Call):
    """A step that runs in compiled code."""

    __slots__ = ("compiled", "function", "has_requests", "origin")

    origin: _CompiledCall
    """The call as it was compiled."""
    compiled: int
    """How many of its sites compiled code noted; Python noted the others, at graph breaks."""
    has_requests: bool
    """Whether its gradients have been noted."""


_calls: dict[tuple[Any, ...], _CompiledCall] = {}
_applies: dict[tuple[int, str], ApplyMethod | None] = {}
"""The apply method, or None for a step method, by the id of its class and its name."""
_making = threading.Lock()
OLDEST = (2, 10)
"""The first PyTorch whose Dynamo supports these ids and operators. An older one would end the
program with an error, so there no operators are added to compiled code.
"""
COUNTS = tuple(map(int, torch.__version__.split(".")[:2])) >= OLDEST


def members(
    base: type, kind: OptimizerKind, methods: Mapping[str, Callable[..., Any]]
) -> dict[str, Any]:
    """The traced `methods` of `base`, by name, in a form that also works in compiled code."""
    if not COUNTS:
        names = [*kind.step_methods, *(each.name for each in kind.apply_methods), *AUXILIARY]
        return {n: _noted(methods[n], base, n) for n in names if n in methods}
    found: dict[str, Any] = {
        name: _also_compiled(methods[name], base, name, None) for name in kind.step_methods
    }
    for apply in kind.apply_methods:
        if apply.name in methods:
            found[apply.name] = _also_compiled(methods[apply.name], base, apply.name, apply)
    # Methods that make no step: note only that they are called.
    return found | {n: _noted(methods[n], base, n) for n in AUXILIARY if n in methods}


def _noted(method: Callable[..., Any], base: type, name: str) -> Callable[..., Any]:
    """Return a method that notes its call while it is compiled, and then runs untraced."""
    original = getattr(base, name)

    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return method(self, *args, **kwargs)
        if COUNTS:
            _note_auxiliary(id(self), id(base), name)
        else:  # an older Dynamo takes no ids
            _note_uncounted()
        return original(self, *args, **kwargs)

    return compiled


def class_seen(optimizer: object) -> type:
    """The `__class__` of a traced optimizer: its plain class, but the traced class for Dynamo.

    Dynamo may look up methods in `__class__`, and would miss the traced methods.
    """
    cls = type(optimizer)
    return plain_class(cls) if torch._guards.CompileContext.try_get() is None else cls


def _also_compiled(
    method: Callable[..., Any], base: type, name: str, apply: ApplyMethod | None
) -> Callable[..., Any]:
    """Return the traced `method` in a form that also works in compiled code."""
    original = getattr(base, name)
    _applies[id(base), name] = apply

    def compiled(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not torch.compiler.is_dynamo_compiling():
            return method(self, *args, **kwargs)
        gradients, variables = _passed(self, name, apply, args, kwargs)
        sparse = tuple([None if g is None else getattr(g, "is_sparse", False) for g in gradients])
        known = tuple([id(variable) for variable in variables])
        number = _number(id(self), id(base), name, sparse, known)
        if number < 0:
            return original(self, *args, **kwargs)
        if apply is not None:
            result = original(self, *args, **kwargs)
            END(MOVED, number, [], None)
            return result
        BEGIN(MOVED, number, _values(variables) if VALUES.wanted else [])
        result = original(self, *args, **kwargs)
        END(MOVED, number, _values(variables) if VALUES.wanted else [], None)
        return result

    # Dynamo limits the programs for one code object, which all methods would otherwise share.
    compiled.__code__ = compiled.__code__.replace()
    return compiled


# Traced by Dynamo.


def _passed(optimizer: Any, name: str, apply: ApplyMethod | None, args: Any, kwargs: Any) -> Any:
    """The gradients and variables of a call.

    Empty for `apply_gradients`: its pairs may come from an iterator, and it passes them to `apply`.
    """
    if apply is None and name != "apply":
        return [], []
    one = apply is not None and not apply.many
    others = "trainable_variables" if apply is None else "variable" if one else "variables"
    gradients = args[0] if args else kwargs["gradient" if one else "grads"]
    variables = args[1] if len(args) > 1 else kwargs.get(others)
    if one:
        return [gradients], [variables]
    if variables is None:
        variables = optimizer._trainable_variables
    if not (isinstance(gradients, list | tuple) and isinstance(variables, list | tuple)):
        return [], []
    return gradients, variables


def _values(variables: Sequence[Any]) -> list[Any]:
    """Values of variables for operators: compiled code may write variables to memory later."""
    return [getattr(variable, "_value", variable).detach() for variable in variables]


# Runs while Dynamo traces.


def _binding_of(optimizer: int, base: int) -> Binding | None:
    """The binding of the optimizer with this id, if its class is the traced class of `base`.

    None if it is of a derived class.
    """
    binding = bindings.get(optimizer)
    traced = binding is not None and type(binding.optimizer()) is traced_classes[base]
    return binding if traced else None


@constant
def _number(
    optimizer: int,
    base: int,
    name: str,
    sparse: tuple[bool | None, ...],
    variables: tuple[int, ...],
) -> int:
    """The number of a call of objects with these ids; -1 if the optimizer is not traced."""
    binding = _binding_of(optimizer, base)
    if binding is None or binding.recorder.broken:
        return -1
    try:
        alive, apply = binding.optimizer(), _applies.get((base, name))
        if apply is None and not binding.settled:
            binding.bring_in_nested(alive, binding)
        gradients = tuple(None if each is None else _Gradient(each) for each in sparse)
        key = optimizer, base, name, sparse, variables
        with _making:
            call = _calls.get(key)
            if call is None or call.optimizer() is not alive:
                call = _calls[key] = _CompiledCall(alive, name, apply, gradients, variables)
                finalize(alive, _calls.pop, key, None).atexit = False
        return call.number
    except Exception as error:
        binding.recorder.fault(error)
        return -1


@constant
def _note_auxiliary(optimizer: int, base: int, name: str) -> int:
    """Note that this method of the object with this id is called; returns 0."""
    binding = _binding_of(optimizer, base)
    if binding is not None:
        binding.recorder.optimizers.all[binding.index].called[name] += 1
    return 0


@constant
def _note_uncounted() -> int:
    """Note it for all traced optimizers, as an old Dynamo hides whose step it is; returns 0."""
    here, since = torch.__version__, ".".join(map(str, OLDEST))
    for binding in list(bindings.values()):
        if binding.traced:
            binding.recorder.note(
                f"a step compiled by torch.compile is not counted with PyTorch {here}, only with "
                f"{since} or later"
            )
    return 0


# Runs when the compiled code runs.


def _enter(origin: _CompiledCall, recorder: Recorder, index: int, values: list[Any]) -> None:
    stack = recorder.calls_under_way.stack()
    drop(stack, lambda call: isinstance(call, _Step) and call.origin is origin)
    call, python = _Step(), frame_around(sys._getframe(2))
    call.origin, call.has_requests, call.compiled, call.function = origin, False, 0, ""
    recorder.open(call, index, origin.method, "step", python)
    call.python = known_by(python)
    around = outermost(call)
    if isinstance(around, _Step) and not around.has_requests and origin.ids:
        around.has_requests = True
        variables, before = origin.variables, len(around.sites)
        pairs = list(zip(origin.gradients, variables, strict=False))
        for _ in recorder.requests(around, index, around.origin.method, pairs, compared=False):
            pass
        around.compiled += len(around.sites) - before
        if recorder.effects is not None:
            for variable, value in zip(variables, values, strict=False):
                of_variable = recorder.variables.index(variable, None)
                recorder.effects.hold(around, of_variable, variable, value=value)


def _leave(origin: _CompiledCall, recorder: Recorder, index: int, values: list[Any]) -> None:
    stack = recorder.calls_under_way.stack()
    own = (each for each in reversed(stack) if isinstance(each, _Step) and each.origin is origin)
    call = next(own, None)
    if call is None:
        return
    around, parent = outermost(call), call.parent
    if around.before and recorder.effects is not None:
        for variable, value in zip(origin.variables, values, strict=False):
            recorder.effects.look(around, recorder.variables.index(variable, None), value)
    wholly = call.compiled == len(call.sites)
    call.function = PROGRAM if wholly else ""
    recorder.close(call, False)
    if wholly and isinstance(parent, _Step):
        parent.compiled += call.compiled + 1


def _applied(origin: _CompiledCall, recorder: Recorder, index: int, values: list[Any]) -> None:
    apply, gradients, variables = origin.apply, origin.gradients, origin.variables
    many = apply is not None and apply.many
    given = (gradients, variables) if many else (gradients[0], variables[0])
    call = recorder.open_apply(index, apply, *given)  # type: ignore[arg-type]
    if call is not None:
        step = call if call.role == "step" else call.parent
        before = len(step.sites) if step is not None else 0
        recorder.close_apply(call, None, False)
        if isinstance(step, _Step):
            step.compiled += len(step.sites) - before


def _with_ids(optimizer: Any, variables: Sequence[int]) -> list[Any]:
    """The variables of a running program, by ids that the program guards, so they are alive.

    The optimizer usually knows them; if it passes them on to another optimizer, it may not.
    """
    known = {id(each): each for each in getattr(optimizer, "_trainable_variables", ())}
    if not known.keys() >= set(variables):
        known |= {id(each): each for each in instances([sys.modules["keras"].Variable])}
    return [known[variable] for variable in variables]
