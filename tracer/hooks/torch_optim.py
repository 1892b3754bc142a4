"""Which optimizers of PyTorch are traced: each has a hook before and a hook after its `step`.

Nothing of an optimizer is exchanged. While one is traced, or a recording runs, `GradScaler.step` is
ours too, for it may leave out the optimizer's: that is a step that updates nothing.
"""

import inspect
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

from tracer.hooks.registry import Binding, bindings
from tracer.hooks.torch_steps import After, Watch
from tracer.recorder.torch_optim import compat

Heard = Callable[[Any], None]
"""Is called with an optimizer that is met."""


def attach(optimizer: Any, binding: Binding) -> None:
    """Give an optimizer its hooks."""
    binding.watch = Watch(optimizer, binding)
    _users.add(binding.watch.number)
    finalize(optimizer, _let_go, binding.watch.number).atexit = False
    _change_scaler()
    for hear in list(_heard):
        hear(optimizer)


def is_shell(optimizer: Any) -> bool:
    """Whether it is one around another, as that of Accelerate, whose own `step` calls no hooks."""
    return not compat.has_hooks(optimizer)


def detach(binding: Binding) -> None:
    """Take the hooks of an optimizer away."""
    watch, binding.watch = binding.watch, None
    watch.remove()
    _let_go(watch.number)


_users: set[Any] = set()
"""The optimizers with hooks, by number, and the recordings that run: what needs the `GradScaler`.

A garbage collection may take one away at any moment: each change of a set is atomic.
"""
_heard: list[Heard] = []
_lock = threading.RLock()
_changing: list[Any] = []  # what `listen` registered with PyTorch


def _let_go(user: Any) -> None:
    _users.discard(user)
    if not _users:
        _change_scaler()


def watched() -> list[Any]:
    """The optimizers that have hooks now."""
    watches = {id(each.watch): each.watch for each in list(bindings.values())}
    found = [watch.optimizer() for watch in watches.values() if watch is not None]
    return [optimizer for optimizer in found if optimizer is not None]


def listen(heard: Heard) -> None:
    """Have `heard` called with each optimizer that steps, before its first step, until `ignore`."""
    with _lock:
        if heard in _heard:
            return
        _heard.append(heard)
        _users.add(id(heard))
        if not _changing:
            _changing.append(compat.register_optimizer_step_pre_hook(_meet))
        _change_scaler()


def ignore(heard: Heard) -> None:
    """Call `heard` no more."""
    with _lock:
        if heard not in _heard:
            return
        _heard.remove(heard)
        if not _heard:
            _changing.pop().remove()
        _let_go(id(heard))


def _meet(optimizer: Any, given: Any, named: Any) -> None:
    """Some optimizer steps, while a recording runs."""
    for hook in optimizer._optimizer_step_post_hooks.values():
        if type(hook) is After:
            return
    if compat.is_compiling():
        _meet_in_program(optimizer)
    else:
        _tell(optimizer)


def _tell(optimizer: Any) -> None:
    """Tell who listens of an optimizer; a fault of the tracer is not the program's."""
    try:
        for hear in list(_heard):
            hear(optimizer)
    except Exception as error:
        text = f"{type(error).__name__}: {error}. This is a bug in tracer: please report it."
        with suppress(RuntimeWarning):  # where warnings are errors, training goes on all the same
            warnings.warn(
                f"tracer: an optimizer is not traced: {text}", RuntimeWarning, stacklevel=2
            )


@compat.eagerly
def _meet_in_program(optimizer: Any) -> None:
    """It is told now; the next time, the program is another one, and is not parted here."""
    _tell(optimizer)


# The `GradScaler`.


_original: Any = None


def _change_scaler() -> None:
    """Make the `step` of `GradScaler` ours while anybody needs that, and PyTorch's own else."""
    global _original
    with _lock:
        ours = _original is not None
        if bool(_users) == ours:
            return
        if ours:
            if vars(compat.GradScaler)["step"] is _step_of_scaler:  # else another one is around it
                compat.GradScaler.step = _original
                _original = None
        else:
            _original = vars(compat.GradScaler)["step"]
            _step_of_scaler.__doc__ = _original.__doc__
            vars(_step_of_scaler)["__signature__"] = inspect.signature(_original)
            compat.GradScaler.step = _step_of_scaler


def _step_of_scaler(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """`GradScaler.step`, which may leave out that of the optimizer."""
    original = _original or compat.GradScaler.step
    if compat.is_compiling():
        return original(self, optimizer, *args, **kwargs)
    watch = _watch_to_ask(optimizer)
    step = None if watch is None else watch.asked(self, sys._getframe())
    failed = True
    try:
        result = original(self, optimizer, *args, **kwargs)
        failed = False
        return result
    finally:
        if watch is not None and step is not None:
            watch.answered(step, optimizer, failed)


_step_of_scaler.__name__ = _step_of_scaler.__qualname__ = "step"


def _watch_to_ask(optimizer: Any) -> Watch | None:
    """What counts the steps of an optimizer, or of the one in it."""
    binding = bindings.get(id(optimizer))
    if (binding is None or binding.watch is None) and _heard and compat.is_optimizer(optimizer):
        _tell(optimizer)
        binding = bindings.get(id(optimizer))
    watch: Watch | None = None if binding is None else binding.watch
    return watch
