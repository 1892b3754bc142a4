"""What looks wrong in a trace: `CallTrace.findings()`, and the rules that find it.

No TensorFlow. Rules are functions, in the modules beside this one; a rule says nothing that the
trace does not show. Where a trace is incomplete, rules on what did *not* happen are silent.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

import msgspec

from tracer.errors import unknown_name
from tracer.findings import classes, graphs, steps, updates
from tracer.findings.cases import Case, Severity
from tracer.findings.histories import Evidence
from tracer.model.trace import Trace

SEVERITIES: tuple[Severity, ...] = get_args(Severity)
"""From the worst to the least."""


class Finding(msgspec.Struct, frozen=True):
    """Something that looks wrong, or is good to know, in one trace."""

    code: str
    """The rule's name: `tracer explain CODE`."""
    severity: Severity
    """`error`: it is certain that training does not do what the program says. `warning`: most
    probably it is not what was meant. `info`: good to know, and often as it should be."""
    text: str
    """One sentence: which variable, step and replica, and what is so."""
    why: str
    """Why it matters."""
    advice: str
    """What to do."""
    variables: tuple[str, ...] = ()
    """The names of all variables concerned."""
    step: int | None = None
    """The first step concerned, from 1 on."""
    replica: int | None = None
    """The id of the replica concerned, if it is one."""


@dataclass(frozen=True)
class Rule:
    """A rule: how to find its cases in what one root optimizer did, and what to say of them."""

    code: str
    severity: Severity
    """The worst that a case of it has."""
    find: Callable[[Evidence], Iterator[Case]]
    title: str
    why: str
    advice: str
    explanation: str
    """When it is found and when not, and what other severities a case may have."""


def findings(trace: Trace) -> list[Finding]:
    """All that the rules find, errors first; an empty list for a healthy run.

    What is the same of many variables is one finding, with some of their names and their number.
    """
    return list(trace.derived(_findings))


def _findings(trace: Trace) -> list[Finding]:
    roots = [i for i, each in enumerate(trace.optimizers) if each.root == i]
    evidence = [Evidence(trace, root) for root in roots]
    found = [
        Finding(
            rule.code,
            case.severity,
            case.text,
            rule.why,
            case.advice or rule.advice,
            case.variables,
            case.step,
            case.replica,
        )
        for rule in RULES
        for each in evidence
        for case in rule.find(each)
    ]
    return sorted(found, key=lambda each: SEVERITIES.index(each.severity))


def at_least(found: list[Finding], severity: Severity) -> list[Finding]:
    """Those that are as bad as `severity`, or worse."""
    worst = SEVERITIES[: SEVERITIES.index(severity) + 1]
    return [each for each in found if each.severity in worst]


def to_report(trace: Trace) -> list[Finding]:
    """What a report for people shows: errors and warnings.

    What is good to know is in the counts above it already, and a healthy run has such findings
    too: TensorFlow traces a function twice, the last batch is smaller. Of a part of a trace nothing
    is reported, because rules would take for missing what was left out.
    """
    return [] if trace.only else at_least(findings(trace), "warning")


def rule(code: str) -> Rule:
    """The rule with this code; raises `tracer.UnknownName`, with near codes, if there is none."""
    for each in RULES:
        if each.code == code:
            return each
    raise unknown_name("finding", code, [each.code for each in RULES], "there are")


