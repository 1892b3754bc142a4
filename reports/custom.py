"""A custom optimizer of each kind, as small as it can be, that tells when its Python body runs."""

from collections.abc import Callable
from typing import Any

from measuring import OPTIMIZERS

RATE = 0.01
Body = Callable[[], object]


def nothing() -> None:
    """For those that do not ask."""
    return None  # AutoGraph cannot convert a body that is a docstring only


class Ticks:
    """A body that counts how often it ran since it was read last."""

    def __init__(self) -> None:
        self.number = 0

    def __call__(self) -> None:
        self.number += 1

    def read(self) -> int:
        """The number of runs since the last reading."""
        number, self.number = self.number, 0
        return number


class Legacy(OPTIMIZERS["legacy"].Optimizer):  # type: ignore[misc]
    """Gradient descent for dense gradients."""

    def __init__(self, body: Body = nothing) -> None:
        super().__init__("Legacy")
        self.body = body

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        self.body()
        return var.assign_sub(RATE * grad)


class Keras2(OPTIMIZERS["keras2"].Optimizer):  # type: ignore[misc]
    """Gradient descent for dense gradients."""

    def __init__(self, body: Body = nothing) -> None:
        super().__init__("Keras2", jit_compile=False)
        self._learning_rate = self._build_learning_rate(RATE)
        self.body = body

    def update_step(self, gradient: Any, variable: Any) -> None:
        self.body()
        variable.assign_sub(RATE * gradient)


class Keras3(OPTIMIZERS["keras3"].Optimizer):  # type: ignore[misc]
    """Gradient descent for dense gradients."""

    def __init__(self, body: Body = nothing) -> None:
        super().__init__(learning_rate=RATE)
        self.body = body

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        self.body()
        variable.assign_sub(RATE * gradient)


class V1(OPTIMIZERS["v1"].Optimizer):  # type: ignore[misc]
    """Gradient descent for dense gradients."""

    def __init__(self, body: Body = nothing) -> None:
        super().__init__(use_locking=False, name="V1")
        self.body = body

    def _resource_apply_dense(self, grad: Any, handle: Any) -> Any:
        self.body()
        return handle.assign_sub(RATE * grad)


CUSTOM: dict[str, Any] = {"legacy": Legacy, "keras2": Keras2, "keras3": Keras3, "v1": V1}
