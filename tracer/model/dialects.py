"""Defines the terms of each framework and of each kind of optimizer, and the advice for them.

`TraceData.library` has the key of an optimizer's dialect; code that reads a trace uses its words
and asks for no framework. A new backend adds one entry to `DIALECTS`.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tracer.kinds import OPTAX, TORCH


@dataclass(frozen=True)
class Dialect:
    """The terms of a framework; the defaults are TensorFlow's."""

    framework: str = "TensorFlow"
    """The framework, or the library with its own optimizers."""
    variable: str = "variable"
    """What an optimizer updates."""
    separator: str = "/"
    """The separator of the parts of a variable's name."""
    program: str = "graph"
    """What a function is traced to."""
    traces_twice: bool = True
    """True if a function that makes variables is traced twice, and its first graph never runs."""
    step_method: str = "apply_gradients"
    """The method that takes the gradients."""
    apply_methods: bool = True
    """True if a method executes each update; False if a step makes all updates."""
    text: Mapping[str, str] = field(default_factory=dict)
    """Advice and phrases that replace a rule's own, by the rule's code; `question`, of a report;
    `made`, what a step did with an update; `find-nan`, what stops the program at the first one."""

    def advice(self, code: str, default: str = "") -> str:
        """The advice for a rule, or a case of it (`code:case`); `default` if there is none.

        >>> DIALECTS["jax"].advice("retraced:no such case", "as always")
        'as always'
        """
        return self.text.get(code, default)


_TENSORFLOW = Dialect(
    text={
        "loss-not-scaled:where": ", inside the GradientTape",
        "find-nan": "tf.debugging.enable_check_numerics()",
    }
)

_TAKEN_AWAY = "Look for what drops gradients in the optimizer's own {}, and for skipped steps."

_JAX = Dialect(
    framework="Keras on JAX",
    program="program",
    traces_twice=False,
    step_method="stateless_apply",
    text={
        "find-nan": 'jax.config.update("jax_debug_nans", True)',
        "no-gradient": (
            "The program itself passes None: jax.grad gives 0 for a weight on which the loss does "
            "not depend. Look at the code that makes the list of gradients, or take the variable "
            "out of it."
        ),
        "never-updated": _TAKEN_AWAY.format("stateless_apply"),
        "retraced:roughly": " or so",  # the number of steps known while tracing
        "retraced": (
            "Make the jitted function once, outside the loop: a lambda, partial or method that is "
            "made in it is a new function each time. Give each batch the same shape: leave out the "
            "smaller last one, or pad it. Pass numbers as arrays of one type, not as static "
            "arguments. Over several devices, put the state that init makes on the mesh "
            "(jax.device_put) before the first step."
        ),
    },
)

_OPTAX = replace(
    _JAX,
    framework="optax",
    variable="parameter",
    step_method="update",
    apply_methods=False,
    text={
        **_JAX.text,
        "question": "How often did update run, and what did it compute?",
        "made": "computed",
        "never-updated": "Look for what the transformation returns instead of an update, as None.",
        "gradients-left": (
            "Choose a number of batches that every_k_schedule divides: the state keeps the rest, "
            "and nothing applies it at the end."
        ),
    },
)

_KERAS_ON_TORCH = Dialect(
    framework="Keras on PyTorch",
    program="program",
    step_method="apply",
    text={
        "find-nan": "torch.autograd.detect_anomaly()",
        "no-gradient": (
            "Find what cuts the parameter from the loss (detach, torch.no_grad, a comparison, "
            "argmax, an unused output, a missing backward), or set its requires_grad to False. If "
            "the model or a layer was made again, the optimizer has the old parameters: make the "
            "optimizer last."
        ),
        "never-updated": _TAKEN_AWAY.format("apply"),
    },
)

