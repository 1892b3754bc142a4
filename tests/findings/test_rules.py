"""The findings on traces made by hand: what is said, and what must hold of every trace."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from support import rules_by_backend, traces
from support.golden import assert_golden
from support.traces import block, called, effect, request, step, update

from tracer import keras
from tracer.errors import UnknownName
from tracer.findings.rule import RULES, SEVERITIES, Finding, rule_of
from tracer.kinds import TORCH
from tracer.model.evidence import (
    ClassMethod,
    Evidence,
    Failure,
    Fitted,
    GradientsAdded,
    GradientsLeft,
    LossNotScaled,
    NeverAssigned,
    SharedByMembers,
)
from tracer.model.records import (
    Block,
    Graph,
    Method,
    Note,
    NotUpdated,
    Optimizer,
    Program,
    Setting,
)
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.reporters.columns import part_of
from tracer.reporters.text import render

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "findings.md"


def trace(
    *blocks: Block,
    names: Sequence[str] = ("kernel", "bias"),
    optimizers: Sequence[Optimizer] = (),
    graphs: Sequence[Graph] = (),
    calls: Sequence[Block] = (),
    methods: Sequence[Method] = (traces.APPLY_GRADIENTS, traces.UPDATE_STEP),
    strategy: str = "",
    rows: int = 8,
) -> Trace:
    """A trace of one optimizer that has these blocks, on as many replicas as they need."""
    made = traces.keras3(names, tuple(blocks), tuple(calls), methods=tuple(methods))
    variables = [replace(each, shape=(rows, 4)) for each in made.variables]
    return traces.changed(
        made,
        optimizers=tuple(optimizers) or made.optimizers,
        variables=tuple(variables),
        graphs=tuple(graphs),
        environment={**made.data.environment, "strategy": strategy},
    )


def optimizer(
    *evidence: Evidence,
    class_name: str = "my.Adam",
    kind: str = "keras3",
    iterations: int | None = None,
    root: int = 0,
    **options: Setting,
) -> Optimizer:
    name = class_name.rpartition(".")[2].lower()
    return Optimizer(name, class_name, kind, root, options, iterations, evidence)


def graph(function: str, signature: str = "", **figures: int) -> Graph:
    known = Graph(0, 0, function, signature, 1, 0, 10, 0)
    return replace(known, **figures)


def traced_for(detail: str, made: Trace) -> Trace:
    """The same, and why the second graph was traced is known."""
    first, second, *others = made.graphs
    return traces.changed(made, graphs=(first, replace(second, detail=detail), *others))


def healthy(*runs: Run, replica: int = 0) -> Block:
    return block([step(), request(0, 1), update(0, 1)], *runs, replica=replica, graph=True)


def thawed(*names: str, steps: int = 20) -> Trace:
    """A model of which these variables became trainable after its step was traced."""
    blocks = [healthy(Run(1, 1, steps))] if steps else []
    made = trace(*blocks, names=("kernel", "bias", *names), optimizers=(optimizer(),))
    late = NotUpdated(0, tuple(range(2, 2 + len(names))), "not passed", 1)
    return traces.changed(made, not_updated=(late,))


def watched(*effects: Block, steps: int = 20, blocks: Sequence[Block] = ()) -> Trace:
    """Steps in each of which the kernel and the bias were compared."""
    seen = (effect("compared", (0, 1), Run(1, 1, steps)), *effects)
    accumulating = optimizer(gradient_accumulation_steps=4)
    made = trace(
        *(blocks or [healthy(Run(1, 1, steps))]), optimizers=(accumulating,) if blocks else ()
    )
    return traces.changed(made, effects=seen)


def emptied(made: Trace) -> Trace:
    """The same with a kernel that has no elements."""
    kernel, bias = made.variables
    return traces.changed(made, variables=(replace(kernel, shape=(0, 4)), bias))


def in_parts(made: Trace) -> Trace:
    """The same with variables of which each of two workers has a shard."""
    parts = (replace(each, shards=2) for each in made.variables)
    return traces.changed(made, variables=tuple(parts))


def without_gradient(class_name: str, kind: str) -> Trace:
    """20 steps in which the bias has no gradient."""
    return trace(
        block([step(), request(0), request(1, kind="none"), update(0)], Run(1, 1, 20)),
        optimizers=(optimizer(class_name=class_name, kind=kind),),
    )


ACCUMULATING = (
    block([step(), request(0, 1)], Run(1, 1, 20), graph=True),
    block([update(0, 1)], Run(4, 4, 5), is_step=False, graph=True),
)


def skipping(
    *runs: Run, steps: int, initial_scale: float = 2.0**15, dynamic_scale: float = 1.0
) -> Trace:
    """A loss scale that lets the steps of these runs through."""
    return trace(
        block([step(), request(0, 1)], Run(1, 1, steps), graph=True),
        block([update(0, 1, optimizer=1)], *runs, is_step=False, graph=True),
        optimizers=(
            optimizer(
                class_name="keras.LossScaleOptimizer",
                initial_scale=initial_scale,
                dynamic_scale=dynamic_scale,
            ),
            optimizer(iterations=None),
        ),
    )


def by_grad_scaler(*, used: bool) -> Trace:
    """The first 16 steps of 40 updated nothing."""
    return trace(
        block([step(), request(0, 1)], Run(1, 1, 40)),
        block([update(0, 1)], Run(17, 1, 24), is_step=False),
        optimizers=(optimizer(class_name="torch.optim.SGD", kind=TORCH, grad_scaler=used),),
    )


LEGACY = (traces.APPLY_GRADIENTS, traces.DENSE, traces.SPARSE, traces.DUPLICATES)
TRAINED = healthy(Run(1, 1, 10))


def remarked(seen: Evidence, *more: Evidence, sparse: bool = False, kind: str = "legacy") -> Trace:
    """A trace in which the class of the optimizer has a seen."""
    calls = [called(3, (0,), kind="sparse", tracing=1)] if sparse else []
    return trace(
        optimizers=(optimizer(seen, *more, class_name="my.Mine", kind=kind),),
        calls=calls,
        methods=LEGACY,
        names=("words/embeddings",),
    )


UNREACHED = ClassMethod("unreached", "_resource_apply_dense", called="update_step")
MISSING = ClassMethod("no sparse", "_resource_apply_sparse")
IDLE = NeverAssigned("update_step", ("kernel",))

CASES: dict[str, Callable[[], Trace]] = {
    "a weight that becomes NaN": lambda: watched(
        effect("not_finite", (1,), Run(8, 1, 13)), effect("unchanged", (1,), Run(9, 1, 12))
    ),
    "all weights become NaN": lambda: watched(
        effect("not_finite", (1,), Run(8, 1, 13)), effect("not_finite", (0,), Run(9, 1, 12))
    ),
    "weights that were NaN": lambda: watched(effect("not_finite", (0, 1), Run(1, 1, 20))),
    "a learning rate of 0": lambda: watched(effect("unchanged", (0, 1), Run(1, 1, 20))),
    "a layer that is cut off": lambda: watched(effect("unchanged", (0,), Run(1, 1, 20))),
    "accumulated gradients of 0": lambda: watched(
        effect("unchanged", (0,), Run(1, 1, 20)),
        effect("unchanged", (1,), Run(1, 1, 3), Run(5, 1, 3), Run(9, 1, 3), Run(13, 1, 3)),
        blocks=ACCUMULATING,
    ),
    "a method of another Keras": lambda: remarked(UNREACHED, kind="keras3"),
    "a method without its underscore": lambda: remarked(
        ClassMethod("unreached", "resource_apply_dense", called="_resource_apply_dense")
    ),
    "no sparse method, and a sparse gradient": lambda: remarked(MISSING, sparse=True),
    "nothing assigned": lambda: trace(healthy(Run(1, 1, 8)), optimizers=(optimizer(IDLE),)),
    "twice on one replica": lambda: trace(
        healthy(Run(1, 1, 20)),
        healthy(Run(1, 1, 20), replica=1),
        block([update(1)], Run(7, 1, 1), replica=1, is_step=False, graph=True),
        strategy="MirroredStrategy",
    ),
    "workers that disagree": traces.uneven_replicas,
    "a gradient that is dropped": lambda: trace(
        block([step(), request(0, 1), update(0)], Run(1, 1, 20), graph=True)
    ),
    "no gradient": traces.no_gradients,
    "a parameter without a gradient": lambda: without_gradient("torch.optim.Adam", TORCH),
    "a variable of the graph without a gradient": lambda: without_gradient("my.Adam", "v1"),
    "a gradient that one of two optimizers drops": lambda: trace(
        TRAINED,
        block([step(1), request(2, 3, optimizer=1), update(2, optimizer=1)], Run(1, 1, 10), root=1),
        names=("kernel", "bias", "other/kernel", "other/bias"),
        optimizers=(optimizer(), optimizer(class_name="my.SGD", root=1)),
    ),
    "1,000 variables without gradient": lambda: trace(
        block([step(), request(0), request(*range(1, 1001), kind="none"), update(0)], Run(1, 1, 9)),
        names=[f"layer_{number}/kernel" for number in range(1001)],
    ),
    "five variables that stop at different steps": lambda: trace(
        block([step(), request(*range(6)), update(0)], Run(1, 1, 1000), graph=True),
        *(block([update(n)], Run(1, 1, 10 * n), is_step=False, graph=True) for n in range(1, 6)),
        names="abcdef",
    ),
    "a variable whose gradient is gone": lambda: trace(
        healthy(Run(1, 1, 40)),
        block([step(), request(0), request(1, kind="none"), update(0)], Run(41, 1, 60), graph=True),
    ),
    "a variable that was frozen": lambda: trace(
        healthy(Run(1, 1, 40)),
        block([step(), request(0), update(0)], Run(41, 1, 60), graph=True),
    ),
    "a variable twice in the list": lambda: trace(
        block([step(), request(0, 1, 1), update(0, 1, 1)], Run(1, 1, 30), graph=True)
    ),
    "a dense update of a table": lambda: trace(
        block([step(), request(0, kind="sparse"), update(0)], Run(1, 1, 30), graph=True),
        names=("words/embeddings",),
        optimizers=(optimizer(global_clipnorm=1.0),),
        rows=250_000,
    ),
    "a graph that never ran": lambda: trace(
        TRAINED,
        graphs=(
            graph("train_function", "x: float32[32, 4]", tracings=2, idle=1),  # as usual
            graph("train_function", "x: float32[?, 4]", idle=1, steps=0),
        ),
    ),
    "no graph that ran": lambda: trace(
        block([step(), request(0, 1), update(0, 1)], graph=True),
        graphs=(graph("train_step", idle=1, steps=0),),
    ),
    "a smaller batch": lambda: traced_for(
        "x: float32[32, 4] -> float32[7, 4]",
        trace(
            healthy(Run(1, 1, 100)),
            graphs=(
                graph("train_step", "x: float32[32, 4], training: True", steps=97),
                graph("train_step", "x: float32[7, 4], training: True", steps=3, after=33),
            ),
        ),
    ),
    "many sizes in a long run": lambda: trace(
        healthy(Run(1, 1, 1000)),
        graphs=[
            graph("train_step", f"x: float32[{size}]", steps=100, after=size) for size in range(10)
        ],
    ),
    "a function made each time": lambda: trace(
        TRAINED, graphs=(graph("train_step", "x: float32[8]", tracings=10),)
    ),
    "some steps skipped": lambda: skipping(Run(1, 1, 32), Run(36, 1, 29), steps=64),
    "steps skipped from the start": lambda: skipping(Run(5, 1, 60), steps=64, initial_scale=8.0),
    "all steps skipped": lambda: skipping(steps=3),
    "steps skipped by PyTorch": lambda: by_grad_scaler(used=True),
    "a scale that falls": lambda: skipping(Run(1, 1, 2), steps=22, dynamic_scale=2.0**-5),
    "gradients in skipped steps only": lambda: traces.changed(
        skipping(Run(3, 1, 8), steps=10),
        blocks=(
            block([step(), request(0, 1)], Run(1, 1, 2), graph=True),
            block([step(), request(0)], Run(3, 1, 8), graph=True),
            block([update(0, optimizer=1)], Run(3, 1, 8), is_step=False, graph=True),
        ),
    ),
    "accumulating, and steps skipped": lambda: traces.changed(
        skipping(steps=40),
        optimizers=(
            optimizer(class_name="keras.LossScaleOptimizer"),
            optimizer(gradient_accumulation_steps=4, iterations=None),
        ),
    ),
    "built, and not used": lambda: trace(optimizers=(optimizer(built=True, iterations=0),)),
}


def of_gradients(seen: Evidence) -> Trace:
    """What was seen of gradients on PyTorch, in 30 steps."""
    kept = optimizer(seen, class_name="torch.optim.SGD", kind=TORCH)
    return trace(healthy(Run(1, 1, 30)), optimizers=(kept,))


CASES |= {
    "gradients that nobody cleared": lambda: of_gradients(GradientsAdded(29, 29)),
    "zero_grad in each pass": lambda: of_gradients(GradientsLeft(27, 36, 1, "train.py:18")),
    "a group of passes at the end": lambda: of_gradients(GradientsLeft(1, 5, 4, "train.py:18")),
    "a layer that was made trainable": lambda: thawed("base/kernel"),
}

ENDED = Program("train.py", 0.0, status=0)


def raised(
    error: str,
    after: int = 10,
    last: bool = True,
    seen: Evidence | None = None,
) -> Trace:
    """A step that raised, after others of two variables."""
    failure = Failure("apply_gradients", error, after, last)
    failed = optimizer(*([] if seen is None else [seen]), failure, iterations=after)
    return trace(*([healthy(Run(1, 1, after))] if after else []), optimizers=(failed,))


def frozen(*names: str, more: bool = False) -> Trace:
    """Variables that were frozen after the step was traced."""
    own, other = optimizer(iterations=10), replace(optimizer(iterations=0), name="other", root=1)
    made = trace(TRAINED, optimizers=(own, other) if more else (own,))
    late = NotUpdated(0, tuple(range(len(names))), "frozen", 4)
    return traces.changed(made, not_updated=(late,))


def told(
    seen: Evidence | None = None,
    *,
    ended: bool = True,
    **options: Any,
) -> Trace:
    """An optimizer that trained, with something that it was told."""
    mine = optimizer(*([] if seen is None else [seen]), iterations=10, **options)
    made = trace(TRAINED, optimizers=(mine,))
    return traces.changed(made, programs=(ENDED,)) if ended else made


def several(*trained: tuple[int, ...], made: str = "train.py:12") -> Trace:
    """Root optimizers, each with the variables that it updates."""
    optimizers, blocks = [], []
    for root, variables in enumerate(trained):
        name = f"adam#{root + 1}" if root else "adam"
        optimizers.append(Optimizer(name, "keras.Adam", "keras3", root, {}, 10, (), made))
        entries = [
            step(root),
            request(*variables, optimizer=root),
            update(*variables, optimizer=root),
        ]
        blocks.append(block(entries, Run(1, 1, 10), root=root, graph=True))
    return trace(*blocks, names=("enc", "a", "b"), optimizers=optimizers)


def accumulated(steps: int, *, ended: bool = True) -> Trace:
    """Steps of which each fourth one updates."""
    made = trace(
        block([step(), request(0, 1)], Run(1, 1, steps), graph=True),
        block([update(0, 1)], Run(4, 4, steps // 4), is_step=False, graph=True),
        optimizers=(optimizer(gradient_accumulation_steps=4, iterations=steps),),
    )
    return traces.changed(made, programs=(ENDED,)) if ended else made


NOT_SCALED = LossNotScaled("scale_loss", "apply")

CASES |= {
    "an unknown variable": lambda: raised("ValueError: Unknown variable: <b/kernel>. Call build."),
    "an error in the first step": lambda: raised("ValueError: No gradients provided", after=0),
    "an error after which training went on": lambda: raised(
        "InvalidArgumentError: bad", last=False
    ),
    "a layer that was frozen too late": lambda: frozen("kernel"),
    "a critic that was frozen": lambda: frozen("kernel", "bias", more=True),
    "an optimizer for each epoch": lambda: several(*[(0, 1)] * 5),
    "ten steps in fours": lambda: accumulated(10),
    "fours of which one may be to come": lambda: accumulated(10, ended=False),
    "a loss that is not scaled": lambda: told(NOT_SCALED, initial_scale=2.0**15),
    "compiled, and not used": lambda: trace(optimizers=(optimizer(Fitted(), iterations=0),)),
}

SILENT: dict[str, Callable[[], Trace]] = {
    "an error that the class explains": lambda: raised("NotImplementedError: sparse", seen=MISSING),
    "a GradScaler that is disabled": lambda: by_grad_scaler(used=False),
    "compared, and all is well": lambda: watched(),
    "a warm-up that begins with 0": lambda: watched(effect("unchanged", (0, 1), Run(1, 1, 2))),
    "a layer that is still now and then": lambda: watched(effect("unchanged", (0,), Run(1, 2, 10))),
    "steps that only accumulate": lambda: watched(
        effect("unchanged", (0, 1), *(Run(first, 1, 3) for first in (1, 5, 9, 13, 17))),
        blocks=ACCUMULATING,
    ),
    "a loss scale of 1": lambda: told(NOT_SCALED, initial_scale=1.0, dynamic_scale=1.0),
    "a weight without elements": lambda: emptied(watched(effect("unchanged", (0,), Run(1, 1, 20)))),
    "a weight without elements, and without a gradient": lambda: emptied(
        trace(block([step(), request(0, kind="none"), request(1), update(1)], Run(1, 1, 20)))
    ),
    "updates of members, each once": lambda: trace(
        block([step(), request(0, 1, 1), update(0, 1, 1)], Run(1, 1, 30), graph=True),
        optimizers=(optimizer(SharedByMembers(2)),),
    ),
    "updates in steps that are not known": lambda: trace(
        healthy(Run(1, 1, 40)),
        block([step(), request(0), update(0)], Run(41, 1, 60), graph=True),
        block([update(1)], total=60, is_step=False, graph=True),
    ),
    "sparse updates, and dense ones": lambda: trace(
        block([step(), request(0, kind="sparse"), update(0)], Run(1, 2, 10)),
        block([step(), request(0, kind="sparse"), update(0, kind="sparse")], Run(2, 2, 10)),
    ),
    "a replica that is behind, and goes on": lambda: traces.changed(
        trace(healthy(Run(1, 1, 19)), healthy(Run(1, 1, 20), replica=1)), finished=False
    ),
    "built and traced, and the program goes on": lambda: traces.changed(
        trace(optimizers=(optimizer(built=True),), graphs=[graph("train_step", idle=1, steps=0)]),
        finished=False,
    ),
    "graphs of two workers that do the same": lambda: trace(
        healthy(Run(1, 1, 10)),
        healthy(Run(1, 1, 10), replica=1),
        graphs=[graph("train_step", "x: float32[8]", replica=replica) for replica in (0, 1)],
    ),
    "made trainable, no step yet": lambda: thawed("base/kernel", steps=0),
    "two replicas": lambda: trace(
        healthy(Run(1, 1, 20)), healthy(Run(1, 1, 20), replica=1), strategy="MirroredStrategy"
    ),
    "one copy for two replicas": lambda: trace(
        block([step(), request(0, 1), update(0, 1)], Run(1, 1, 20), graph=True),
        block([step(), request(0, 1)], Run(1, 1, 20), replica=1, graph=True),
        strategy="CentralStorageStrategy",
    ),
    "a variable that was not due yet": lambda: trace(
        block([step(), request(0, 1), update(0, 1)], Run(1, 10, 5), graph=True),
        block(
            [step(), request(0), update(0)],
            *(Run(2 + 10 * n, 1, 9) for n in range(5)),
            graph=True,
        ),
    ),
    "one graph": lambda: trace(TRAINED, graphs=(graph("train_step", "x: float32[8]"),)),
    "the argument of a function": traces.function_argument,
    "a variable that is updated directly": lambda: trace(
        block([step(), request(0, 1), update(0)], Run(1, 1, 20), graph=True),
        block([update(1)], is_step=False, total=3, outside=True),
    ),
    "an error ended the tracing": lambda: trace(
        block([step(), request(0, 1), update(0, 1)], graph=True),
        graphs=(graph("train_step", idle=1, steps=0, failed=1),),
    ),
    "not built": lambda: trace(optimizers=(optimizer(iterations=None),)),
    "nothing": traces.nothing,
    "a generator and a critic": lambda: several((0, 1), (2,)),
    "optimizers of unknown lines": lambda: several(*[(0, 1)] * 5, made=""),
    "an optimizer for each model": lambda: several((0,), (1,), (2,)),
    "incomplete": traces.incomplete,
}


def test_golden_sentences() -> None:
    lines = []
    for name, make in CASES.items():
        lines.append(f"{name}\n")
        for each in make().findings():
            at = "" if each.step is None else f" step {each.step}"
            lines.append(f"  {each.severity}[{each.code}]{at}: {each.text}\n    {each.advice}\n")
    assert_golden("findings/cases.txt", "".join(lines))


def test_every_rule_has_a_case() -> None:
    seen = {each.code for make in CASES.values() for each in make().findings()}
    assert seen == {each.code for each in RULES}


@pytest.mark.parametrize("kind", ["optax", "a kind of tomorrow"])
@pytest.mark.parametrize(
    ("seen", "code"),
    [
        (UNREACHED, "override-unreached"),
        (NeverAssigned("_resource_apply_dense", ("words/embeddings",)), "never-assigned"),
    ],
)
def test_a_file_may_name_a_kind_that_nobody_knows(kind: str, seen: Evidence, code: str) -> None:
    ran = (block([step(), request(0), update(0)], Run(1, 1, 8)),)
    stranger = traces.changed(remarked(seen, kind=kind), blocks=ran)
    assert code in render(stranger)


@pytest.mark.parametrize("name", SILENT)
def test_what_is_no_finding(name: str) -> None:
    assert SILENT[name]().findings() == []


@pytest.mark.parametrize("name", [*CASES, *SILENT])
def test_findings_are_worded_alike(name: str) -> None:
    made = {**CASES, **SILENT}[name]()
    found = made.findings()
    assert found == sorted(found, key=lambda each: SEVERITIES.index(each.severity))
    for each in found:
        of = rule_of(each.code)
        assert SEVERITIES.index(each.severity) >= SEVERITIES.index(of.severity)
        assert each.text.endswith((".", "…"))
        assert "  " not in each.text + each.advice + each.why
        assert not re.search(r"\b1 (steps|variables|times)\b", each.text), each.text
        assert set(each.variables) <= {variable.name for variable in made.variables}
        assert each.step is None or 1 <= each.step <= max(made.steps, 1)


def test_an_incomplete_trace_says_nothing_of_what_did_not_happen() -> None:
    for name, make in CASES.items():
        incomplete = traces.changed(make(), notes=(Note("a step was missed"),))
        codes = {each.code for each in incomplete.findings()}
        assert not codes & {
            *("never-updated", "no-gradient", "updates-stopped"),
            *("replicas-disagree", "steps-skipped", "never-used", "unchanged"),
            *("gradients-left", "loss-not-scaled"),
        }, name


def test_an_unknown_code_lists_the_near_ones() -> None:
    with pytest.raises(UnknownName, match="there are never-updated"):
        rule_of("never-update")


def test_the_documentation_has_every_rule() -> None:
    page = PAGE.read_text(encoding="utf-8")
    head, title, said = page.partition("## Which rules work where\n\n")
    intro, _, rules = said.partition("\n\n## The rules\n\n")
    assert title and "<!-- rules -->" in rules
    rows = [code for codes in rules_by_backend.BACKENDS.values() for code in codes.split()]
    assert sorted(rows) == sorted(each.code for each in RULES)
    table = f"{intro.partition(chr(10) * 2)[0]}\n\n{rules_by_backend.table()}"
    assert_golden(PAGE, f"{head}{title}{table}\n\n## The rules\n\n{rules}")
    assert len({each.code for each in RULES}) == len(RULES)
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", each.code) for each in RULES)


# Where a rule begins to speak, and where it becomes a warning: at the number, and one before it.


def bad(made: Trace, code: str) -> str:
    """The worst severity with which this is found; empty if it is not."""
    return next((each.severity for each in made.findings() if each.code == code), "")


@pytest.mark.parametrize(("gap", "enough"), [(0, 3), (1, 4), (2, 7), (5, 16)])
def test_a_silence_is_three_times_as_long_as_any_before(gap: int, enough: int) -> None:
    def silent(for_steps: int) -> Trace:
        runs = [Run(1, 1, 10), Run(11 + gap, 1, 2)]
        steps = runs[-1].last + for_steps
        return trace(
            block([step(), request(0), update(0)], Run(1, 1, steps), graph=True),
            block([update(1)], *runs, is_step=False, graph=True),
        )

    assert not bad(silent(enough - 1), "updates-stopped")
    assert bad(silent(enough), "updates-stopped")


@pytest.mark.parametrize("every", [2, 4])
def test_a_silence_of_what_is_updated_each_nth_step(every: int) -> None:
    def silent(for_steps: int) -> Trace:
        updates = Run(every, every, 8)
        return trace(
            block([step(), request(0), update(0)], Run(1, 1, updates.last + for_steps), graph=True),
            block([update(1)], updates, is_step=False, graph=True),
        )

    assert not bad(silent(3 * every), "updates-stopped")
    assert bad(silent(3 * every + 1), "updates-stopped")


STOPPED = [(11, 20, "but not applied"), (10, 12, "no longer passed"), (10, 11, "")]


@pytest.mark.parametrize(("asked", "others", "said"), STOPPED)
def test_why_updates_stopped_after_step_10(asked: int, others: int, said: str) -> None:
    made = trace(
        block([step(), request(0)], Run(1, 1, 20), graph=True),
        block([update(0)], Run(1, 1, others), is_step=False, graph=True),
        block([request(1)], Run(1, 1, asked), is_step=False, graph=True),
        block([update(1)], Run(1, 1, 10), is_step=False, graph=True),
    )
    texts = [each.text for each in made.findings() if each.code == "updates-stopped"]
    assert [said in text for text in texts] == [True] * bool(said)


def test_weights_that_stay_as_they_are() -> None:
    """Three updates, none of which changed them; a split variable changes if one shard does."""

    def still(number: int) -> Trace:
        return watched(effect("unchanged", (0,), Run(1, 1, number)), steps=number)

    assert not bad(still(2), "unchanged")
    assert bad(still(3), "unchanged") == "warning"
    steps = Run(1, 1, 20)
    seen = [effect("compared", (0, 1), steps, replica=replica) for replica in (0, 1)]
    shards = in_parts(trace(healthy(steps), healthy(steps, replica=1)))
    for number, severity in ((1, ""), (2, "warning")):
        idle = [effect("unchanged", (0,), steps, replica=replica) for replica in range(number)]
        assert bad(traces.changed(shards, effects=(*seen, *idle)), "unchanged") == severity


def test_a_shard_that_is_not_updated() -> None:
    """A step of the program's own may leave an empty shard out, but ranks get gradients alike."""
    steps = Run(1, 1, 20)
    left = block([step(), request(0, 1), update(1)], steps, replica=1)
    none = block([step(), request(0, kind="none"), request(1), update(1)], steps, replica=1)
    late = block([update(0)], Run(2, 1, 19), replica=1, is_step=False)
    for others, parts in (([left], ""), ([none], "error"), ([left, late], "error")):
        made = trace(healthy(steps), *others)
        assert bad(made, "replicas-disagree") == "error"
        assert bad(in_parts(made), "replicas-disagree") == parts


