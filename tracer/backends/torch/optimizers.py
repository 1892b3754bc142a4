"""Which optimizers of PyTorch are traced: each has a hook before and a hook after its `step`.

Nothing of an optimizer is exchanged. While one is traced, or a recording runs, `GradScaler.step` is
ours too, for it may leave out the optimizer's: that is a step that updates nothing.
"""

import functools
import sys
import threading
import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from weakref import finalize

from tracer.backends.torch import compat, dynamo
from tracer.backends.torch.hooks import After, found_inf, handed_to
from tracer.backends.torch.operators import END, MOVED
from tracer.backends.torch.programs import Handed, Program, ask
from tracer.backends.torch.steps import Watch
from tracer.core.instances import instances
from tracer.core.interrupts import interrupt_in
from tracer.core.registry import Binding, bindings

Heard = Callable[[Any], None]
"""Is called with an optimizer that is met."""


def attach(optimizer: Any, binding: Binding) -> None:
    """Give an optimizer its hooks."""
    known = binding.former  # its hooks are those that programs were compiled for
    if known is None or known.recorder is not binding.recorder:
        known = binding.former = Watch(binding)
        finalize(optimizer, _let_go, known.number).atexit = False
    binding.watch = known
    known.attach(optimizer)
    _users.add(known.number)
    _change_scaler()
    for hear in list(_heard):
        hear(optimizer)


def is_shell(optimizer: Any) -> bool:
    """Whether it is one around another, as that of Accelerate, whose own `step` calls no hooks."""
    return not compat.has_hooks(optimizer)


def detach(binding: Binding) -> None:
    """Take the hooks of an optimizer away."""
    watch = binding.watch
    for each in (*watch.shells, watch.binding):
        each.watch = None
    watch.remove()
    _let_go(watch.number)


_users: set[Any] = set()
"""The optimizers with hooks, by number, and the recordings that run: what needs the `GradScaler`.

A garbage collection may take one away at any moment: each change of a set is atomic.
"""
_heard: list[Heard] = []
_lock = threading.RLock()
_meeting = threading.RLock()
_being_met: set[int] = set()
"""By `id`, the optimizer of which somebody is told, if any: what it counts is not settled yet."""


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
        if len(_heard) == 1:
            for place, hooks in zip(_places, compat.global_hooks, strict=True):
                place.put_in(hooks)
        _change_scaler()


def ignore(heard: Heard) -> None:
    """Call `heard` no more."""
    with _lock:
        if heard not in _heard:
            return
        _heard.remove(heard)
        if not _heard:
            for place, hooks in zip(_places, compat.global_hooks, strict=True):
                place.take_out(hooks)
        _let_go(id(heard))


def _meet(optimizer: Any, given: Any, named: Any) -> None:
    """Some optimizer steps, while a recording runs."""
    if _has_hooks(optimizer):
        if not dynamo.is_compiling():
            _wait_until_met(optimizer)
    elif not dynamo.is_compiling():
        _tell(optimizer)
    elif _is_lone(id(optimizer)):
        _begins.handed = None
        if len(given) == 1 and not named and not optimizer._optimizer_step_pre_hooks:
            _begins.handed = handed_to(optimizer)
        _mark()
    else:
        _meet_in_program(optimizer)


def _met(optimizer: Any, given: Any, named: Any) -> None:
    """It has stepped; in a program, which tells of itself when it runs, it has no hooks yet."""
    if not dynamo.is_compiling() or _has_hooks(optimizer):
        return
    if _is_lone(id(optimizer)):
        handed = _begins.handed
        if handed is None:
            handed = handed_to(optimizer)
        skipped = found_inf(optimizer)
        END(MOVED, _program_of(id(optimizer), handed), [], skipped)


def _has_hooks(optimizer: Any) -> bool:
    # Another thread may change them: the list is made in one instruction. A loop is for Dynamo.
    for hook in list(optimizer._optimizer_step_post_hooks.values()):  # noqa: SIM110
        if type(hook) is After:
            return True
    return False


_places = compat.HookPlace(_meet), compat.HookPlace(_met)


class _Begins:
    """A step that is compiled begins, of an optimizer without hooks."""

    handed: Handed | None = None
    """See `tracer.backends.torch.hooks.Before`."""
    mark: dynamo.Mark | None = None


_begins = _Begins()


@dynamo.constant
def _is_lone(number: int) -> bool:
    """Whether no step is called inside of those of the optimizer with this `id`."""
    optimizer = _with_id(number)
    lone = compat.steps_with_hooks(type(optimizer)) == 1
    return lone and not compat.holds_optimizer(optimizer)


@dynamo.constant
def _program_of(number: int, handed: Handed) -> int:
    return Program(_with_id(number), handed, _begins.mark).number


@dynamo.constant
def _mark() -> int:
    _begins.mark = dynamo.mark()
    return 0


def _with_id(number: int) -> Any:
    """The optimizer with this `id`, by which alone it is handed over while Dynamo traces."""
    return next(each for each in instances([compat.Optimizer]) if id(each) == number)


@dynamo.left_alone
def _tell(optimizer: Any) -> None:
    """Tell who listens of an optimizer; a fault of the tracer is not the program's."""
    try:
        with _meeting:
            _being_met.add(id(optimizer))
            try:
                for hear in list(_heard):
                    hear(optimizer)
            finally:
                _being_met.discard(id(optimizer))
    except Exception as error:
        if interrupt_in(error) is not None:
            raise
        text = f"{type(error).__name__}: {error}. This is a bug in tracer: please report it."
        with suppress(RuntimeWarning):  # where warnings are errors, training goes on all the same
            warnings.warn(
                f"tracer: an optimizer is not traced: {text}", RuntimeWarning, stacklevel=2
            )


def _wait_until_met(optimizer: Any) -> None:
    """Wait for another thread that gave an optimizer its hooks and still tells of it.

    A recording notes then what was counted before: a step that another thread took between would
    be a part of that.
    """
    if id(optimizer) in _being_met:
        with _meeting:
            pass


@dynamo.eagerly
def _meet_in_program(optimizer: Any) -> None:
    """It is told now; the next time, the program is another one, with hooks."""
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
            functools.update_wrapper(_step_of_scaler, _original)
            compat.GradScaler.step = _step_of_scaler


@dynamo.without_dynamo
def _step_of_scaler(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """`GradScaler.step`, which may leave out that of the optimizer."""
    original = _original or compat.GradScaler.step
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


def _watch_to_ask(optimizer: Any) -> Watch | None:
    """What counts the steps of an optimizer, or of the one in it."""
    binding = bindings.get(id(optimizer))
    if (binding is None or binding.watch is None) and _heard and compat.is_optimizer(optimizer):
        _tell(optimizer)
        binding = bindings.get(id(optimizer))
    _wait_until_met(optimizer)
    watch: Watch | None = None if binding is None else binding.watch
    return watch


ask(_watch_to_ask)
