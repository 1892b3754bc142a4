"""What steps did to values, by their bytes: NumPy compares copies made outside."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Look = tuple[bytes | None, bool]
"""The memory of a value, None if it is empty and so cannot change; and whether it is finite."""


def of_array(array: Any) -> Look:
    """What NumPy sees of an array; one that is empty never changes."""
    copy = np.asarray(array)
    return copy.tobytes(), bool(np.isfinite(copy.astype(np.complex128)).all())


class ByBytes:
    """What is seen of named values, which `read` reads, around each step that is made."""

    def __init__(self, read: Callable[[], Mapping[str, Any]], look: Any = of_array) -> None:
        self.read, self.look = read, look
        self.compared: set[tuple[str, int]] = set()
        self.unchanged: set[tuple[str, int]] = set()
        self.not_finite: set[tuple[str, int]] = set()
        self.steps = 0

    def now(self) -> dict[str, Look]:
        return {name: self.look(value) for name, value in self.read().items()}

    def around(self, step: Callable[..., Any], *given: Any) -> Any:
        """Make one step."""
        before = self.now()
        result = step(*given)
        self.stepped(before)
        return result

    def stepped(self, before: Mapping[str, Look]) -> None:
        """One step was made since `before`."""
        self.steps += 1
        for name, (now, is_finite) in self.now().items():
            self.compared.add((name, self.steps))
            if now is not None and now == before[name][0]:
                self.unchanged.add((name, self.steps))
            if not is_finite:
                self.not_finite.add((name, self.steps))

    def agrees_with(self, trace: Any) -> None:
        """Fail where the trace says something else, of any value in any step."""
        for what in ("compared", "unchanged", "not_finite"):
            counted = trace.count(what, by=("variable", "step"))
            assert set(counted) == getattr(self, what), what
            assert set(counted.values()) <= {1}, what
