"""Traces made by hand, as real runs give them, for tests that need no TensorFlow.

`ALL` has one of each sort: the golden reports show them, and what must hold of every trace is tried
on each. A test that needs another one puts it together of the same parts: `keras3` of blocks, and
these of entries; `trained` if every step is alike; `changed` if a trace differs in a few fields.
"""

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec
from msgspec.structs import replace

from tracer.model.evidence import Iterations, NoStep
from tracer.model.records import (
    Block,
    Entry,
    Graph,
    Kind,
    Line,
    Method,
    Note,
    NoteKind,
    NotUpdated,
    Observation,
    Optimizer,
    Program,
    Rate,
    RateRun,
    Replica,
    Role,
    TraceData,
    Variable,
)
from tracer.model.timeline import Run
from tracer.model.trace import Trace

VERSIONS = {"python": "3.12.3", "tensorflow": "2.21.0", "keras": "3.15.1"}
LEGACY = VERSIONS | {"tf_keras": "2.21.0"}
APPLY_GRADIENTS = Method("apply_gradients", "step")
UPDATE_STEP = Method("update_step", "apply")
DENSE = Method("_resource_apply_dense", "apply")
SPARSE = Method("_resource_apply_sparse", "apply")
DUPLICATES = Method("_resource_apply_sparse_duplicate_indices", "apply")


def variables(*names: str) -> tuple[Variable, ...]:
    return tuple(Variable(name, (8, 4), "float32") for name in names)


def replicas(count: int) -> tuple[Replica, ...]:
    device = "/job:localhost/replica:0/task:0/device:CPU:{}" if count > 1 else ""
    return tuple(Replica("", id, device.format(id)) for id in range(count))


def step(optimizer: int = 0, method: int = 0) -> Entry:
    return Entry(optimizer, method, "step", None, ())


def request(*of: int, kind: Kind = "dense", optimizer: int = 0) -> Entry:
    return Entry(optimizer, 0, "request", kind, of)


def update(
    *of: int, method: int = 1, kind: Kind = "dense", optimizer: int = 0, role: Role = "update"
) -> Entry:
    return Entry(optimizer, method, role, kind, of)


def block(
    entries: Sequence[Entry],
    *runs: Run,
    replica: int = 0,
    root: int = 0,
    is_step: bool = True,
    graph: bool = False,
    total: int | None = None,
    outside: bool = False,
) -> Block:
    return Block(
        root=root,
        replica=replica,
        context="graph" if graph else "eager",
        function="train_function" if graph else "",
        step=is_step,
        entries=tuple(entries),
        total=sum(run.total for run in runs) if total is None else total,
        runs=runs,
        outside=outside,
    )


def called(
    method: int,
    of: Sequence[int],
    *,
    eager: int = 0,
    tracing: int = 0,
    kind: Kind | None = "dense",
    replica: int = 0,
    optimizer: int = 0,
    root: int | None = None,
    path: int | None = None,
) -> Block:
    assert not (eager and tracing), "each context is a block of its own"
    entry = Entry(optimizer, method, "call", kind, tuple(of))
    root = optimizer if root is None else root
    made = Block(root, replica, "eager", "", False, (entry,), eager, (), path=path)
    return replace(made, context="tracing", total=tracing) if tracing else made


def effect(what: Observation, of: Sequence[int], *runs: Run, replica: int = 0) -> Block:
    entry = Entry(0, 0, what, None, tuple(of))
    return Block(0, replica, "eager", "", False, (entry,), sum(run.total for run in runs), runs)


