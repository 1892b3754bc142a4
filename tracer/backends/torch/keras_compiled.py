"""Calls in code that `torch.compile` compiles: operators in its graphs report them.

Dynamo runs no line of a method that it traces, and what it compiles calls no method. So the traced
classes for PyTorch have methods that put operators into the graph: one where a step begins and one
where it ends, and one for each call of an apply method. An operator has the number of a
`_CompiledCall`, of what stood there when the code was compiled, and notifies the recorder when it
runs, as a method does that Python calls. All of them say that they write to one tensor: so they
keep their order, and none is left out as useless. Where Dynamo breaks a graph, each part has its
own operators.
"""

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import finalize, ref

import torch
from torch._dynamo import trace_rules

from tracer.backends.torch.compiled_steps import PROGRAM
from tracer.backends.torch.dynamo import constant, frame_around
from tracer.backends.torch.operators import BEGIN, END, MOVED, VALUES, number_for
from tracer.backends.torch.steps import drop
from tracer.core.calls import Call, known_by, outermost
from tracer.core.instances import instances
from tracer.core.recorder import Recorder
from tracer.core.registry import Binding, bindings, plain_class, traced_classes
from tracer.kinds import AUXILIARY, ApplyMethod, OptimizerKind

for _name in ("tracer.core", "tracer.hooks.interception"):
    trace_rules.add(_name)  # what is called there eagerly is not worth to be compiled


class _Gradient(NamedTuple):
    """What is known of a gradient that is a tensor in compiled code."""

    is_sparse: bool


class _CompiledCall:
    """A call of a method as it was compiled, which is notified when it runs."""

    def __init__(
        self,
        optimizer: Any,
        method: str,
        apply: ApplyMethod | None,
        gradients: tuple[_Gradient | None, ...],
        ids: tuple[int, ...],
    ) -> None:
        """`ids` are those of the variables: an older Dynamo passes no objects."""
        self.optimizer = ref(optimizer)
        self.method = method
        self.apply = apply
        self.gradients = gradients
        self.ids = ids
        self.number = number_for(self)
        self._found: list[ref[Any]] = []

    @property
    def variables(self) -> list[Any]:
        """Its variables, which its optimizer knows when it runs."""
        found = [variable() for variable in self._found]
        if len(found) != len(self.ids) or any(each is None for each in found):
            found = _with_ids(self.optimizer(), self.ids)
            self._found = [ref(variable) for variable in found]
        return found

    def begins(self, values: list[Any]) -> None:
        """A step begins to run."""
        self._notify(_enter, values)

    def ends(self, values: list[Any], skipped: Any) -> None:
        """A step has run, or an apply method."""
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
    """How many of its sites were noted here; others are calls of Python, between such code."""
    has_requests: bool
    """Whether the gradients that it was passed have been noted."""


_calls: dict[tuple[Any, ...], _CompiledCall] = {}
_applies: dict[tuple[int, str], ApplyMethod | None] = {}
"""The methods that have a traced one, by the id of their class: it is kept."""
_making = threading.Lock()
OLDEST = (2, 10)
"""The first PyTorch whose Dynamo takes ids and operators as they are made here. An older one ends
the program with an error of its own, so there nothing is put into compiled code."""
COUNTS = tuple(map(int, torch.__version__.split(".")[:2])) >= OLDEST


def members(
    base: type, kind: OptimizerKind, methods: Mapping[str, Callable[..., Any]]
) -> dict[str, Any]:
    """The traced `methods` of `base`, by name, as code that is compiled can hold them, too."""
    if not COUNTS:
        names = [*kind.step_methods, *(each.name for each in kind.apply_methods), *AUXILIARY]
        return {n: _noted(methods[n], base, n) for n in names if n in methods}
    found: dict[str, Any] = {
        name: _also_compiled(methods[name], base, name, None) for name in kind.step_methods
    }
    for apply in kind.apply_methods:
        if apply.name in methods:
            found[apply.name] = _also_compiled(methods[apply.name], base, apply.name, apply)
    # Of those that make no step only whether they are called is asked.
    return found | {n: _noted(methods[n], base, n) for n in AUXILIARY if n in methods}


def _noted(method: Callable[..., Any], base: type, name: str) -> Callable[..., Any]:
    """The `method` of `base` that is what it was in compiled code, which notes that it is called.

    That is noted as the code is compiled.
    """
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
    """What a traced optimizer says of its class: the plain one, but to Dynamo the traced one.

    Dynamo may look for methods in what `__class__` says, and would pass the traced class by.
    """
    cls = type(optimizer)
    return plain_class(cls) if torch._guards.CompileContext.try_get() is None else cls


def _also_compiled(
    method: Callable[..., Any], base: type, name: str, apply: ApplyMethod | None
) -> Callable[..., Any]:
    """The traced `method` named `name` of the class `base`, for compiled code, too."""
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

    # Dynamo limits how many programs it keeps of one code, which all methods would share.
    compiled.__code__ = compiled.__code__.replace()
    return compiled


# What Dynamo traces.


def _passed(optimizer: Any, name: str, apply: ApplyMethod | None, args: Any, kwargs: Any) -> Any:
    """The gradients and the variables that a call is passed.

    None of an `apply_gradients`: its pairs may come from an iterator, and `apply` gets them.
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
    """What they hold, once each: what compiled code writes may be in their memory only later."""
    return [getattr(variable, "_value", variable).detach() for variable in variables]


# What runs while Dynamo traces.


def _binding_of(optimizer: int, base: int) -> Binding | None:
    """That of the optimizer with this id, if its class is the traced one of this `base`.

    None for one of a class derived from it.
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
    """The number of a call, which is of objects with these ids; -1 if it is not traced."""
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
    """Note that such a method is called of the object with this id; returns 0."""
    binding = _binding_of(optimizer, base)
    if binding is not None:
        binding.recorder.optimizers.all[binding.index].called[name] += 1
    return 0


@constant
def _note_uncounted() -> int:
    """Note it for all that are traced, as an old Dynamo tells not whose step it is; returns 0."""
    here, since = torch.__version__, ".".join(map(str, OLDEST))
    for binding in list(bindings.values()):
        if binding.traced:
            binding.recorder.note(
                f"a step was compiled by torch.compile: in PyTorch {here} it is not counted, from "
                f"{since} on it is"
            )
    return 0


# What runs when the compiled code runs.


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
    """The variables of a program that runs, by their ids, which it guards: so they are alive.

    Its optimizer knows them, as a rule; one that passes them on to another may know none.
    """
    known = {id(each): each for each in getattr(optimizer, "_trainable_variables", ())}
    if not known.keys() >= set(variables):
        known |= {id(each): each for each in instances([sys.modules["keras"].Variable])}
    return [known[variable] for variable in variables]