_TORCH = replace(
    _KERAS_ON_TORCH,
    framework="torch.optim",
    variable="parameter",
    separator=".",
    step_method="step",
    apply_methods=False,
    text={
        **_KERAS_ON_TORCH.text,
        "question": "How often did step run, and what did it update?",
        "never-updated": _TAKEN_AWAY.format("step"),
        "updates-stopped:missing": (
            "Look for what changed at that step: a branch that is no longer taken, a detach, a "
            "layer whose output is no longer used. Or the model has new parameters, as after "
            "load_state_dict(assign=True): make the optimizer again for them."
        ),
        "updates-stopped:missing why": "no gradient came since then",
        "updates-stopped:nothing": (
            "Nothing to do if you froze it. Otherwise look at requires_grad and at the parameter "
            "groups."
        ),
        "updates-stopped:nothing why": "no longer a parameter that requires a gradient",
        "updated-twice": (
            "Look for a step of the optimizer's own class that calls the inherited one twice."
        ),
        "optimizer-renewed": (
            "Nothing to do if each is meant to start from zero, as for each task in continual "
            "learning. Otherwise make the optimizer once, before the loop, or load the state of "
            "the previous one (load_state_dict); to change the rate, use a scheduler or set "
            "group['lr']."
        ),
        "never-passed": (
            "Make the optimizer after the model, and pass it all parameters that should learn, "
            "also those that are frozen at first. Keep layers in torch.nn.ModuleList or "
            "ModuleDict: a plain list hides them from model.parameters(). For what should not "
            "learn, set requires_grad to False, which saves its gradients."
        ),
        "gradients-left": (
            "Step once more after the last batch, or choose a number of batches that the size of "
            "a group divides."
        ),
        "never-passed:list": (
            "Keep layers in torch.nn.ModuleList or ModuleDict: a plain list or dict hides them "
            "from model.parameters()."
        ),
        "never-passed:when": (
            "got gradients, but no optimizer has {them}: nothing updates {them}{made}"
        ),
        "frozen-but-updated": (
            "Set the gradient to None where you freeze: parameter.grad = None, or "
            "optimizer.zero_grad() without set_to_none=False."
        ),
        "frozen-but-updated:when": (
            "{were} frozen (requires_grad = False) but kept {their} gradient, so the steps{of} "
            "still update {them}: momentum and weight decay do so even with a gradient of 0"
        ),
    },
)

DIALECTS: Mapping[str, Dialect] = {
    "tensorflow": _TENSORFLOW,
    "jax": _JAX,
    "torch": _KERAS_ON_TORCH,
    TORCH + ".optim": _TORCH,
    OPTAX: _OPTAX,
}
"""By library: see `TraceData.library`."""


@dataclass(frozen=True)
class KindWords:
    """The terms for a kind of optimizer, and for its methods."""

    brand: str
    """`Keras 3`; `{keras2}` is the program's name for Keras 2."""
    optimizer: str = ""
    """`a Keras 3 optimizer`."""
    calls: str = ""
    """The caller of the apply methods, with the verb."""
    assign: str = ""
    """How an apply method assigns to its variable."""


KIND_WORDS: Mapping[str, KindWords] = defaultdict(
    lambda: KindWords("", "an optimizer", "its base class calls", "its base class"),
    {
        "legacy": KindWords(
            "{keras2} legacy",
            "a legacy Keras optimizer",
            "a legacy optimizer of Keras calls",
            "`return var.assign_sub(...)`",
        ),
        "keras2": KindWords(
            "{keras2}",
            "a Keras 2 optimizer",
            "Keras 2.11 and later calls",
            "`variable.assign_sub(self.learning_rate * gradient)`",
        ),
        "keras3": KindWords(
            "Keras 3",
            "a Keras 3 optimizer",
            "Keras 3 calls",
            "`self.assign_sub(variable, learning_rate * gradient)`",
        ),
        "v1": KindWords(
            "tf.compat.v1",
            "a tf.compat.v1 optimizer",
            "tf.compat.v1 calls",
            "`return var.assign_sub(...)`",
        ),
        TORCH: KindWords("torch.optim"),
    },
)
"""The terms of each kind; for an unknown kind in a trace file, general terms."""
