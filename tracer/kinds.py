"""The kinds of optimizer, as data: how to recognize one and what to intercept. No TensorFlow.

An optimizer is recognized by the names of the classes in its MRO, so no Keras is imported that the
user did not import. The names are those of TensorFlow 2.21 (`training/optimizer.py`,
`keras/optimizer_v2/optimizer_v2.py`), tf_keras 2.21 (`optimizers/optimizer.py`,
`optimizers/legacy/optimizer_v2.py`) and Keras 3.15 (`optimizers/base_optimizer.py`).
"""

from dataclasses import dataclass
from typing import Literal

FRAMEWORKS = ("jax", "keras", "optax", "tensorflow", "tf_keras", "torch")
"""Packages that call optimizers and are not part of the program."""
SHIPPED = ("builtins", "abc", "typing", *FRAMEWORKS)
"""Packages whose classes are not the program's."""


@dataclass(frozen=True)
class ApplyMethod:
    """A method that updates one variable with one gradient, its first arguments after `self`."""

    name: str
    kind: Literal["dense", "sparse"] | None
    """The kind of its gradients; None if it depends on each gradient."""
    many: bool = False
    """Whether it updates many variables at once, from sequences of gradients and variables."""


@dataclass(frozen=True, eq=False)
class OptimizerKind:
    """A family of optimizers with one base class and one set of methods."""

    name: str
    base: str
    """The name of the base class."""
    homes: tuple[str, ...]
    """The modules that define it, in different versions of TensorFlow and Keras."""
    step_methods: tuple[str, ...]
    """The methods whose outermost execution is a step."""
    group_methods: tuple[str, ...]
    """The methods that call the apply methods one after the other. They are not counted; they
    gather the calls that one branch of a graph contains when the branch is inside a step method.
    """
    apply_methods: tuple[ApplyMethod, ...]
    backend: str = "tensorflow"
    """A name in `backends.backend_list.BACKENDS`; or `keras`, for the backend of Keras."""
    on: str = ""
    """The name of another class that must be among the bases; empty for none."""


TORCH = "torch"
"""The kind of PyTorch's own optimizers, whose steps are counted by hooks."""
OPTAX = "optax"
"""The kind of optax transformations, which are copied to be traced."""
AT_ONCE = (TORCH, OPTAX)
"""The kinds whose step makes all updates itself, without a method for each."""

_RESOURCE_METHODS = (
    ApplyMethod("_resource_apply_dense", "dense"),
    ApplyMethod("_resource_apply_sparse", "sparse"),
    ApplyMethod("_resource_apply_sparse_duplicate_indices", "sparse"),
)

WRAPPABLE = (
    "a TensorFlow optimizer (of keras.optimizers, tf_keras.optimizers, "
    "tf_keras.optimizers.legacy or tf.compat.v1.train), one of torch.optim, or a transformation of "
    "optax"
)
"""What `wrap` takes, for people."""