@pytest.mark.parametrize(
    ("initial_scale", "enough"), [(2.0**15, 16), (8.0, 4), (6.0, 4), (2.0, 2), (1.0, 1), (0.5, 16)]
)
def test_more_skipped_steps_than_halve_a_scale_to_1(initial_scale: float, enough: int) -> None:
    def skipped(number: int) -> Trace:
        return skipping(Run(number + 1, 1, 60), steps=number + 60, initial_scale=initial_scale)

    assert bad(skipped(enough - 1), "steps-skipped") == ("info" if enough > 1 else "")
    assert bad(skipped(enough), "steps-skipped") == "warning"


@pytest.mark.parametrize(
    ("scales", "severity"),
    [
        ({"initial_scale": 1.0, "dynamic_scale": 1.0}, ""),
        ({"initial_scale": 1.0, "dynamic_scale": 2.0}, "warning"),
        ({"initial_scale": 2.0, "dynamic_scale": 1.0}, "warning"),
        ({"initial_scale": 1.0}, ""),
        ({"loss_scale_factor": 8.0}, "warning"),
    ],
)
def test_a_scale_that_changes_anything(scales: dict[str, Any], severity: str) -> None:
    assert bad(told(NOT_SCALED, **scales), "loss-not-scaled") == severity


@pytest.mark.parametrize(("steps", "severity"), [(18, "warning"), (22, "info"), (20, "")])
def test_gradients_that_are_left_are_a_tenth(steps: int, severity: str) -> None:
    assert bad(accumulated(steps), "gradients-left") == severity


