"""The four kinds of optimizer, as data: how to know one and what to intercept. No TensorFlow.

An optimizer is matched by the names of the classes in its MRO, so that no Keras is imported that
the user did not import. The names are those of TensorFlow 2.21 (`training/optimizer.py`,
`keras/optimizer_v2/optimizer_v2.py`), tf_keras 2.21 (`optimizers/optimizer.py`,
`optimizers/legacy/optimizer_v2.py`) and Keras 3.15 (`optimizers/base_optimizer.py`).
"""

import re
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ApplyMethod:
    """A method that updates one variable with one gradient."""

    name: str
    kind: Literal["dense", "sparse"] | None
    """What its gradients are; None where the gradient itself must be asked."""
    variable: int = 1
    """The position of the variable among the arguments, after `self`; the gradient's is 0."""


@dataclass(frozen=True)
class OptimizerKind:
    """A family of optimizers with one base class and one set of methods."""

    name: str
    base: str
    """The name of the base class."""
    module: re.Pattern[str]
    """What the name of the base class's module is."""
    step_methods: tuple[str, ...]
    """The methods of which one outermost execution is a step."""
    group_methods: tuple[str, ...]
    """The methods in which the apply methods are called one after the other. They are not counted;
    they gather what one branch of a graph holds when the branch is inside a step method."""
    apply_methods: tuple[ApplyMethod, ...]


_RESOURCE_METHODS = (
    ApplyMethod("_resource_apply_dense", "dense"),
    ApplyMethod("_resource_apply_sparse", "sparse"),
    ApplyMethod("_resource_apply_sparse_duplicate_indices", "sparse"),
)

KINDS = (
    OptimizerKind(
        "legacy",
        "OptimizerV2",
        re.compile(r"(tf_keras|keras|tensorflow\.python\.keras)\..*optimizer_v2"),
        ("apply_gradients",),
        ("_distributed_apply",),
        _RESOURCE_METHODS,
    ),
    OptimizerKind(
        "keras2",
        "_BaseOptimizer",
        re.compile(r"(tf_keras|keras)(\.src)?\.optimizers\.(optimizer|optimizer_experimental\..*)"),
        ("apply_gradients",),
        ("_distributed_apply_gradients_fn",),
        (ApplyMethod("update_step", None),),
    ),
    OptimizerKind(
        "keras3",
        "BaseOptimizer",
        re.compile(r"keras\.src\.optimizers\.base_optimizer"),
        ("apply_gradients", "apply"),
        ("_distributed_tf_update_step",),
        (ApplyMethod("update_step", None),),
    ),
    OptimizerKind(
        "v1",
        "Optimizer",
        re.compile(r"tensorflow\.python\.training\.optimizer"),
        ("apply_gradients",),
        ("_distributed_apply",),
        (
            ApplyMethod("_apply_dense", "dense"),
            ApplyMethod("_apply_sparse", "sparse"),
            ApplyMethod("_apply_sparse_duplicate_indices", "sparse"),
            *_RESOURCE_METHODS,
        ),
    ),
)


def kind_of(cls: type) -> OptimizerKind | None:
    """The kind of an optimizer's class, or None if it is no optimizer that `tracer` knows.

    >>> kind_of(dict) is None
    True
    """
    for base in cls.__mro__:
        for kind in KINDS:
            if base.__name__ == kind.base and kind.module.fullmatch(base.__module__):
                return kind
    return None
