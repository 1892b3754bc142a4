"""Rules on what raised: a step, or the program before its first one."""

import re
from collections.abc import Iterator

from tracer.findings.rule import Case, names_in_short, of_optimizer, rule
from tracer.model.labels import class_of
from tracer.model.records import Failure
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.wording import plural

_IDENTIFIER = re.compile(
    r"Could not interpret optimizer identifier: "
    r"<(class ')?(([a-zA-Z_0-9]+)[\w.]*)\.(\w+)(?:'| object at)"
)
_LIBRARIES = {"keras": "Keras 3", "tf_keras": "tf_keras"}
MAX_ERROR = 200  # characters, where a recorder cuts what was said
_REPORTED_BY_CLASS_RULES = ("override-unreached", "wrong-signature", "sparse-missing", "no-result")


@rule(
    "keras-mixed",
    severity="error",
    title="a model of one Keras was given an optimizer of the other",
    why=(
        "Keras 3 (`keras`, and `tf.keras` since TensorFlow 2.16) and Keras 2 (`tf_keras`) are two "
        "libraries: neither knows the layers and optimizers of the other."
    ),
    advice="Take model and optimizer from one Keras.",
    explanation=(
        "Found in the error that ended a program under `tracer run`: `Could not interpret "
        "optimizer identifier`, with an object whose class the other Keras defines. Also found is "
        "an optimizer's class that was not called. `TF_USE_LEGACY_KERAS=1`, set before TensorFlow "
        "is imported, makes `tf.keras` mean tf_keras; it changes nothing for `import keras`."
    ),
    whole=True,
)
def keras_mixed(trace: Trace) -> Iterator[Case]:
    """`compile` could not take the optimizer that it was given."""
    errors = dict.fromkeys(program.error for program in trace.programs)
    for found in filter(None, map(_IDENTIFIER.search, errors)):
        is_class, home, library, name = found.groups()
        if is_class:
            text, advice = f"the class {name}, and takes an optimizer", f"Call it: {name}(...)."
            yield Case(f"compile was given {text}.", advice)
        elif library in _LIBRARIES:
            (other,) = _LIBRARIES.keys() - {library}
            yield Case(
                f"A model of {_LIBRARIES[other]} was given an optimizer of {_LIBRARIES[library]}, "
                f"{name} of {home}.",
                f"Take both from one: {other}.optimizers.{name} for this model, or build the "
                f"model with {library}.",
            )
        else:
            yield Case(
                f"compile was given {name} of {home}, which is no optimizer of its Keras.",
                "Derive it from the optimizer of the Keras that the model is of, or from no other.",
            )


@rule(
    "apply-raised",
    severity="error",
    title="a step raised",
    why="The step that raised, and those that would have come after it, did not update anything.",
    advice="Mend what the error says.",
    explanation=(
        "apply_gradients, or apply in Keras 3, was left by an exception, while it ran or while a "
        "graph was traced. `Unknown variable` (Keras 3) and `The optimizer cannot recognize "
        "variable` (tf_keras) come where an optimizer gets variables that it was not built for, "
        "as those of a second model; `only supports singleton tf.Variables` where it has to make "
        "its own variables in a tf.function that made some before. It is info if training went "
        "on: the variables were updated all the same, or the optimizer made steps afterwards. An "
        "error of the data or of the model comes before apply_gradients and is not reported, nor "
        "is one that comes while a graph runs, or what another rule says of the optimizer's class."
    ),
)
def apply_raised(summary: Summary) -> Iterator[Case]:
    """A call of the outermost step method was ended by an exception."""
    root = summary.optimizers[0]
    reported = any(summary.remarks(*_REPORTED_BY_CLASS_RULES))
    for failure in root.failures:
        if reported and failure.cause == "other":
            continue
        kind, _, said = failure.error.partition(": ")
        where = f" while {failure.function} was traced" if failure.function else ""
        when = f"after step {failure.after:,}" if failure.after else "in the first step"
        yield Case(
            f"{class_of(root)}.{failure.method}{of_optimizer(summary)} raised {kind}"
            f"{_quoted(failure, said)}{where}, {when}{_because(failure, said)}.",
            _fix(summary, failure),
            "info" if _went_on(summary, failure) else "error",
            names=failure.variables,
        )


_FIXES = {
    "unknown": (
        "Make a new optimizer for each model; or, if one is to train all of it, build it for all "
        "variables before the first step: optimizer.build(first + second)."
    ),
    "creation": (
        "Make the variables before: optimizer.build(variables), outside of the tf.function; or "
        "make a tf.function for each model and optimizer."
    ),
    "none": (
        "The loss does not depend on any of them: compute it inside of the GradientTape, from "
        "what the model gives, and take care of numpy, tf.stop_gradient and integers in between."
    ),
}


def _fix(summary: Summary, failure: Failure) -> str:
    if failure.cause == "creation" and summary.optimizers[0].kind in ("legacy", "v1"):
        return "Make a tf.function for each model and optimizer."  # they have no `build`
    if "corresponding 1:1" in failure.error:  # on JAX: other variables than it was built for
        return (
            "Call model.compile again, with a new optimizer, after `trainable` was changed; in a "
            "loop of your own, build an optimizer for the variables that it is to train."
        )
    own = _FIXES.get(failure.cause, "")
    return summary.dialect.advice(f"apply-raised:{failure.cause}", own)


def _quoted(failure: Failure, said: str) -> str:
    """The first sentence of what the framework said, where it is known what that means."""
    if failure.cause == "other":
        return ""
    said = re.sub(r": [(\[].*", "", said)  # a list of all variables
    said = re.sub(r", value=.*", ">", said)  # of the variable, in eager mode
    return f' "{said.partition(". ")[0].rstrip(".")}"'


def _because(failure: Failure, said: str) -> str:
    number, which = len(failure.variables), names_in_short(failure.variables)
    is_no = f"{plural(number, 'is', 'are')} no {plural(number, 'variable')}"
    if len(failure.error) >= MAX_ERROR:
        said = said.partition(". ")[0]
    return {
        "unknown": f": {which or 'what it was handed'} {is_no} that it was built for",
        "creation": (
            ": it makes variables of its own in its first step, and the function had run before"
        ),
        "none": ": every gradient was None" + (which and f", of {which}"),
        "other": (which and f", on {which}") + (said and f": {said.rstrip('.')}"),
    }[failure.cause]


def _went_on(summary: Summary, failure: Failure) -> bool:
    """Whether what could not be done then was done later, or by another optimizer."""
    if failure.cause != "unknown" or not failure.variables:
        return not failure.last
    every = summary.trace.variables
    updated = {every[i].name for each in summaries_of(summary.trace) for i in each.updated}
    return updated.issuperset(failure.variables)