@pytest.mark.parametrize(("number", "severity"), [(2, ""), (3, "info")])
def test_optimizers_of_one_line_are_renewed_from_the_third_on(number: int, severity: str) -> None:
    assert bad(several(*[(0, 1)] * number), "optimizer-renewed") == severity


@pytest.mark.parametrize(
    ("tracings", "steps", "severity"), [(5, 100, "warning"), (5, 101, "info"), (4, 80, "info")]
)
def test_tracings_that_take_long(tracings: int, steps: int, severity: str) -> None:
    again = graph("train_step", "x: float32[8]", tracings=tracings, steps=steps)
    assert bad(trace(healthy(Run(1, 1, steps)), graphs=(again,)), "retraced") == severity


# What must hold of every trace.

RUNS = st.builds(
    Run,
    first=st.integers(1, 12),
    stride=st.integers(1, 4),
    count=st.integers(1, 6),
    times=st.integers(1, 2),
)


@st.composite
def _updates(draw: st.DrawFn) -> tuple[Trace, list[list[dict[int, int]]]]:
    """A trace of two replicas and two variables, and the updates of each in each step."""
    steps = 40
    blocks = []
    counts: list[list[dict[int, int]]] = [[{}, {}], [{}, {}]]
    for replica in (0, 1):
        blocks.append(block([step(), request(0, 1)], Run(1, 1, steps), replica=replica, graph=True))
        for variable in (0, 1):
            for run in draw(st.lists(RUNS, max_size=3)):
                blocks.append(
                    block([update(variable)], run, replica=replica, is_step=False, graph=True)
                )
                for at in range(run.first, run.last + 1, run.stride):
                    of = counts[replica][variable]
                    of[at] = of.get(at, 0) + run.times
    return trace(*blocks, strategy="MirroredStrategy"), counts


