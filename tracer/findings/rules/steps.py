"""Rules on steps, and on the graphs that hold them.

Steps that raised, were skipped, accumulated, or counted otherwise; graphs that never ran, functions
traced again and again.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from math import gcd

from msgspec import structs

from tracer.findings.rule import (
    FEW,
    MANY,
    MAX_NAMES,
    Case,
    Severity,
    names_in_short,
    of_optimizer,
    rule,
)
from tracer.model.callers import nearest
from tracer.model.measures import counting, ineffective, requests, tries
from tracer.model.phrases import (
    accumulated_steps,
    accumulations,
    class_of,
    has_ended,
    skipped,
    skipper,
)
from tracer.model.records import Failure, Graph, GraphTracing, Optimizer, Remark
from tracer.model.summary import Summary, is_first_only, summaries_of
from tracer.model.words import first_true, listed, plural, some, times

MIN_TRACINGS = (
    5  # tracings of a function: TensorFlow itself warns of 5 (eager/function, def_function)
)
MIN_ADDED = 3  # steps that a whole training is judged by
STEPS_PER_TRACING = 20  # steps: who traces more rarely loses little time by it


_REPORTED_BY_CLASS_RULES = ("override-unreached", "wrong-signature", "sparse-missing", "no-result")


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
    explains=(*FEW, "few steps"),
)
def apply_raised(summary: Summary) -> Iterator[Case]:
    """A call of the outermost step method was ended by an exception."""
    root = summary.optimizers[0]
    reported = any(summary.remarks(*_REPORTED_BY_CLASS_RULES))
    for failure in (each for each in root.failures if each.cause != "other" or not reported):
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
    without_build = summary.optimizers[0].kind in ("legacy", "v1")
    own = summary.dialect.advice(f"apply-raised:{failure.cause}", _FIXES.get(failure.cause, ""))
    return first_true(
        (
            failure.cause == "creation" and without_build,
            "Make a tf.function for each model and optimizer.",
        ),
        (
            "corresponding 1:1" in failure.error,  # on JAX: other variables than it was built for
            "Call model.compile again, with a new optimizer, after `trainable` was changed; in a "
            "loop of your own, build an optimizer for the variables that it is to train.",
        ),
        (True, own),
    )


def _quoted(failure: Failure, said: str) -> str:
    """The first sentence of what the framework said, where it is known what that means."""
    # Without a list of all variables, and the value of the variable, in eager mode.
    plain = re.sub(r", value=.*", ">", re.sub(r": [(\[].*", "", said))
    return "" if failure.cause == "other" else f' "{plain.partition(". ")[0].rstrip(".")}"'


def _because(failure: Failure, said: str) -> str:
    number, which = len(failure.variables), names_in_short(failure.variables)
    is_no = f"{plural(number, 'is', 'are')} no {plural(number, 'variable')}"
    return {
        "unknown": f": {which or 'what it was passed'} {is_no} that it was built for",
        "creation": (
            ": it makes variables of its own in its first step, and the function had run before"
        ),
        "none": ": every gradient was None" + (which and f", of {which}"),
        "other": (which and f", on {which}")
        + (said and f": {said.partition('. ')[0].rstrip('.')}"),
    }[failure.cause]


def _went_on(summary: Summary, failure: Failure) -> bool:
    """Whether what could not be done then was done later, or by another optimizer."""
    if failure.cause != "unknown" or not failure.variables:
        return not failure.last
    every = summary.trace.variables
    updated = {every[i].name for each in summaries_of(summary.trace) for i in each.updated}
    return updated.issuperset(failure.variables)


@rule(
    "apply-gradients-twice",
    severity="warning",
    title="a train step calls apply_gradients twice",
    why=(
        "Each call is a step of its own: iterations, learning-rate schedules and the bias "
        "correction of Adam go on several times for one batch."
    ),
    advice="Call apply_gradients once, with all gradients, or use an optimizer for each part.",
    explanation=(
        "Counted in the graph of the function: the body of a loop counts once, and of the branches "
        "of a condition the one that has most. It is info if each call has all the variables and "
        "gradients that were computed after the call before it, as where a critic makes several "
        "steps for one of the generator; gradients of two losses of one forward pass are not."
    ),
    explains=(*MANY, "many steps"),
)
def apply_gradients_twice(summary: Summary) -> Iterator[Case]:
    """The code of one step calls `apply_gradients` several times."""
    for rows in _by_function(summary):
        calls = max(each.step_calls for each in rows)
        parted = any(each.parted for each in rows if each.step_calls > 1)
        if calls > 1:
            yield Case(
                f"{rows[0].function} calls {summary.dialect.step_method}{of_optimizer(summary)} "
                f"{times(calls)}{'' if parted else _IN_A_ROW}: each time it runs, that is "
                f"{calls:,} steps.",
                ""
                if parted
                else "If they are steps in a row, as those of a critic for one of its generator, "
                "there is nothing to do. If not, call it once, with the sum of the gradients.",
                "warning" if parted else "info",
            )


_IN_A_ROW = ", with all the variables and new gradients in each call"


@rule(
    "steps-skipped",
    severity="warning",
    title="a loss scale skipped steps",
    why=(
        "A skipped step updates nothing. Some at the beginning are usual; many in a row mean that "
        "the gradients are infinite or NaN whatever the scale is."
    ),
    advice=(
        "If it goes on, look for the layer that gives inf or NaN: tf.debugging.check_numerics, a "
        "lower learning rate, that layer in float32."
    ),
    explanation=(
        "It is info until more steps in a row were skipped than halve the initial scale to 1 (15 "
        "for the default of 2**15), a warning from then on, and if all steps were skipped. A "
        "scale that goes on falling stays at 1 in tf_keras. In Keras 3 it becomes 0, 2**15 after "
        "142 steps, and then a gradient that is finite is divided by 0. A GradScaler of PyTorch is "
        "a loss scale, too; what a fused optimizer skipped in its kernel is counted with the rest. "
        "So is apply_if_finite of optax, and a MultiSteps with a function that says which steps to "
        "skip."
    ),
    needs=("complete",),
    explains=FEW,
)
def steps_skipped(summary: Summary) -> Iterator[Case]:
    """A loss scale found gradients that were not finite, and skipped the step."""
    skips = skipped(summary)
    if skips is None:
        return
    by, number = skipper(summary.optimizers), skips.number
    first, last = skips.longest
    longest = last - first + 1
    begin = f"the first of them step {skips.first:,}"
    row = f"in a row, from step {first:,} to {last:,}"
    which = first_true(
        (number == 1, f"step {first:,}"),
        (longest == number, f"all {row}"),
        (longest > 1, f"{begin}; {longest:,} of them {row}"),
        (True, begin),
    )
    lost = skips.by.settings.get("dynamic_scale") == 0
    yield Case(
        f"{some(number, 'step')} of {summary.steps_on[summary.replicas[0]]:,}"
        f"{of_optimizer(summary)} {plural(number, 'was', 'were')} skipped by {by}, {which}"
        f"{_coming(skips.by) if skips.hopeless else ''}.",
        (_NO_SCALE if lost else _OTHERS.get(by, _GOES_ON)).format(summary.dialect.find_nan),
        "warning" if skips.hopeless else "info",
        step=skips.first,
    )


_GOES_ON = (
    "If it goes on, look for the layer that gives inf or NaN: {}, a lower learning rate, that "
    "layer in float32."
)

_OTHERS = {
    "apply_if_finite": (
        "If it goes on, look for what gives inf or NaN: {}, a lower learning rate. After "
        "max_consecutive_errors in a row it applies them."
    ),
    "MultiSteps": "Look at skip_state in its state: what should_skip_update_fn says of a step.",
}

_NO_SCALE = (
    "Begin again from a checkpoint with finite weights and a scale above 0, and look for the layer "
    "that gives inf or NaN: {}, a lower learning rate, that layer in float32."
)


def _coming(scale: Optimizer) -> str:
    """What a scale that has fallen too low does next: that of Keras 3 has no lower limit."""
    match scale.settings.get("dynamic_scale"):
        case 0:
            return (
                "; the scale is 0 now, and stays 0: a gradient that is finite is divided by it, "
                "which makes the weights NaN"
            )
        case int() | float() as now if now < 1:
            return (
                f"; the scale is {now:g} now, and each further step that is skipped halves it, "
                "down to 0"
            )
    return ""


@rule(
    "steps-differ",
    severity="warning",
    title="steps, updates and iterations differ",
    why=(
        "The bias correction of Adam, logs and learning-rate schedules go by iterations. Only the "
        "schedules of Keras 3 with gradient_accumulation_steps go by batches."
    ),
    advice=(
        "Call the apply_gradients of the base class, or do `self.iterations.assign_add(1)` in your "
        "own."
    ),
    explanation=(
        "It is a warning if iterations stayed at 0, or moved several times for each step; and info "
        "if gradients are accumulated, or if iterations moved otherwise, as a checkpoint does it. "
        "What a checkpoint or a loaded model had set before the first step is left out. Steps that "
        "a loss scale skipped are reported by steps-skipped."
    ),
    needs=("steps", "complete", "steps known"),
)
def steps_differ(summary: Summary) -> Iterator[Case]:
    """Steps that were asked for, steps that updated anything and `iterations` are not the same."""
    replica = summary.replicas[0]
    steps = summary.steps_on[replica]
    applied = steps - summary.spread(tries, replica=replica)[(0,)]
    for index, made in _made(summary, replica).items() if applied else ():
        optimizer = summary.trace.optimizers[index]
        moved = made if optimizer.iterations is None else optimizer.iterations
        several = moved > made and moved % made == 0
        of_all = moved == steps and index != summary.root
        how = first_true(
            (moved == 0, "stayed at 0"),
            (several, f"moved by {moved:,}, {moved // made:,} for each step"),
            (moved == applied, f"moved by {moved:,}, one for each step that updated anything"),
            (of_all, f"moved by {moved:,}, one for each step, also for those that were skipped"),
            (
                True,
                f"moved by {moved:,} (a step that failed, a checkpoint or an assignment moves "
                "them too)",
            ),
        )
        if moved != made:
            yield Case(
                f"{optimizer.name} made {some(made, 'step')}, and its iterations {how}.",
                first_true((several, _COUNT_ONCE), (moved, _FINE)),
                None if several or not moved else "info",
            )
    every = accumulated_steps(summary)
    meant = every > 1 or not skipper(summary.optimizers)
    if applied < steps and meant and not summary.total(ineffective):
        spread = summary.spread(tries, requests, replica=replica)
        reason = first_true(
            (every > 1, f"the gradients of {every:,} steps are accumulated"),
            (any(came for made, came in spread if not made), "its own code decides which"),
            (applied, "no gradient came in the others"),
            (True, "no gradient came"),
        )
        yield Case(
            f"{applied:,} of {some(steps, 'step')}{of_optimizer(summary)} updated anything: "
            f"{reason}.",
            _FINE,
            "info",
        )


_COUNT_ONCE = "Count iterations in one place: apply_gradients of the base class does it already."
_FINE = "If that is what you meant, there is nothing to do."


def _made(summary: Summary, replica: int) -> dict[int, int]:
    """For each optimizer that updates variables, how often its step method ran on a replica."""
    roles = ("update", "ineffective", "discarded")
    inside = [e for block, e in summary.entries if e.role in roles and not block.outside]
    made = {
        index: max(
            summary.total(counting(["step"], None, [method], optimizer=index), replica)
            for method in summary.methods
        )
        for index in sorted({each.optimizer for each in inside})
    }
    return {index: number for index, number in made.items() if number}


@rule(
    "gradients-left",
    severity="warning",
    title="accumulated gradients that were never applied",
    why="What was learnt from the last batches is thrown away.",
    advice=(
        "Choose a number of batches that gradient_accumulation_steps divides, or drop the rest: "
        "the accumulators of Keras go on from epoch to epoch, and nothing applies what is in them "
        "at the end."
    ),
    explanation=(
        "For optimizers of Keras 3 with gradient_accumulation_steps: the steps after the last one "
        "that updated anything, fewer than a group has; those that a loss scale skipped are not "
        "counted. It is a warning if they are a tenth of all "
        "steps or more, of a program that has ended under `tracer run` without an error; and info "
        "otherwise: at the end of a long run it is a small loss, and training may go on. With "
        "`torch.optim`, while a block of `record` or `tracer run` looks at it, backward passes are "
        "counted: fewer than most steps use, whose gradients were cleared or are left at the end; "
        "or, if each step uses one, half of all or more that came from the same line and were "
        "cleared. Passes that a step of another optimizer used, as the generator's of a GAN, and "
        "gradients that the program has written to are left out."
    ),
    needs=("steps", "complete", "steps known"),
)
def gradients_left(summary: Summary) -> Iterator[Case]:
    """The last group of steps whose gradients are accumulated is not complete."""
    for _, remark in summary.remarks("gradients-left"):
        yield _passes_left(summary, remark)
    every, reached = accumulated_steps(summary), accumulations(summary)
    if every < 2 or reached is None or summary.step_unknown(reached):
        return
    replica = summary.replicas[0]
    steps = summary.steps_on[replica]
    parts = summary.timeline(tries, replica=replica).parts()
    last = max((part.last for part, (made,) in parts if made), default=0)
    group = summary.timeline(reached, replica=replica).within(last + 1, steps)
    left = sum(number * kept for number, (kept,) in group)
    if 0 < left < every:
        after = steps - last
        which = "the last step" if after == 1 else f"the last {after:,} steps"
        yield Case(
            f"The gradients of {which if left == after else f'{left:,} of {which}'} of {steps:,}"
            f"{of_optimizer(summary)} were accumulated and never applied: those of {every:,} steps "
            "are applied together.",
            severity="warning" if left * 10 >= steps and has_ended(summary.trace) else "info",
            step=last + 1,
        )


def _passes_left(summary: Summary, remark: Remark) -> Case:
    """Backward passes of which no step used the gradients."""
    every = int(remark.detail) if remark.detail.isdecimal() else 1
    where = f" ({remark.where})" * bool(remark.where)
    if every == 1:
        common = gcd(remark.count, remark.of) or 1
        return Case(
            f"The gradients of {remark.count // common:,} of every {remark.of // common:,} "
            f"backward passes{where} were cleared before a step{of_optimizer(summary)} used them.",
            "If they are to be accumulated, call zero_grad once for each step, after it, and not "
            "in each pass. If not, these passes are computed in vain.",
        )
    every_one = (range(run.first, run.last + 1, run.stride) for run in remark.runs)
    numbers = [f"{each:,}" for each in islice(chain.from_iterable(every_one), MAX_NAMES)]
    more = remark.count - len(numbers)
    which = listed([*numbers, f"{more:,} more"] if more else numbers)
    once = [run.stride == 1 for run in remark.runs] == [True]  # at the end, most often
    small = remark.count * 10 < remark.of or not has_ended(summary.trace)
    return Case(
        f"The gradients of {plural(remark.count, 'backward pass', 'backward passes')} {which} of "
        f"{remark.of:,}{where} were never applied: most steps{of_optimizer(summary)} use those of "
        f"{every:,}.",
        f"Step once more after the last batch, or choose a number of batches that {every:,} "
        "divides: zero_grad clears the rest of an epoch, and nothing applies it at the end.",
        "info" if once and small else None,
    )


@rule(
    "gradients-added",
    severity="warning",
    title="gradients were added to those of the step before",
    why="Each step is made with the sum of all gradients so far, old ones included.",
    advice="Call optimizer.zero_grad() once for each step: after it, or before backward.",
    explanation=(
        "For `torch.optim`, while a block of `record` or `tracer run` looks at it. When a backward "
        f"pass began, the gradient was the one that the step had left, to the version; in "
        f"{MIN_ADDED} steps or more, and half of them or more. A gradient that the program scales "
        "or writes between two steps is not reported, nor are steps that are given a closure. A "
        "parameter stands for all, so one that zero_grad does not reach may be missed."
    ),
    needs=("steps",),
)
def gradients_added(summary: Summary) -> Iterator[Case]:
    """Nobody cleared the gradients after a step."""
    for _, each in summary.remarks("gradients-added"):
        if each.count >= max(MIN_ADDED, each.of / 2):
            yield Case(
                f"In {each.count:,} of {some(each.of, 'step')}{of_optimizer(summary)} backward "
                "added to the gradients that the step before had used: zero_grad did not clear "
                "them.",
            )


@rule(
    "clipped-late",
    severity="warning",
    title="gradients were clipped after the step that used them",
    why="The step was made with gradients of any size: clipping changed nothing of it.",
    advice=(
        "Call it after backward and before step; with a GradScaler after "
        "scaler.unscale_(optimizer)."
    ),
    explanation=(
        "For `torch.optim` and `torch.nn.utils.clip_grad_norm_`, while a block of `record` or "
        "`tracer run` looks at it: it scaled gradients that a step had used and nothing had been "
        f"added to, and they were cleared before the next pass; {MIN_ADDED} times or more, and "
        "never in time for a step. With a norm of 1e6 or more it only measures. Where it is called "
        "in `torch.compile`, nothing is known."
    ),
    needs=("steps",),
)
def clipped_late(summary: Summary) -> Iterator[Case]:
    """No step used what was clipped."""
    for _, each in summary.remarks("clipped-late"):
        if each.count >= MIN_ADDED:
            where = f" ({each.where})" * bool(each.where)
            yield Case(
                f"{each.method}{where} ran {times(each.count)} after a step"
                f"{of_optimizer(summary)}, and no step used what it clipped.",
            )


@rule(
    "retraced",
    severity="warning",
    title="traced again for another signature",
    why="Each tracing takes as long as many steps, and the graphs stay in memory.",
    advice=(
        "Pass tensors instead of Python numbers, use `drop_remainder=True`, or give the "
        "tf.function an input_signature with None for the sizes that change."
    ),
    explanation=(
        "The signatures are those of the outermost function that holds the steps. It is info "
        "unless there were five tracings or more, and one for each 20 steps or more; a last batch "
        "that is smaller gives one. On JAX they are those of the function that jax.jit traces; of "
        "an argument with many arrays the signature has their number only, and how many steps had "
        "run is what JAX had reported by then, for it runs them behind Python's back. What "
        "torch.compile compiles again is not reported."
    ),
    explains=("calls",),
)
def retraced(summary: Summary) -> Iterator[Case]:
    """A function was traced for another signature after the first step."""
    for rows in _by_function(summary):
        later = [each for each in [row for row in rows if row.signature][1:] if each.after > 0]
        if not later:
            continue
        tracings, change = sum(each.tracings for each in later), ""
        for event in _events_of(summary, later[:1])[:1]:
            became = event.detail.replace(" -> ", " became ")
            line = _line(summary, event)
            change = (became and f", when {became}") + (line and f", by the call in {line}")
        yield Case(
            f"{rows[0].function}{of_optimizer(summary)} was traced again {times(tracings)} in "
            f"training, first after step {later[0].after:,}"
            f"{summary.dialect.advice('retraced:roughly')}{change}.",
            severity=_costly(tracings, rows),
            step=later[0].after + 1,
        )


@rule(
    "traced-again",
    severity="warning",
    title="traced several times for one signature",
    why=(
        "Each tracing takes as long as many steps. It mostly means that a new tf.function is made "
        "again and again."
    ),
    advice="Make the tf.function once, outside of the loop; do not compile the model again.",
    explanation=(
        "Only graphs that ran count: TensorFlow traces a function that makes variables twice, and "
        "runs one of them. It is info unless there were five tracings or more, and one for each 20 "
        "steps or more."
    ),
    explains=("calls",),
)
def traced_again(summary: Summary) -> Iterator[Case]:
    """A function was traced several times for one signature, and more than one graph of it ran."""
    for rows in _by_function(summary):
        again = [number for each in rows if (number := each.tracings - each.idle) > 1]
        if again:
            signatures = "one signature" if len(again) == 1 else f"{len(again):,} signatures"
            yield Case(
                f"{rows[0].function}{of_optimizer(summary)} was traced {times(sum(again))} for "
                f"{signatures}.",
                severity=_costly(sum(again), rows),
            )


def _events_of(summary: Summary, rows: Sequence[Graph]) -> list[GraphTracing]:
    """The graph tracings of these rows, in the order in which they began."""
    data = summary.trace.data
    named = [(summary.root, row.function, row.signature, row.replica) for row in rows]
    graphs = [(each.root, each.function, each.signature, each.replica) for each in data.graphs]
    return [event for event in data.graph_tracings if graphs[event.graph] in named]


def _line(summary: Summary, event: GraphTracing) -> str:
    """The line of the program that called what was traced; empty if it is not known."""
    line = nearest(summary.trace.data, event.path)
    return f"{line.file}:{line.number}" if line else ""


def _costly(tracings: int, rows: Sequence[Graph]) -> Severity:
    steps = sum(each.steps for each in rows)
    often = tracings >= MIN_TRACINGS and tracings * STEPS_PER_TRACING >= steps
    return "warning" if often else "info"


def _by_function(summary: Summary) -> list[list[Graph]]:
    """The graphs of the optimizer; those of several workers, which do the same, stand for one."""
    functions: dict[str, dict[str, Graph]] = {}
    for graph in sorted(summary.trace.graphs, key=lambda each: each.after):
        if graph.root == summary.root:
            functions.setdefault(graph.function, {}).setdefault(graph.signature, graph)
    return [list(signatures.values()) for signatures in functions.values()]


@rule(
    "graph-never-ran",
    severity="warning",
    title="a graph was traced and never ran",
    why="Python was called while it was traced, and nothing came of it.",
    advice="Nothing, if it was traced to be saved or looked at; otherwise call the function.",
    explanation=(
        "It is info where another graph, or eager steps, did run, and a warning where nothing of "
        "the optimizer ever ran. That TensorFlow traces a function twice which makes variables, "
        "and runs the second graph, is usual and not reported. A tracing that an error ended in "
        "the optimizer gave no graph, and is not reported either."
    ),
    needs=("complete",),
    explains=(*FEW, "few steps", "calls"),
)
def graph_never_ran(summary: Summary) -> Iterator[Case]:
    """A graph with updates was traced, and never executed."""
    failed = any(program.error for program in summary.trace.programs)
    usual = is_first_only if summary.dialect.traces_twice else lambda graph: False
    # Tracings that an error ended gave no graph to run.
    traced = [
        structs.replace(each, tracings=each.tracings - each.failed, idle=each.idle - each.failed)
        for rows in _by_function(summary)
        for each in rows
    ]
    idle = [each for each in traced if each.idle and not usual(each)]
    functions = list(dict.fromkeys(each.function for each in idle))
    for names in [functions] if len(functions) > MAX_NAMES else [[each] for each in functions]:
        never_ran = [each for each in idle if each.function in names]
        number, noun = sum(each.idle for each in never_ran), summary.dialect.program
        tracings = sum(each.tracings for each in traced if each.function in names)
        graphs = f"the {noun}" if tracings == 1 else f"{number:,} of the {tracings:,} {noun}s"
        yield Case(
            f"{names_in_short(names, of_optimizer(summary), 'function')}: {graphs} that "
            f"{plural(len(names), 'its', 'their')} tracing gave never ran"
            f"{_traced_by(summary, never_ran)}.",
            first_true(
                (summary.has_run, ""),
                (failed, "Mend the error that ended the program before its first step."),
                (True, _CALL_THE_FUNCTION),
            ),
            "info" if summary.has_run else "warning",
        )


_CALL_THE_FUNCTION = (
    "If it was only traced, call the function: tracing it alone trains nothing. If it was called, "
    "it ended before its first step: look for an error, or for data without a batch."
)


def _traced_by(summary: Summary, rows: Sequence[Graph]) -> str:
    """`, traced by the call in train.py:12 for x: float32[4] -> float32[8]`, if it is known.

    It is not where some graphs of several lines ran, and others did not.
    """
    events = _events_of(summary, rows)
    lines = list(dict.fromkeys(_line(summary, event) for event in events))
    known = "" not in lines and len(events) == sum(row.tracings for row in rows)
    if not known or (len(lines) != 1 and any(row.idle < row.tracings for row in rows)):
        return ""
    what = f" for {events[0].detail}" if len(events) == 1 and events[0].detail else ""
    return f", traced by the call in {names_in_short(lines, noun='line')}{what}"