def embedding_on_two_replicas() -> Trace:
    """64 steps of legacy Adam under a loss scale; step 33 was skipped, one graph never ran."""
    blocks, calls = [], []
    for replica in (0, 1):
        requests = (request(0, kind="sparse"), request(1, 2, 3, 4))
        updates = (
            update(0, method=2, kind="sparse"),
            update(0, method=3, kind="sparse", role="apply"),
            update(1, 2, 3, 4),
        )
        blocks += [
            block([step(), *requests], Run(1, 1, 64), replica=replica, graph=True),
            block(
                updates,
                Run(1, 1, 32),
                Run(34, 1, 31),
                replica=replica,
                is_step=False,
                graph=True,
            ),
        ]
        calls += [
            called(0, (), tracing=2, kind=None, replica=replica),
            called(1, (1, 2, 3, 4), tracing=2, replica=replica),
            called(2, (0,), tracing=2, kind="sparse", replica=replica),
            called(3, (0,), tracing=2, kind="sparse", replica=replica),
        ]
    weights = ("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias")
    return changed(
        keras3(("embedding/embeddings", *weights), tuple(blocks), ()),
        optimizers=(Optimizer("Adam", "tf_keras.src.optimizers.legacy.adam.Adam", "legacy", 0),),
        methods=(APPLY_GRADIENTS, DENSE, DUPLICATES, SPARSE),
        calls=tuple(calls),
        graphs=(Graph(0, 0, "train_function", "", 2, 1, 64, 0),),
        environment=LEGACY | {"strategy": "MirroredStrategy"},
    )