def _of(found: Sequence[Finding], code: str, variable: str) -> list[Finding]:
    return [each for each in found if each.code == code and variable in each.variables]


@settings(max_examples=300)
@given(_updates())
def test_what_is_found_is_so(made: tuple[Trace, list[list[dict[int, int]]]]) -> None:
    whole, counts = made
    found = whole.findings()
    for variable, name in enumerate(("kernel", "bias")):
        mine = [counts[replica][variable] for replica in (0, 1)]
        totals = [sum(each.values()) for each in mine]
        disagree = _of(found, "replicas-disagree", name)
        assert bool(disagree) == (totals[0] != totals[1])
        if disagree:
            first = min(at for at in range(1, 41) if mine[0].get(at, 0) != mine[1].get(at, 0))
            steps = {each.step for each in disagree if each.step is not None}
            assert min(steps) <= first
            if disagree[0].variables == (name,):
                assert steps == {first}
        twice = [at for at, count in mine[0].items() if count > 1]
        reported = _of(found, "updated-twice", name)
        assert bool(reported) == (bool(twice) and totals[0] == totals[1])
        if reported and reported[0].variables == (name,):
            assert reported[0].step == min(twice)
        never = _of(found, "never-updated", name)
        everything = sum(sum(each.values()) for of in counts for each in of)
        assert bool(never) == (not sum(totals) and everything > 0)
        stopped = _of(found, "updates-stopped", name)
        if stopped and stopped[0].variables == (name,):
            assert stopped[0].step == max(mine[0]) + 1
            assert max(counts[0][1 - variable]) > max(mine[0])


