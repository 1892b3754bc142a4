"""What steps did to tensors of PyTorch, by their bytes: see `by_bytes`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from support import by_bytes
from torch.utils._python_dispatch import TorchDispatchMode


def of_tensor(tensor: Any) -> by_bytes.Look:
    """The memory of a tensor, in the order of its elements."""
    plain = tensor.detach().cpu()
    memory = plain.contiguous().clone().reshape(-1).view(torch.uint8).numpy().tobytes()
    is_finite = bool(np.isfinite(plain.to(torch.complex128).numpy()).all())
    return memory if tensor.numel() else None, is_finite


class ByBytes(by_bytes.ByBytes):
    """What NumPy sees of tensors, which have names."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        tensors = dict(tensors)
        super().__init__(lambda: tensors, of_tensor)


WAITING = ("_local_scalar_dense", "equal", "is_nonzero", "nonzero", "_to_copy")
"""Operators that bring what a device has computed to the host, for which the program waits."""


class Waits(TorchDispatchMode):  # type: ignore[misc]
    """Notes the operators that wait for a device."""

    def __init__(self) -> None:
        super().__init__()
        self.called: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in WAITING:
            self.called.append(name)
        return func(*args, **(kwargs or {}))