def accumulation(steps: int = 64, every: int = 4) -> Trace:
    """Keras 3 Adam on one replica that applies every `every` steps; one graph never ran."""
    names = ("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias")
    blocks = (
        block([step(), request(0, 1, 2, 3)], Run(1, 1, steps), graph=True),
        block(
            [update(0, 1, 2, 3)],
            Run(every, every, steps // every),
            is_step=False,
            graph=True,
        ),
    )
    graph = Graph(0, 0, "train_function", "", 2, 1, steps, 0)
    return changed(keras3(names, blocks, (called(1, range(4), tracing=2),)), graphs=(graph,))


def discarding() -> Trace:
    """Keras 3 on JAX, 64 steps: each computes its updates, and every 4th keeps them."""
    names = ("dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias")
    handed = [step(), request(0, 1, 2, 3)]
    thrown_away = [Run(first, 1, 3) for first in range(1, 65, 4)]
    blocks = (
        block([*handed, update(0, 1, 2, 3, role="discarded")], *thrown_away, graph=True),
        block([*handed, update(0, 1, 2, 3)], Run(4, 4, 16), graph=True),
    )
    trace = keras3(names, blocks, (called(1, range(4), tracing=2),))
    told = replace(trace.data.optimizers[0], settings={"gradient_accumulation_steps": 4})
    return changed(trace, optimizers=(told,))


def with_effects() -> Trace:
    """10 steps: the kernel stays as it is in 4 to 6, the bias is not finite from step 8 on."""
    work = [step(), request(0, 1), update(0, 1)]
    trace = keras3(
        ("dense/kernel", "dense/bias"),
        (block(work, Run(1, 1, 10), graph=True),),
        (called(1, (0, 1), tracing=1),),
    )
    effects = (
        effect("compared", (0, 1), Run(1, 1, 10)),
        effect("unchanged", (0,), Run(4, 1, 3)),
        effect("unchanged", (1,), Run(9, 1, 2)),
        effect("not_finite", (1,), Run(8, 1, 3)),
    )
    return changed(trace, effects=effects)


def eager() -> Trace:
    """10 eager steps of Keras 3 SGD."""
    blocks = (block([step(), request(0, 1), update(0, 1)], Run(1, 1, 10)),)
    return keras3(("dense/kernel", "dense/bias"), blocks, (called(1, (0, 1), eager=10),), "SGD")


def incomplete() -> Trace:
    """100 steps: of 6 the detail was lost, and more ran before it was wrapped."""
    work = [step(), request(0, 1), update(0, 1)]
    return keras3(
        ("dense/kernel", "dense/bias"),
        (block(work, Run(1, 1, 40), Run(47, 1, 54), graph=True, total=100),),
        (called(1, (0, 1), tracing=1),),
        notes=(
            "adam: 32 calls of 'train' are not counted, because the function was traced before the "
            "optimizer was wrapped; wrap the optimizer before it trains",
            "on replica 0, details of some steps from 41 to 46 were lost (a function ran more "
            "steps in one call than are kept): the totals are exact, but the step of some updates "
            "is unknown",
        ),
    )


def no_steps() -> Trace:
    """An optimizer that was wrapped and never used."""
    return keras3((), (), (), methods=())


def never_ran() -> Trace:
    """A train step that was traced into a graph, and the graph never ran."""
    blocks = (block([step(), request(0, 1), update(0, 1)], graph=True),)
    return keras3(("dense/kernel", "dense/bias"), blocks, (called(1, (0, 1), tracing=1),))


def nothing() -> Trace:
    """A recording in which no optimizer was seen."""
    return Trace(TraceData((), (), (), (), (), ()))


def hostile_names() -> Trace:
    """Names that would colour, clear, reverse or break the report if they were printed as is."""
    names = (
        "[bold red]kernel[/bold red]",
        "two\nlines\tand\rmore",
        "\x1b[2J\x1b[31mred",
        "abc\u202egnp.exe",
        "層/カーネル",
        ":warning:",
        "",
    )
    work = [step(), request(*range(7)), update(*range(7))]
    return keras3(
        names,
        (block(work, Run(1, 1, 3), graph=True),),
        (called(1, range(7), tracing=1),),
        "[link=x]\x07Adam",
    )


def by_a_stranger(trace: Trace) -> Trace:
    """The trace with all that is text written to harm who reads it: escapes, lines and paths."""
    harm = "\x1b[2J\x1b]0;x\x07\r\nholds  all\u202e\x9b31m[red]</script>../../"
    fixed = {*get_args(Kind), *get_args(Role), "eager", "graph", "tracing", "keras3"}
    fixed |= {"first", "variables", "argument", "function", *get_args(NoteKind)}  # causes

    def harmed(value: Any) -> Any:
        if isinstance(value, dict):
            own = {name: harmed(each) for name, each in value.items()}
            return own | {name: value[name] for name in value.keys() & {"type", "what", "why"}}
        if isinstance(value, list | tuple):
            return [harmed(each) for each in value]
        return harm + value if isinstance(value, str) and value not in fixed else value

    program = Program("train.py", 1.0, status=1, error="Boom")
    ended = changed(trace, programs=(program,), notes=(Note("noted"),))
    plain = harmed(msgspec.to_builtins(ended.data))
    return Trace(msgspec.convert(plain, TraceData))


def two_optimizers() -> Trace:
    """A GAN: the discriminator is updated in each of 30 steps, the generator in 10 of its own."""
    both = (
        Optimizer("adam", "keras.src.optimizers.adam.Adam", "keras3", 0),
        Optimizer("adam#2", "keras.src.optimizers.adam.Adam", "keras3", 1),
    )
    names = ("generator/kernel", "generator/bias", "discriminator/kernel")
    other = [step(1), request(2, optimizer=1), update(2, optimizer=1)]
    blocks = (
        block([step(), request(0, 1), update(0, 1)], Run(1, 1, 10), graph=True),
        block(other, Run(1, 1, 30), root=1, graph=True),
    )
    calls = (called(1, (0, 1), tracing=1), called(1, (2,), tracing=1, optimizer=1))
    return changed(keras3(names, blocks, ()), optimizers=both, calls=calls)


def facts() -> Trace:
    """A head and a neck are trained by turns; the encoder is frozen, and one layer forgotten."""
    layers = [f"encoder/layer_{number}/{n}" for number in range(6) for n in ("kernel", "bias")]
    names = ("head/kernel", "head/bias", "neck/kernel", *layers, "adapter/kernel")
    adam, sgd, unused = (
        Optimizer(f"{name.lower()}", f"keras.src.optimizers.{name}", "keras3", root, made=made)
        for root, (name, made) in enumerate(
            (("Adam", "train.py:8"), ("SGD", "train.py:9"), ("Nadam", "train.py:10"))
        )
    )
    rates = (
        Rate(0, "rate", 0, (0, 1), (RateRun(1, 24, 0.001, 0.001),), looks=26),
        Rate(0, "decay", 0, (0,), (RateRun(1, 24, 0.01, 0.01),), looks=26),
        Rate(1, "rate", 0, (0, 2), (RateRun(1, 12, 0.0, 0.0),), looks=4),
    )
    other = [step(1), request(0, 2, optimizer=1), update(0, 2, optimizer=1)]
    blocks = (
        block([step(), request(0, 1), update(0, 1)], Run(1, 1, 24), graph=True),
        block(other, Run(1, 1, 12), root=1, graph=True),
    )
    return changed(
        keras3(names, blocks, ()),
        optimizers=(
            replace(adam, evidence=(Iterations(24, 72),)),
            replace(sgd, evidence=(Iterations(0, 12),)),
            replace(unused, evidence=(NoStep("all frozen"),)),
        ),
        calls=(called(1, (0, 1), tracing=1), called(1, (0, 2), tracing=1, optimizer=1)),
        rates=rates,
        not_updated=(
            NotUpdated(0, (2, *range(3, 15)), "frozen"),
            NotUpdated(0, (15,), "not passed"),
        ),
    )


def many_optimizers() -> Trace:
    """Six optimizers with two variables each: `adam_3` ran 40 steps."""
    names = ("adam", *(f"adam_{number}" for number in range(1, 6)))
    optimizers = tuple(
        Optimizer(name, "keras.src.optimizers.adam.Adam", "keras3", root)
        for root, name in enumerate(names)
    )
    blocks, calls = [], []
    for root in range(6):
        of = (2 * root, 2 * root + 1)
        work = [step(root), request(*of, optimizer=root), update(*of, optimizer=root)]
        blocks.append(block(work, Run(1, 1, 10 * (root + 1)), root=root, graph=True))
        calls.append(called(1, of, tracing=1, optimizer=root))
    parts = [f"part_{number}/{part}" for number in range(6) for part in ("kernel", "bias")]
    trace = keras3(parts, tuple(blocks), ())
    return changed(trace, optimizers=optimizers, calls=tuple(calls))


def many_variables() -> Trace:
    """200 variables of a deep model on 8 replicas; the last one is never updated."""
    layers = [f"encoder/layer_{layer}/attention/self/query" for layer in range(100)]
    names = [f"{layer}/{part}" for layer in layers for part in ("kernel", "bias")]
    ids = range(199)
    blocks, calls = [], []
    for replica in range(8):
        work = [step(), request(*ids), request(199, kind="none"), update(*ids)]
        blocks.append(block(work, Run(1, 1, 1000), replica=replica, graph=True))
        calls.append(called(1, ids, tracing=1, replica=replica))
    return changed(
        keras3(names, tuple(blocks), ()),
        optimizers=(Optimizer("adam", "keras.src.optimizers.adam.Adam", "keras3", 0),),
        calls=tuple(calls),
        environment=VERSIONS | {"strategy": "MirroredStrategy"},
    )


def no_gradients() -> Trace:
    """20 eager steps: one variable never has a gradient, another not in every second step."""
    some = [step(), request(0, 1), request(2, kind="none"), update(0, 1)]
    fewer = [step(), request(0), request(1, 2, kind="none"), update(0)]
    blocks = (block(some, Run(1, 2, 10)), block(fewer, Run(2, 2, 10)))
    calls = (called(1, (0,), eager=20), called(1, (1,), eager=10))
    return keras3(("shared/kernel", "branch/kernel", "unused/kernel"), blocks, calls, "SGD")


def uneven_replicas() -> Trace:
    """Two workers with two replicas each: the second worker ran 2 steps less, and twice as much."""
    places = [Replica(f"worker:{w}", id, f"GPU:{id}") for w in (0, 1) for id in (0, 1)]
    blocks = [
        block(
            [step(), request(0, 1), update(*((0, 1) if replica < 2 else (0, 1, 0, 1)))],
            Run(1, 1, 10 if replica < 2 else 8),
            replica=replica,
            graph=True,
        )
        for replica in range(4)
    ]
    calls = [called(1, (0, 1), tracing=1, replica=replica) for replica in range(4)]
    return changed(
        keras3(("dense/kernel", "dense/bias"), tuple(blocks), ()),
        replicas=tuple(places),
        calls=tuple(calls),
        environment=VERSIONS | {"strategy": "MultiWorkerMirroredStrategy"},
    )


def loss_scaled() -> Trace:
    """8 steps of an optimizer in a loss scale, on one replica; step 3 was skipped."""
    blocks = (
        block([step(), request(0, 1)], Run(1, 1, 8), graph=True),
        block([update(0, 1)], Run(1, 1, 2), Run(4, 1, 5), is_step=False, graph=True),
    )
    trace = keras3(("dense/kernel", "dense/bias"), blocks, ())
    (inner,) = trace.optimizers
    outer = replace(
        inner, name="loss_scale_optimizer", class_name="keras.optimizers.LossScaleOptimizer"
    )
    return changed(trace, optimizers=(outer, inner))


def all_skipped() -> Trace:
    """40 steps in Keras 3 that a loss scale skipped; the first of two tracings made variables."""
    branch = [update(0, optimizer=1)]
    blocks = (
        block([step(), request(0)], graph=True),
        block([step(), request(0)], Run(1, 1, 40), graph=True),
        block(branch, is_step=False, graph=True),
        block(branch, is_step=False, graph=True),
    )
    made = keras3(("kernel",), blocks, (called(1, (0,), tracing=2, optimizer=1, root=0),))
    (inner,) = made.optimizers
    outer = Optimizer("scale", "keras.LossScaleOptimizer", inner.kind, 0)
    graph = Graph(0, 0, "train_function", "x: float32[32, 4]", 2, 1, 40, 0)
    return changed(made, optimizers=(outer, inner), graphs=(graph,))


def applied_twice() -> Trace:
    """5 eager steps of a wrapper that applies each gradient twice."""
    work = [step(), request(0, 1), update(0, 1), update(0, 1)]
    calls = (called(1, (0, 1), eager=10),)
    return keras3(("dense/kernel", "dense/bias"), (block(work, Run(1, 1, 5)),), calls)


def gradient_from_step_5() -> Trace:
    """16 eager steps on one of two variables; the other has a gradient from step 5 on."""
    early = block([step(), request(0), request(1, kind="none"), update(0)], Run(1, 1, 4))
    late = block([step(), request(0, 1), update(0, 1)], Run(5, 1, 12))
    return keras3(("dense/kernel", "dense/bias"), (early, late), ())


def direct_calls() -> Trace:
    """5 eager steps, and 3 calls of the apply method by the program itself."""
    blocks = (
        block([step(), request(0), update(0)], Run(1, 1, 5)),
        block([update(0)], is_step=False, total=3, outside=True),
    )
    return keras3(("dense/kernel",), blocks, (called(1, (0,), eager=8),), "SGD")


def function_argument() -> Trace:
    """A `tf.function` that is traced once for two variables of one shape."""
    trace = keras3(
        ("v",),
        (block([step(), request(0), update(0)], Run(1, 1, 12), graph=True),),
        (called(1, (0,), tracing=1),),
        "SGD",
    )
    return changed(
        trace,
        variables=(Variable("argument v", (4,), "float32", argument=True),),
        calls=(called(1, (0,), tracing=1),),
        environment=VERSIONS,
    )


def several_callers() -> Trace:
    """63 steps on two replicas: 60 by `fit` in two lines, in one graph, and 3 eager ones.

    The graph was traced twice, and ran after the second time only. Of three blocks of an
    encoder all is updated; an embedding never had a gradient.
    """
    lines = (
        Line("<module>", "train.py", 50),
        Line("main", "train.py", 41),
        Line("Model.fit"),
        Line("train_function", graph=True),
        Line("MyModel.train_step", "model.py", 88),
        Line("Adam.minimize"),
        Line("Adam.apply_gradients"),
        Line("main", "train.py", 44),
        Line("warm_up", "steps/warm.py", 12),
    )
    paths = (
        (0, 1, 2, 3, 4, 5, 6),
        (0, 7, 2, 3, 4, 5, 6),
        (0, 8, 6),
        (0, 1, 2, 3),
        (0, 7, 2, 3),
    )
    parts = [f"attention/{part}" for part in ("query/kernel", "query/bias", "output/kernel")]
    names = [f"encoder/block_{number}/{part}" for number in range(1, 4) for part in parts]
    names += ["head/kernel", "head/bias", "embedding/embeddings"]
    work = [step(), request(*range(11)), request(11, kind="none"), update(*range(11))]
    blocks, calls = [], []
    for replica in (0, 1):
        eagerly = block(work, Run(1, 1, 3), replica=replica)
        first = block(work, Run(4, 1, 40), replica=replica, graph=True)
        second = block(work, Run(44, 1, 20), replica=replica, graph=True)
        for path, each in ((2, eagerly), (0, first), (1, second)):
            blocks.append(replace(each, path=path))
        calls += [
            called(0, (), tracing=2, kind=None, replica=replica, path=0),
            called(1, range(11), tracing=2, replica=replica, path=0),
            called(0, (), eager=3, kind=None, replica=replica, path=2),
            called(1, range(11), eager=3, replica=replica, path=2),
        ]
    smaller = "x: float32[32, 4] -> float32[8, 4]"
    return changed(
        keras3(names, tuple(blocks), ()),
        calls=tuple(calls),
        lines=lines,
        paths=paths,
        graphs=(
            Graph(0, 0, "train_function", "x: float32[32, 4]", 2, 1, 40, 3, 0, 3),
            Graph(0, 0, "train_function", "x: float32[8, 4]", 1, 0, 20, 43, 0, 4, smaller),
        ),
        environment=VERSIONS | {"strategy": "MirroredStrategy"},
    )


def keras3(
    names: Sequence[str],
    blocks: tuple[Block, ...],
    calls: tuple[Block, ...],
    class_name: str = "Adam",
    methods: tuple[Method, ...] = (APPLY_GRADIENTS, UPDATE_STEP),
    notes: tuple[str, ...] = (),
) -> Trace:
    """One optimizer of Keras 3 with these blocks, on as many replicas as they name."""
    if blocks:
        traced = sum(each.context == "graph" for each in blocks if each.step)
        eagerly = sum(each.total for each in blocks if each.step and each.context == "eager")
        calls = (called(0, (), tracing=traced, kind=None), *calls)
        calls = (called(0, (), eager=eagerly, kind=None), *calls)
    ran: dict[int, int] = {}
    for each in blocks:
        if each.context == "graph":
            ran[each.root] = max(ran.get(each.root, 0), each.total)
    graphs = [Graph(root, 0, "train_function", "", 1, int(not n), n, 0) for root, n in ran.items()]
    calls = tuple(
        replace(each, context=context, total=each.total if each.context == context else 0)
        for each in calls
        for context in ("eager", "tracing")
    )
    return Trace(
        TraceData(
            optimizers=(Optimizer(class_name.lower(), f"my.optimizers.{class_name}", "keras3", 0),),
            variables=variables(*names),
            methods=methods,
            replicas=replicas(1 + max((each.replica for each in blocks), default=0)),
            blocks=blocks,
            calls=calls,
            graphs=tuple(graphs),
            notes=tuple(map(Note, notes)),
            environment=VERSIONS | {"strategy": ""},
        )
    )


def trained(names: Sequence[str], *runs: Run, replicas: int = 1, graph: bool = False) -> Trace:
    """Each of the variables is updated once in each step of these runs, on each replica."""
    ids = range(len(names))
    work = [step(), request(*ids), update(*ids)]
    blocks = (block(work, *runs, replica=number, graph=graph) for number in range(replicas))
    return keras3(names, tuple(blocks), ())


def changed(trace: Trace, **fields: object) -> Trace:
    """The same trace with other `fields` of its data."""
    return Trace(replace(trace.data, **fields))


ALL: dict[str, Callable[[], Trace]] = {
    each.__name__: each
    for each in (
        embedding_on_two_replicas,
        accumulation,
        discarding,
        eager,
        with_effects,
        incomplete,
        no_steps,
        never_ran,
        nothing,
        hostile_names,
        two_optimizers,
        facts,
        many_optimizers,
        many_variables,
        no_gradients,
        uneven_replicas,
        direct_calls,
        function_argument,
        several_callers,
    )
}