RULES: tuple[Rule, ...] = (
    # Found in the class, at `wrap`.
    Rule(
        "override-unreached",
        "error",
        classes.override_unreached,
        "a method is defined that nothing calls",
        "The code in the method never runs; training goes on with what the base class does, or "
        "fails because the method that is called is missing.",
        "Define the method that the base class calls.",
        "Legacy Keras and tf.compat.v1 optimizers call `_resource_apply_dense` and "
        "`_resource_apply_sparse`; those of Keras 2.11 and later, and of Keras 3, call "
        "`update_step`. A name without the underscore (`resource_apply_dense`) is called by none. "
        "It is found when the optimizer is wrapped, before any training. Not reported is a class "
        "that also defines the method that is called, as one for several versions of Keras does, "
        "or that calls the method itself.",
    ),
    Rule(
        "wrong-signature",
        "error",
        classes.wrong_signature,
        "a method cannot take what it is passed",
        "Python raises TypeError when the method is called, in the first step or with the first "
        "sparse gradient.",
        "Give the method the parameters of the base class.",
        "The signature is compared with what the base class really passes: `indices` as the third "
        "argument of the sparse methods, `learning_rate` as that of Keras 3's `update_step`, and "
        "`apply_state` by name to a legacy method that has such a parameter. It is found when the "
        "optimizer is wrapped. A sparse method is a warning while an `Embedding` layer is alive, "
        "an error when a sparse gradient came, and no finding otherwise.",
    ),
    Rule(
        "sparse-missing",
        "error",
        classes.sparse_missing,
        "there is no method for sparse gradients",
        "An embedding gives sparse gradients (`tf.IndexedSlices`); without the method the first "
        "one raises NotImplementedError.",
        "Define `_resource_apply_sparse(self, grad, var, indices, apply_state=None)`.",
        "For subclasses of legacy Keras and tf.compat.v1 optimizers that define "
        "`_resource_apply_dense` and none of the sparse methods. It is a warning, when the "
        "optimizer is wrapped, while an `Embedding` layer of Keras is alive, and an error when a "
        "sparse gradient came. A model without sparse gradients needs no such method.",
    ),
    Rule(
        "python-side-effect",
        "warning",
        classes.python_side_effect,
        "Python state changed while a graph was traced",
        "Python runs the method only while a graph is traced, once for each variable, and not in "
        "each step: what it counts or keeps is not what happened.",
        "Keep such state in a tf.Variable of the optimizer, and change it with `assign`.",
        "The source of the apply methods is read for `self.x += 1`, `self.x = ...` that the method "
        "does not read itself, `self.x.append(...)` and counters that are `global` or `nonlocal`. "
        "What is under a condition that asks for the attribute itself (`if self.x is None`) or for "
        "eager mode is left out, and so is a method that ran in eager mode only, or whose source "
        "cannot be read.",
    ),
    Rule(
        "step-per-variable",
        "warning",
        classes.step_per_variable,
        "a step variable moves once for each variable",
        "With n variables it goes on by n in each step: a decay is n times too fast, and a bias "
        "correction is wrong.",
        "Use `self.iterations`, or move the variable once a step, in `apply_gradients`.",
        "The source of the apply methods is read for `self.NAME.assign_add(...)`, `assign_sub`, or "
        "an `assign` of a value made of itself, where NAME says step, iteration, epoch, decay, "
        "count, rate or the like, and nothing decides whether it runs. It takes two variables or "
        "more.",
    ),
    # Found in the updates.
    Rule(
        "replicas-disagree",
        "error",
        updates.replicas_disagree,
        "replicas or workers did not do the same",
        "Each replica has a copy of the variable, and the copies are no longer the same.",
        "Look for a condition on the replica or on its own data around apply_gradients.",
        "Compared are the steps that both replicas ran. That one replica or worker ran fewer steps "
        "than another is a warning. Strategies with one copy of each variable "
        "(`CentralStorageStrategy`, `ParameterServerStrategy`) are left out.",
    ),
    Rule(
        "never-updated",
        "warning",
        updates.never_updated,
        "gradients came, and no update did",
        "The variable keeps its first value, although the program asked for its update.",
        "Look for what takes gradients away in the optimizer's own apply_gradients.",
        "apply_gradients got gradients for it that were not None, other variables were updated, "
        "this one never was. Variables that Keras overwrites itself (those of float8 scales) are "
        "reported too. A variable that is not handed to apply_gradients, as that of a frozen "
        "layer, is not.",
    ),
    Rule(
        "no-gradient",
        "warning",
        updates.no_gradient,
        "the gradient was always None",
        "The loss does not depend on the variable, so it never learns.",
        "Look for what cuts the variable from the loss (tf.stop_gradient, an unused output, a "
        "rounding or numpy in between), or take it out of the list.",
        "apply_gradients was asked for it and got None each time. The optimizer leaves such a "
        "variable out, and Keras warns once. That of a frozen layer is not handed over at all, so "
        "it is not reported.",
    ),
    Rule(
        "updates-stopped",
        "warning",
        updates.stopped,
        "no more updates from some step on",
        "From that step on the variable no longer learns.",
        "Look for what changed at that step.",
        "Other variables went on, and the silence is more than three times as long as any before "
        "it. It is info if the variable was no longer handed to apply_gradients, as after it was "
        "frozen.",
    ),
    Rule(
        "updated-twice",
        "warning",
        updates.updated_twice,
        "several updates of a variable in one step",
        "The step is applied twice: a learning rate that is twice as high, and momentum that moves "
        "twice.",
        "Look for a variable that is twice in the list of gradients, or for an apply_gradients of "
        "your own that calls the inherited one twice.",
        "Counted are updates of one variable in one step on one replica, where all replicas do the "
        "same; where they do not, see replicas-disagree. That a train step calls apply_gradients "
        "twice makes two steps of it: see apply-gradients-twice.",
    ),
    Rule(
        "densified",
        "warning",
        updates.densified,
        "a sparse gradient was applied as a dense one",
        "A sparse update writes the rows that a batch used, a dense one all of them, and the "
        "gradient takes the memory of the whole table.",
        "Clip or accumulate in a way that keeps tf.IndexedSlices, or take the embedding's gradient "
        "out of it, with an optimizer of its own.",
        "Every gradient of the variable reached apply_gradients as `tf.IndexedSlices` and every "
        "update was dense. In Keras 3.15 `gradient_accumulation_steps` and `global_clipnorm` do "
        "this; `clipnorm`, `clipvalue` and `LossScaleOptimizer` do not, and none of them does in "
        "tf_keras 2.21, as the tests show.",
    ),
    Rule(
        "gradient-missing",
        "info",
        updates.gradient_missing,
        "the gradient was None in some steps",
        "In these steps the variable was not updated.",
        "If a branch of the model is not used in each step, this is as it should be.",
        "See no-gradient for a gradient that was always None, and updates-stopped for one that was "
        "None from some step on.",
    ),
    # Found in the steps.
    Rule(
        "apply-gradients-twice",
        "warning",
        graphs.apply_gradients_twice,
        "a train step calls apply_gradients twice",
        "Each call is a step of its own: iterations, learning-rate schedules and the bias "
        "correction of Adam go on several times for one batch.",
        "Call apply_gradients once, with all gradients, or use an optimizer for each part.",
        "Counted in the graph of the function: the body of a loop counts once, and of the branches "
        "of a condition the one that has most.",
    ),
    Rule(
        "steps-skipped",
        "warning",
        steps.steps_skipped,
        "a loss scale skipped steps",
        "A skipped step updates nothing. Some at the beginning are usual; many in a row mean that "
        "the gradients are infinite or NaN whatever the scale is.",
        "If it goes on, look for the layer that gives inf or NaN: tf.debugging.check_numerics, a "
        "lower learning rate, that layer in float32.",
        "It is info until more steps in a row were skipped than halve the initial scale to 1 (15 "
        "for the default of 2**15), a warning from then on.",
    ),
    Rule(
        "steps-differ",
        "warning",
        steps.steps_differ,
        "steps, updates and iterations differ",
        "Learning-rate schedules, the bias correction of Adam and logs go by iterations.",
        "Call the apply_gradients of the base class, or do `self.iterations.assign_add(1)` in your "
        "own.",
        "It is a warning if iterations stayed at 0, or moved several times for each step; and info "
        "if gradients are accumulated, or if iterations moved otherwise, as a checkpoint does it. "
        "Steps that a loss scale skipped are reported by steps-skipped.",
    ),
    Rule(
        "never-used",
        "warning",
        steps.never_used,
        "an optimizer was built and never used",
        "It holds memory for each variable, and the program may train with another optimizer than "
        "it seems to.",
        "Look which optimizer the train step calls; compile keeps the one that it was given.",
        "The optimizer was wrapped, and built for its variables (as by loading a model), and "
        "apply_gradients was not called so far. `tracer.record` and `tracer run` leave out what "
        "was not used, so this is for optimizers that were wrapped by `tracer.wrap`.",
    ),
    # Found in the graphs.
    Rule(
        "retraced",
        "warning",
        graphs.retraced,
        "traced again for another signature",
        "Each tracing takes as long as many steps, and the graphs stay in memory.",
        "Pass tensors instead of Python numbers, use `drop_remainder=True`, or give the "
        "tf.function an input_signature with None for the sizes that change.",
        "The signatures are those of the outermost function that holds the steps. It is info "
        "unless there were five tracings or more, and one for each 20 steps or more; a last batch "
        "that is smaller gives one.",
    ),
    Rule(
        "traced-again",
        "warning",
        graphs.traced_again,
        "traced several times for one signature",
        "Each tracing takes as long as many steps. It mostly means that a new tf.function is made "
        "again and again.",
        "Make the tf.function once, outside of the loop; do not compile the model again.",
        "Only graphs that ran count: TensorFlow traces a function that makes variables twice, and "
        "runs one of them. It is info unless there were five tracings or more, and one for each 20 "
        "steps or more.",
    ),
    Rule(
        "graph-never-ran",
        "warning",
        graphs.graph_never_ran,
        "a graph was traced and never ran",
        "Python was called while it was traced, and nothing came of it.",
        "Nothing: TensorFlow traces a function that makes variables twice, and runs one graph.",
        "It is info where another graph, or eager steps, did run, and a warning where nothing of "
        "the optimizer ever ran.",
    ),
)
"""All rules, in the order in which cases of one severity are reported."""
