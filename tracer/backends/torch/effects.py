"""The effects of steps: copies of tensors from before each step, compared with the values after it.

An outer step is compared as a whole, as on TensorFlow (`tracer.backends.tensorflow.effects`).
PyTorch writes to tensors in place, so during a step memory holds two copies of them. Nothing here
is part of an autograd graph or writes to the program's tensors.

On the CPU, answers are there at once. On another device, the program waits for them once a step.
"""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import ref

import torch

from tracer.backends.torch import compat
from tracer.core.calls import Step
from tracer.core.counters import EffectLogs, Source, sources_of

_WHOLE = (torch.bool, *(getattr(torch, f"{u}int{n}") for n in (8, 16, 32, 64) for u in ("", "u")))
_COMPARABLE = (*_WHOLE, torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Effects(EffectLogs):
    """The effects of the steps of one root optimizer; see `EffectLogs` for the lock."""

    def __init__(self, note: Callable[[str], None]) -> None:
        """`note` is called with a text about each variable that cannot be compared."""
        super().__init__()
        self._note = note

    def hold(self, call: Step, index: int, variable: object) -> None:
        """Copy a variable before the step `call`."""
        held = call.before = call.before or {}
        if index not in held:
            held[index] = self.copy_of(tensor_of(variable)), ref(variable)

    def seen(self, call: Step, replica: int) -> Iterable[Source]:
        """What to log of a step that has ended."""
        known: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for index, (old, reference) in (call.before or {}).items():
            new = tensor_of(reference())
            # The local shard of a `DTensor` may be empty.
            is_empty = hasattr(new, "to_local") and old is not None and not old.numel()
            if not (old is None or new is None or is_empty):
                known[index] = old, _plain(new)
        # A tensor without elements cannot change.
        bits = [new.numel() > 0 and is_same(old, new) for old, new in known.values()]
        bits += [_is_not_finite(new) for _, new in known.values()]
        devices = [bit.device for bit in bits if not isinstance(bit, bool)]
        if devices:
            answers = [torch.as_tensor(bit, device=devices[0]) for bit in bits]
            bits = torch.stack(answers).tolist()
        return sources_of(tuple(known), bits)

    def copy_of(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A copy of a tensor now; None, with a note, if its bits cannot be compared."""
        if compat.is_capturing():
            self._note(
                "effects are unknown in a CUDA graph, because Python does not run when it is "
                "replayed"
            )
            return None
        plain = _plain(tensor)
        if _is_comparable(plain):
            return plain.clone()
        self._note(
            "effects are unknown for a parameter of the type "
            f"{str(tensor.dtype).removeprefix('torch.')} ({type(plain).__name__}, "
            f"{str(plain.layout).removeprefix('torch.')}, {plain.device.type}): it is not "
            "compared"
        )
        return None


def tensor_of(variable: object) -> Any:
    """The tensor of a Keras variable; a tensor itself."""
    return getattr(variable, "_value", variable)


def is_held_back(tensor: torch.Tensor) -> bool:
    """True if reading a tensor would wait for its device."""
    return bool(tensor.device.type != "cpu")


def _plain(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor detached from autograd; for a `DTensor` the local shard."""
    plain = tensor.detach()
    return plain.to_local() if hasattr(plain, "to_local") else plain


def _is_comparable(plain: torch.Tensor) -> bool:
    known = plain.dtype in _COMPARABLE or plain.is_complex()
    is_dense = type(plain) is torch.Tensor and plain.layout is torch.strided
    return known and is_dense and plain.device.type != "meta"


def is_same(before: torch.Tensor, now: torch.Tensor) -> bool | torch.Tensor:
    """True if all bits are equal; a bool, or a tensor on the device.

    As floats, NaN would differ from itself, and 0.0 would equal -0.0.
    """
    if before.shape != now.shape or before.dtype != now.dtype or not _is_comparable(now):
        return False
    flat = [each.resolve_conj().resolve_neg().reshape(-1) for each in (before.to(now.device), now)]
    old, new = (each.view(torch.uint8) for each in flat)
    return (old == new).all() if is_held_back(new) else torch.equal(old, new)


def _is_not_finite(plain: torch.Tensor) -> bool | torch.Tensor:
    """True if any element is infinite or NaN; a bool, or a tensor on the device."""
    if plain.dtype in _WHOLE or not plain.numel() or not _is_comparable(plain):
        return False
    real = torch.view_as_real(plain.resolve_conj()) if plain.is_complex() else plain
    lowest_and_highest = real.aminmax()  # NaN if any is NaN
    answer = torch.stack(list(lowest_and_highest)).isfinite().all().logical_not()
    return answer if is_held_back(plain) else bool(answer)