KINDS = (
    OptimizerKind(
        "legacy",
        "OptimizerV2",
        (
            "tf_keras.src.optimizers.legacy.optimizer_v2",
            "keras.src.optimizers.legacy.optimizer_v2",  # 2.13 to 2.15
            "keras.optimizers.legacy.optimizer_v2",  # 2.11 and 2.12
            "keras.optimizers.optimizer_v2.optimizer_v2",
            "tensorflow.python.keras.optimizer_v2.optimizer_v2",
        ),
        ("apply_gradients",),
        ("_distributed_apply",),
        _RESOURCE_METHODS,
    ),
    OptimizerKind(
        "keras2",
        "_BaseOptimizer",
        (
            "tf_keras.src.optimizers.optimizer",
            "keras.src.optimizers.optimizer",  # 2.13 to 2.15
            "keras.optimizers.optimizer_experimental.optimizer",  # 2.11 and 2.12
        ),
        ("apply_gradients",),
        ("_distributed_apply_gradients_fn",),
        (ApplyMethod("update_step", None),),
    ),
    OptimizerKind(  # on JAX, where programs get the optimizer's state and return a new one
        "keras3",
        "BaseOptimizer",
        ("keras.src.optimizers.base_optimizer",),
        ("apply_gradients", "apply", "stateless_apply"),
        ("_backend_apply_gradients",),
        (ApplyMethod("update_step", None),),
        backend="keras",
        on="JaxOptimizer",
    ),
    OptimizerKind(
        "keras3",
        "BaseOptimizer",
        ("keras.src.optimizers.base_optimizer",),
        ("apply_gradients", "apply"),
        ("_distributed_tf_update_step",),
        (
            ApplyMethod("update_step", None),
            # Optimizers that Keras defines for PyTorch (`backend/torch/optimizers`) call this one
            # instead of `update_step`; optimizers of the program call `update_step` there too.
            ApplyMethod("_parallel_update_step", None, many=True),
        ),
        backend="keras",
    ),
    OptimizerKind(
        "v1",
        "Optimizer",
        ("tensorflow.python.training.optimizer",),
        ("apply_gradients",),
        ("_distributed_apply",),
        (
            ApplyMethod("_apply_dense", "dense"),
            ApplyMethod("_apply_sparse", "sparse"),
            ApplyMethod("_apply_sparse_duplicate_indices", "sparse"),
            *_RESOURCE_METHODS,
        ),
    ),
    OptimizerKind(
        TORCH,
        "Optimizer",
        ("torch.optim.optimizer",),
        ("step", "GradScaler.step"),
        (),
        (ApplyMethod("update", None),),  # not a method: the work of `step` on one parameter
        backend="torch_optim",
    ),
    *(
        OptimizerKind(
            OPTAX,
            base,
            homes,
            ("update",),
            (),
            (ApplyMethod("leaf update", None),),  # not a method: one leaf of the result of `update`
            backend="optax",
        )
        for base, homes in (
            ("TracedUpdate", ("tracer.backends.optax.updates",)),  # what is traced, of the others
            ("GradientTransformation", ("optax._src.base",)),
            ("MultiSteps", ("optax.transforms._accumulation", "optax._src.wrappers")),
        )
    ),
)


SETTINGS = (
    "built",
    "clipnorm",
    "clipvalue",
    "dynamic",
    "dynamic_growth_steps",
    "ema_overwrite_frequency",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "initial_scale",
    "jit_compile",
    "loss_scale_factor",
    "use_ema",
)
"""Plain attributes, perhaps with a leading `_`, that affect the counts of an optimizer."""

AUXILIARY = (
    "finalize_variable_values",
    "get_scaled_loss",
    "get_unscaled_gradients",
    "scale_loss",
)
"""Methods that make no step, but whose calls are counted for findings: on an optimizer that `fit`
never used (`fit` calls `finalize_variable_values` at its end), and on loss scales that were not
applied.
"""

BY_BASE = {kind.base: tuple(each for each in KINDS if each.base == kind.base) for kind in KINDS}
"""The kinds by the name of their base class."""

MAKERS = (
    *dict.fromkeys(
        (home, kind.base) for kind in KINDS if kind.name not in AT_ONCE for home in kind.homes
    ),
    # The loss scale of tf_keras calls this __init__ instead of its optimizer base class's.
    ("tensorflow.python.trackable.base_delegate", "DelegatingTrackableMixin"),
)
"""Classes, as (module, name); one of their `__init__` runs whenever an optimizer is made."""

LOSS_SCALES = (
    ("keras.src.optimizers.loss_scale_optimizer", "LossScaleOptimizer"),
    ("tf_keras.src.mixed_precision.loss_scale_optimizer", "LossScaleOptimizer"),
    ("tf_keras.src.mixed_precision.loss_scale_optimizer", "LossScaleOptimizerV3"),
    ("keras.src.mixed_precision.loss_scale_optimizer", "LossScaleOptimizer"),  # 2.15
    ("keras.src.mixed_precision.loss_scale_optimizer", "LossScaleOptimizerV3"),
    (
        "tensorflow.python.training.experimental.loss_scale_optimizer",
        "MixedPrecisionLossScaleOptimizer",
    ),
)
"""Classes, as (module, name), of optimizers that skip steps of the one optimizer in them."""


def kind_of(cls: type) -> OptimizerKind | None:
    """The kind of an optimizer's class, or None if `tracer` does not support the class.

    >>> kind_of(dict) is None
    True
    """
    for base in cls.__mro__:
        for kind in BY_BASE.get(base.__name__, ()):
            is_on = not kind.on or any(other.__name__ == kind.on for other in cls.__mro__)
            if base.__module__ in kind.homes and is_on:
                return kind
    return None