@given(st.lists(RUNS, max_size=4), st.integers(1, 60))
def test_streaks_of_skipped_steps(runs: list[Run], steps: int) -> None:
    parts = [part for run in runs if (part := run.intersect(range(1, steps + 1)))]
    applied = {at for run in parts for at in range(run.first, run.last + 1, run.stride)}
    skipped = [at for at in range(1, steps + 1) if at not in applied]
    found = [
        each for each in skipping(*parts, steps=steps).findings() if each.code == "steps-skipped"
    ]
    assert bool(found) == bool(skipped)
    if found:
        longest = current = 0
        for at in range(1, steps + 1):
            current = 0 if at in applied else current + 1
            longest = max(longest, current)
        assert found[0].step == skipped[0]
        assert f"{len(skipped):,} step" in found[0].text
        said = re.search(r"up to (\d+) in a row", found[0].text)
        assert int(said[1] if said else 1) == longest
        assert found[0].severity == ("warning" if longest > min(15, steps - 1) else "info")


def test_one_is_singular() -> None:
    behind = trace(healthy(Run(1, 1, 1)), healthy(Run(1, 1, 3), replica=1))
    (finding,) = behind.findings()
    assert finding.text == "replica 0 ran 1 step, replica 1 ran 3: they differ from step 2 on."
    idle = [graph(f"train_{n}", idle=1, steps=0) for n in range(4)]
    texts = [each.text for each in trace(TRAINED, graphs=idle).findings()]
    assert texts == [
        "4 functions (train_0, train_1, train_2 and train_3): 4 of their 4 graphs never ran."
    ]
    once = trace(healthy(Run(1, 1, 1)))
    assert "): 1 step, " in render(once)
    alone = trace(block([step(), request(0), update(0)], Run(1, 1, 1)), names=("a",))
    assert keras.line(alone, 1, 1).startswith("step 1: 1 update per step, ")
    assert repr(alone) == "<Trace of 1 step, 1 update>"
    with pytest.raises(UnknownName, match="the trace holds 1 step"):
        part_of(alone, step=range(2, 3))
