"""What steps did to tensors of PyTorch, by their bytes: NumPy compares copies made outside."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch


def bytes_of(tensor: Any) -> bytes:
    """The memory of a tensor, in the order of its elements."""
    plain = tensor.detach().cpu().contiguous().clone()
    return bytes(plain.reshape(-1).view(torch.uint8).numpy().tobytes())


def is_finite(tensor: Any) -> bool:
    """Whether NumPy finds no element that is infinite or NaN."""
    return bool(np.isfinite(tensor.detach().cpu().to(torch.complex128).numpy()).all())


class ByBytes:
    """What NumPy sees of tensors, which have names, around each step that is made."""

    def __init__(self, tensors: Mapping[str, Any]) -> None:
        self.tensors = dict(tensors)
        self.compared: set[tuple[str, int]] = set()
        self.unchanged: set[tuple[str, int]] = set()
        self.not_finite: set[tuple[str, int]] = set()
        self.steps = 0

    def around(self, step: Callable[[], Any]) -> Any:
        """Make one step."""
        before = {name: bytes_of(each) for name, each in self.tensors.items()}
        result = step()
        self.steps += 1
        for name, each in self.tensors.items():
            self.compared.add((name, self.steps))
            if each.numel() and before[name] == bytes_of(each):  # what is empty cannot change
                self.unchanged.add((name, self.steps))
            if not is_finite(each):
                self.not_finite.add((name, self.steps))
        return result

    def agrees_with(self, trace: Any) -> None:
        """Fail where the trace says something else, of any tensor in any step."""
        for what in ("compared", "unchanged", "not_finite"):
            counted = trace.count(what, by=("variable", "step"))
            assert set(counted) == getattr(self, what), what
            assert set(counted.values()) <= {1}, what
