"""Small optimizers that do what the samples on the web do, to see what such an optimizer does.

They are written anew, and as small as can be: what they share with the samples is the method that
they override, its signature, and what it assigns to.
"""

from typing import Any

import tensorflow as tf
from custom import CUSTOM, RATE, Body, Legacy, nothing
from measuring import OPTIMIZERS

DECAY = 0.5
LegacyBase: Any = OPTIMIZERS["legacy"].Optimizer


class NoUnderscore(LegacyBase):  # type: ignore[misc]
    """Overrides the methods by the names that TensorFlow's documentation once gave."""

    def __init__(self, body: Body = nothing) -> None:
        super().__init__("NoUnderscore")
        self.body = body

    def resource_apply_dense(self, grad: Any, var: Any) -> Any:
        self.body()
        return var.assign_sub(RATE * grad)

    def resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        self.body()
        return var.scatter_sub(tf.IndexedSlices(RATE * grad, indices))

    def create_slots(self, var_list: Any) -> None:
        self.body()


class OneHyper(LegacyBase):  # type: ignore[misc]
    """Has one hyperparameter, set and read as legacy optimizers do."""

    def __init__(self, value: Any = RATE, name: str = "OneHyper") -> None:
        super().__init__(name)
        self._set_hyper("value", value)

    def _resource_apply_dense(self, grad: Any, var: Any) -> Any:
        return var.assign_sub(self._get_hyper("value", tf.float32) * grad)


class Decorated(LegacyBase):  # type: ignore[misc]
    """Its apply methods are `tf.function`s that return nothing; the sparse one takes no indices."""

    def __init__(self, body: Body = nothing) -> None:
        super().__init__("Decorated")
        self.body = body

    @tf.function  # type: ignore[untyped-decorator]
    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        self.body()
        var.assign_sub(RATE * grad)

    @tf.function  # type: ignore[untyped-decorator]
    def _resource_apply_sparse(self, grad: Any, var: Any) -> None:
        var.assign_sub(RATE * grad)


class Momentum(LegacyBase):  # type: ignore[misc]
    """Keeps a decaying sum of the gradients in a slot."""

    def __init__(self) -> None:
        super().__init__("Momentum")

    def _create_slots(self, var_list: Any) -> None:
        for variable in var_list:
            self.add_slot(variable, "sum")

    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        slot = self.get_slot(var, "sum")
        slot.assign(DECAY * slot + grad)
        var.assign_sub(RATE * slot)


class Decaying(LegacyBase):  # type: ignore[misc]
    """Counts its own steps, in a variable that the apply method moves on; returns nothing."""

    def __init__(self, exponent: Any = tf.float32) -> None:
        super().__init__("Decaying")
        self.counter = tf.Variable(0, dtype=tf.int64, trainable=False)
        self.exponent = exponent

    @tf.function  # type: ignore[untyped-decorator]
    def _resource_apply_dense(self, grad: Any, var: Any) -> None:
        self.counter.assign_add(1)
        rate = tf.pow(tf.constant(DECAY), tf.cast(self.counter, self.exponent))
        var.assign_sub(rate * grad)


class Sparse(LegacyBase):  # type: ignore[misc]
    """Remembers how many indices its sparse method gets."""

    def __init__(self) -> None:
        super().__init__("Sparse")
        self.indices = 0

    def _resource_apply_sparse(self, grad: Any, var: Any, indices: Any) -> Any:
        self.indices = len(indices)
        return var.scatter_sub(tf.IndexedSlices(RATE * grad, indices))


class SparseWithRepeats(LegacyBase):  # type: ignore[misc]
    """Remembers how many indices the outer one of its sparse methods gets."""

    def __init__(self) -> None:
        super().__init__("SparseWithRepeats")
        self.indices = 0

    def _resource_apply_sparse_duplicate_indices(
        self, grad: Any, var: Any, indices: Any, apply_state: Any = None
    ) -> Any:
        self.indices = len(indices)
        return var.scatter_sub(tf.IndexedSlices(RATE * grad, indices))


def with_hyper(kind: str) -> Any:
    """An optimizer that sets a hyperparameter as legacy ones do, made from the base of `kind`."""
    base: Any = OPTIMIZERS[kind].Optimizer

    class Hyper(base):  # type: ignore[misc]
        def __init__(self, name: str = "Hyper") -> None:
            super().__init__(name)
            self._set_hyper("rate", RATE)

    return Hyper()


def only_dense(kind: str) -> Any:
    """An optimizer of `kind`, made as it must be, that has `_resource_apply_dense` alone."""
    base: Any = CUSTOM[kind]

    class OnlyDense(base):  # type: ignore[misc]
        update_step = getattr(
            OPTIMIZERS[kind].Optimizer, "update_step", None
        )  # as if not overridden
        _resource_apply_dense = Legacy._resource_apply_dense

    return OnlyDense()
