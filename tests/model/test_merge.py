"""Merging the workers' traces of a run."""

import io
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
from hypothesis import event, given, strategies as st
from msgspec.structs import replace
from support import traces
from support.traces import block, called, step, update

import tracer
from tracer.model.evidence import Failure, GradientsAdded, NeverPassed, StateRenewed
from tracer.model.merge import combine
from tracer.model.names import distinct
from tracer.model.phrases import sentences_on, why_not
from tracer.model.records import (
    Entry,
    Graph,
    Launch,
    Method,
    Note,
    NotUpdated,
    Optimizer,
    Program,
    Replica,
    TraceData,
    Variable,
    WhyNot,
)
from tracer.model.timeline import Run
from tracer.model.trace import Trace, summaries_of
from tracer.model.tracefile import decode, encode, load_run
from tracer.reporters.text import headline

CLUSTER = "worker:0, worker:1, worker:10, worker:2"


def worker(name: str, steps: int = 10, variables: tuple[str, ...] = ("a", "b")) -> TraceData:
    """A worker with two replicas whose steps update each variable once."""
    return replace(
        traces.trained(variables, Run(1, 1, steps), replicas=2, graph=True).data,
        replicas=(Replica(name, 0, "CPU:0"), Replica(name, 1, "CPU:1")),
        calls=(called(1, range(len(variables)), tracing=1),),
        environment={"cluster": CLUSTER},
    )


def merged(*parts: TraceData) -> Trace:
    return tracer.merge(Trace(part) for part in parts)


ALL = [worker(f"worker:{index}", steps=10 - index % 10) for index in (10, 1, 0, 2)]


def test_counts_add_up_and_stay_apart() -> None:
    trace = merged(*ALL)
    assert trace.complete
    assert trace.steps == 10
    assert trace.updates() == sum(part.blocks[0].total * 4 for part in ALL)
    assert trace.updates(worker="worker:2") == 8 * 2 * 2
    assert trace.updates(worker="worker:2", replica=1, variable="a", step=range(1, 5)) == 4
    assert trace.calls("update_step") == 4 * 2
    assert [each.worker for each in trace.replicas[::2]] == [
        "worker:0",
        "worker:1",
        "worker:2",
        "worker:10",
    ]


def test_variables_and_methods_in_another_order_are_the_same() -> None:
    other = worker("worker:1", 7, ("b", "a"))
    only_b = replace(other.blocks[0], entries=(Entry(0, 1, "update", "sparse", (0,)),))
    other = replace(other, blocks=(only_b,), methods=(Method("apply", "step"), other.methods[1]))
    trace = merged(worker("worker:0"), other)
    assert trace.updates("sparse") == trace.updates("sparse", variable="b") == 7
    assert trace.updates("dense", variable="a") == 20


NOTHING = TraceData((), (), (), (), (), ())
MIXED = "the traces are of different launches, so the counts mix several runs"


def missing(names: str) -> tuple[str, ...]:
    return (f"no trace of {names}, so nothing that ran there is counted",)


def of(cluster: str, part: TraceData, **fields: object) -> TraceData:
    return replace(part, environment={"cluster": cluster}, **fields)


TWO, THREE = "rank:0, rank:1", "rank:0, rank:1, rank:2"
SEVERAL: dict[str, tuple[list[TraceData], tuple[str, ...]]] = {
    "all": (ALL, ()),
    "two of four": ([ALL[0], ALL[2]], missing("worker:1 and worker:2")),
    # A wrapped optimizer learns its variables in its first step.
    "one without a step": (
        [ALL[0], replace(NOTHING, optimizers=ALL[1].optimizers), *ALL[2:]],
        missing("worker:1"),
    ),
    "one that used no optimizer": (
        [*ALL[:-1], replace(NOTHING, processes=("worker:2",), finished=False)],
        (),
    ),
    # Its worker is one more, and no other one is missing.
    "a file of a run with more ranks": (
        [*(of(TWO, worker(f"rank:{number}")) for number in (0, 1)), of(THREE, worker("rank:2"))],
        (MIXED,),
    ),
    "two launches": (
        [replace(part, launch=Launch(key)) for part, key in zip(ALL, "aaab", strict=True)],
        (MIXED,),
    ),
    "notes": (
        [replace(ALL[0], notes=(Note("detail was lost"),)), *ALL[1:]],
        ("worker:10: detail was lost",),
    ),
}


@pytest.mark.parametrize("case", SEVERAL)
def test_what_the_traces_of_workers_show_together(case: str) -> None:
    parts, notes = SEVERAL[case]
    trace = merged(*parts)
    assert trace.notes == notes
    assert trace.complete == (not notes)
    assert trace.updates() == sum(part.blocks[0].total * 4 for part in parts if part.blocks)


def saw(part: TraceData, **fields: object) -> TraceData:
    """The worker's trace, in which its optimizer has these fields, and a variable more."""
    rows: Any = fields.pop("not_updated", ())
    more = (*part.variables, Variable("c", (2,), "float32"))
    own = (replace(part.optimizers[0], **fields),)
    return replace(part, optimizers=own, variables=more, not_updated=rows)


FAILURE = Failure("apply", "ValueError: no", 3)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"evidence": (FAILURE,)}, "apply-raised"),
        ({"not_updated": (NotUpdated(0, (0,), "frozen", 2),)}, "frozen-but-updated"),
        ({"not_updated": (NotUpdated(0, (2,), "not passed", 2),)}, "never-passed"),
        ({"evidence": (NeverPassed(("c",)),)}, "never-passed"),
    ],
)
def test_what_one_worker_saw_is_found(which: int, fields: dict[str, object], code: str) -> None:
    parts = [
        saw(
            replace(worker(f"worker:{index}"), environment={}),
            **({"iterations": 10} | (fields if index == which else {})),
        )
        for index in (0, 1)
    ]
    alone = [tracer.merge([Trace(part)]) for part in parts]
    trace = merged(*parts)
    found = [{finding.code for finding in each.findings()} for each in (*alone, trace)]
    assert found[2] >= found[0] | found[1]
    assert {code} == found[which] - found[1 - which]
    assert trace.complete


def test_a_worker_alone_is_not_the_run(tmp_path: Path) -> None:
    """Its file is complete for who asks what it did, and not for who asks what the run did."""
    Trace(ALL[0]).save(tmp_path / "one.json")
    assert tracer.load(tmp_path / "one.json").complete
    assert load_run(tmp_path / "one.json").notes == missing("worker:0, worker:1 and worker:2")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "there is no trace to merge"),
        ([ALL[0], ALL[0]], "two of the traces are of worker:10 replica 0"),
    ],
)
def test_what_is_not_one_run_is_refused(parts: list[TraceData], message: str) -> None:
    with pytest.raises(tracer.MergeError, match=message) as caught:
        merged(*parts)
    assert "\n" not in str(caught.value)


def rank(number: int, *optimizers: tuple[str, int, str], total: int = 0) -> TraceData:
    """A rank that used these optimizers in this order: the variable, steps and line of each.

    A line is `train.py:9`, or `train.py:9 2` for the second optimizer that the line made, of
    `total` or of those used here.
    """
    names = distinct(["Adam"] * len(optimizers))
    records, blocks = [], []
    for index, (_, steps, line) in enumerate(optimizers):
        made, _, at = line.partition(" ")
        of = total or sum(each.split(" ")[0] == made for _, _, each in optimizers)
        made_as = (int(at or 1), of) if made else (0, 0)
        records.append(
            Optimizer(names[index], "torch.Adam", "torch", index, made=made, made_as=made_as)
        )
        work = [step(index), update(index, optimizer=index)]
        blocks.append(block(work, Run(1, 1, steps), root=index))
    return TraceData(
        tuple(records),
        tuple(Variable(name, (2,), "float32") for name in distinct(e[0] for e in optimizers)),
        (Method("step", "step"), Method("update", "apply")),
        (Replica(f"rank:{number}", 0, "cpu"),),
        tuple(blocks),
        (),
        environment={"cluster": TWO},
    )


def counted(*parts: TraceData) -> dict[tuple[str, ...], list[int]]:
    """The updates on ranks 0 and 1, by optimizer and variable."""
    counts = merged(*parts).count("updates", by=("optimizer", "variable", "worker"))
    return {
        key[:2]: [counts.get((*key[:2], each), 0) for each in ("rank:0", "rank:1")]
        for key in counts
    }


@pytest.mark.parametrize(
    ("one", "other", "counts"),
    [
        # Two lines; the ranks step in another order.
        (
            (("gen", 2, "a.py:1"), ("dis", 5, "a.py:2")),
            (("dis", 5, "a.py:2"), ("gen", 2, "a.py:1")),
            {("Adam", "gen"): [2, 2], ("Adam#2", "dis"): [5, 5]},
        ),
        # One line made both: their numbers tell.
        (
            (("w", 2, "a.py:1 1"), ("w", 5, "a.py:1 2")),
            (("w", 5, "a.py:1 2"), ("w", 2, "a.py:1 1")),
            {("Adam", "w"): [2, 2], ("Adam#2", "w#2"): [5, 5]},
        ),
        # Each rank skips an optimizer of the other.
        (
            (("enc", 3, "a.py:1"), ("mid", 3, "a.py:2")),
            (("mid", 3, "a.py:2"), ("head", 3, "a.py:3")),
            {("Adam", "enc"): [3, 0], ("Adam#2", "mid"): [3, 3], ("Adam#3", "head"): [0, 3]},
        ),
        # Each machine has the program in another folder.
        (
            (("w", 2, "project/a.py:1"), ("w", 5, "project/a.py:2")),
            (("w", 5, "a.py:2"), ("w", 2, "a.py:1")),
            {("Adam", "w"): [2, 2], ("Adam#2", "w#2"): [5, 5]},
        ),
    ],
)
def test_ranks_that_used_optimizers_in_another_order(
    one: Sequence[tuple[str, int, str]],
    other: Sequence[tuple[str, int, str]],
    counts: dict[tuple[str, ...], list[int]],
) -> None:
    parts = rank(0, *one), rank(1, *other)
    assert counted(*parts) == counts
    trace = merged(*parts)
    assert trace.complete and not [each for each in trace.findings() if each.code != "never-used"]
    three = replace(parts[0], replicas=(Replica("rank:2", 0, "cpu"),))
    assert len(merged(*parts, three).optimizers) == len(trace.optimizers)


def test_a_rank_that_skipped_the_first_of_two_equal_optimizers() -> None:
    """Both ranks made two, so the numbers tell which one was used."""
    one = rank(0, ("w", 3, "a.py:1 1"), ("w", 3, "a.py:1 2"))
    other = rank(1, ("w", 3, "a.py:1 2"), total=2)
    assert counted(one, other) == {("Adam", "w"): [3, 0], ("Adam#2", "w#2"): [3, 3]}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # Rank 1 may have made the first or the second.
        ([("w", 3, "a.py:1 1"), ("w", 3, "a.py:1 2")], [("w", 3, "a.py:1 1")]),
        # The lines are unknown.
        ([("gen", 3, ""), ("dis", 3, "")], [("dis", 3, ""), ("gen", 3, "")]),
        # One line made them in another order.
        (
            [("enc", 3, "a.py:1 1"), ("head", 3, "a.py:1 2")],
            [("head", 3, "a.py:1 1"), ("enc", 3, "a.py:1 2")],
        ),
        # Equal lines in two files of one name: folders may differ between machines.
        (
            [("w", 3, "a/net.py:1"), ("w", 3, "b/net.py:1")],
            [("w", 3, "b/net.py:1"), ("w", 3, "a/net.py:1")],
        ),
    ],
)
def test_optimizers_that_cannot_be_matched_are_kept_apart(
    one: list[tuple[str, int, str]], other: list[tuple[str, int, str]]
) -> None:
    parts = rank(0, *one), rank(1, *other)
    assert sorted(counted(*parts).values()) == [[0, 3]] * len(other) + [[3, 0]] * len(one)
    trace = merged(*parts)
    assert not trace.complete
    (note,) = trace.notes
    assert note.startswith("Adam (rank:0)") and "kept apart" in note
    running = replace(parts[1], finished=False)  # it had not made the second yet
    assert merged(parts[0], running).complete is (len(other) == 1)


def with_models(part: TraceData, names: str, *whys: tuple[WhyNot, int]) -> TraceData:
    """A trace whose first optimizer trains a model that has variables of these names, too."""
    whole = (*part.variables, *(Variable(each, (2,), "float32") for each in names))
    own = tuple(range(len(part.variables), len(whole)))
    named = zip(whole, distinct(each.name for each in whole), strict=True)
    return replace(
        part,
        variables=tuple(replace(each, name=name) for each, name in named),
        not_updated=tuple(NotUpdated(0, own, *why) for why in whys if own),
    )


def test_what_some_ranks_do_not_update() -> None:
    """Both froze `e` and `f`; rank 0 froze `g` as well, and does not pass what rank 1 updates."""
    one = with_models(rank(0, ("w", 3, "a.py:1")), "efgv", ("frozen", 0))
    rows = NotUpdated(0, (1, 2, 3), "frozen"), NotUpdated(0, (4,), "not passed")
    two = with_models(rank(1, ("w", 2, "a.py:1")), "efv", ("frozen", 0))
    passed = replace(two.blocks[0], entries=(step(), update(0, 3)))
    two = replace(two, blocks=(passed,), not_updated=(NotUpdated(0, (1, 2), "frozen"),))
    trace = merged(replace(one, not_updated=rows), two)
    assert [each.name for each in trace.variables] == ["w", "e", "f", "g", "v"]
    assert trace.data.not_updated == rows[:1]
    assert trace.notes == ()
    assert [trace.updates(variable=name) for name in "wefgv"] == [5, 0, 0, 0, 2]


LINES = ["", "a.py:1", "a.py:1 2", "a.py:2"]
WHY: st.SearchStrategy[WhyNot] = st.sampled_from(["frozen", "not passed"])
WHYS = st.none() | st.tuples(WHY, st.integers(0, 2))
FACTS = {
    "evidence": st.sampled_from(
        [(), (StateRenewed(7),), (GradientsAdded(3, 9),), (Failure("step", "no", 3),)]
    ),
    "iterations": st.none() | st.integers(0, 3),
}


def test_what_is_frozen_on_one_rank_is_updated_on_the_other() -> None:
    one = rank(0, ("w", 3, "a.py:1"))
    both = replace(one.blocks[0], entries=(step(), update(0, 1)))
    one = replace(with_models(one, "e"), blocks=(both,))
    two = with_models(rank(1, ("w", 3, "a.py:1")), "ef", ("frozen", 0))
    (summary,) = summaries_of(merged(one, two))
    assert why_not(summary) == {1: "frozen on some ranks", 2: "frozen"}
    assert sentences_on(summary) == [
        "Not updated: f: frozen.",
        "Updated: e: frozen on some ranks.",
    ]


@st.composite
def ranks_of_a_run(draw: st.DrawFn) -> list[TraceData]:
    """Some of 3 to 5 ranks, each with a file or none, which saw what the others did not."""
    size = draw(st.integers(3, 5))
    cluster = {"cluster": ", ".join(f"rank:{number}" for number in range(size))}
    used = st.tuples(st.sampled_from("wv"), st.integers(1, 5), st.sampled_from(LINES))
    notes = st.lists(st.builds(Note, st.sampled_from("xy"), st.sampled_from(["missed", "fact"])))
    parts = []
    for number in draw(st.sets(st.integers(0, size - 1), min_size=2)):
        made = rank(number, *draw(st.lists(used, max_size=3, unique_by=lambda each: each[2])))
        made = with_models(made, "ee" * bool(made.optimizers), *filter(None, [draw(WHYS)]))
        optimizers = (
            replace(own, **{field: draw(value) for field, value in FACTS.items()})
            for own in made.optimizers
        )
        launch = draw(st.sampled_from([None, Launch("one"), Launch("two")]))
        part = replace(
            made,
            optimizers=tuple(optimizers),
            replicas=made.replicas if made.optimizers else (),
            processes=draw(st.sampled_from([(), (f"rank:{number}",)])),
            notes=tuple(draw(notes)),
            finished=draw(st.booleans()),
            launch=launch and replace(launch, run=draw(st.sampled_from(["", "run"]))),
            environment=cluster,
        )
        parts.append(part)
    return parts


def merged_or_refused(*parts: TraceData) -> TraceData | None:
    with suppress(tracer.MergeError):
        return merged(*parts).data
    return None


@given(ranks_of_a_run(), st.data())
def test_merging_has_neither_order_nor_groups(parts: list[TraceData], data: st.DataObject) -> None:
    whole = merged_or_refused(*parts)
    mixed = data.draw(st.permutations(parts))
    cut = data.draw(st.integers(1, len(parts) - 1))
    groups = [merged_or_refused(*group) for group in (mixed[:cut], mixed[cut:])]
    event(f"{whole is not None}, {None not in groups}")
    assert merged_or_refused(*mixed) == whole
    if all(groups):
        assert merged_or_refused(*filter(None, groups)) == whole
    if whole is not None:
        assert decode(encode(whole)) == whole


def test_an_optimizer_without_a_variable_in_common_is_another_one() -> None:
    """The stages of a pipeline, or two programs; what both froze says nothing."""
    stages = rank(0, ("a", 3, "a.py:1")), rank(1, ("b", 3, "a.py:1"))
    apart = merged(*(with_models(stage, "e", ("frozen", 0)) for stage in stages))
    assert apart.count("updates", by="optimizer") == {("Adam",): 3, ("Adam#2",): 3}
    assert not apart.complete and "are kept apart" in apart.notes[0]
    apart = merged(rank(0, ("w", 3, "")), rank(1, ("w", 3, "a.py:1")))
    assert not apart.complete and "are kept apart" in apart.notes[0]
    trace = merged(rank(0, ("a", 3, "a.py:1")), rank(1, ("b", 3, "a.py:2")))
    assert [each.made for each in trace.optimizers] == ["a.py:1", "a.py:2"]


class _Object:
    """Stands for a variable's object."""


def test_optimizers_of_one_process_are_renumbered() -> None:
    one, other, shared = _Object(), _Object(), _Object()
    work = [update(0, 1, method=0, optimizer=1), step(method=1)]
    nested = TraceData(
        optimizers=(Optimizer("adam", "Scale", "keras3", 0), Optimizer("inner", "A", "keras3", 0)),
        variables=(Variable("b", (1,), "float32"), Variable("own", (1,), "float32")),
        methods=(traces.UPDATE_STEP, traces.APPLY_GRADIENTS),
        replicas=(Replica("", 1, ""),),
        blocks=(block(work, Run(1, 1, 3), graph=True),),
        calls=(called(0, (1,), tracing=5, optimizer=1, root=0),),
        graphs=(Graph(0, 0, "f", "", 1, 0, 3, 0),),
        notes=(Note("seen once", "fact"),),
    )
    data, objects = combine(
        [(worker(""), [ref(one), ref(shared)]), (nested, [ref(shared), ref(other)])]
    )
    assert [(each.name, each.root) for each in data.optimizers] == [
        ("adam", 0),
        ("adam#2", 1),
        ("inner", 1),
    ]
    assert [each.name for each in data.variables] == ["a", "b", "own"]
    assert [each and each() for each in objects] == [one, shared, other]
    assert data.methods == (traces.APPLY_GRADIENTS, traces.UPDATE_STEP)
    assert [(each.id, each.device) for each in data.replicas] == [(0, "CPU:0"), (1, "CPU:1")]
    moved = data.blocks[-1]
    assert (moved.root, moved.replica, moved.total) == (1, 1, 3)
    assert moved.entries == (update(1, 2, optimizer=2), step(1))
    assert data.calls[-1] == called(1, (2,), tracing=5, replica=1, optimizer=2, root=1)
    assert data.graphs[-1] == Graph(1, 1, "f", "", 1, 0, 3, 0)
    assert [*map(str, data.notes)] == ["seen once"] and data.complete
    assert data.blocks[:2] == worker("").blocks


@pytest.mark.parametrize("strategies", [["A", ""], ["", "A"], ["A", "B"], ["A", "A"], ["", ""]])
def test_optimizers_under_several_strategies(strategies: list[str]) -> None:
    """Which of them ran under which is not kept, so it is said of none; an idle one has none."""
    parts = [replace(worker(""), environment={"strategy": each}) for each in strategies]
    idle = replace(worker(""), blocks=(), environment={"strategy": ""})
    data, _ = combine([(each, [ref(_Object()), ref(_Object())]) for each in (*parts, idle)])
    heads = [headline(each) for each in summaries_of(Trace(data))]
    assert [" under A" in each for each in heads] == [strategies == ["A", "A"]] * 3
    assert not any(" under B" in each for each in heads)


def test_variables_without_an_object_stay_apart() -> None:
    gone, other = ref(_Object()), ref(_Object())  # nothing holds them any longer
    data, objects = combine([(worker(""), [None, gone]), (worker(""), [None, other])])
    assert [each.name for each in data.variables] == ["a", "b", "a#2", "b#2"]
    assert objects == [None, gone, None, other]
    assert data.complete


# The processes of one `tracer run --children`.


def alone(steps: int, *notes: Note) -> TraceData:
    """The trace of a process that is no worker of a cluster."""
    return replace(worker("", steps), environment={}, notes=notes)


def process(started: float, data: TraceData = NOTHING) -> TraceData:
    """The trace of a process that began then; without `data` it used no optimizer."""
    workers = ", ".join(dict.fromkeys(each.worker for each in data.replicas))
    program = Program("train.py", started, workers)
    return replace(data, programs=(program,), launch=Launch("", "one", started=started))


def test_processes_of_one_launch_are_trainings_of_their_own() -> None:
    trace = merged(
        process(5.0, alone(7, Note("a step is missing"))), process(1.0), process(3.0, alone(4))
    )
    assert trace.workers == ("process:2", "process:3")
    assert [each.name for each in trace.optimizers] == ["adam", "adam#2"]
    assert [each.name for each in trace.variables] == ["a", "b", "a#2", "b#2"]
    # 4 and 7 steps, 2 variables, 2 replicas.
    assert trace.updates(worker="process:2") == trace.updates(optimizer="adam") == 4 * 2 * 2
    assert trace.updates(worker="process:3") == trace.updates(optimizer="adam#2") == 7 * 2 * 2
    assert (trace.complete, trace.notes) == (False, ("process:3: a step is missing",))
    assert [each.worker for each in trace.data.programs] == ["", "process:2", "process:3"]
    report = io.StringIO()
    tracer.report(trace, file=report)
    assert (
        'Adam "adam#2" (Keras 3): at least 7 steps, 2 variables, 2 replicas,' in report.getvalue()
    )
    assert trace.findings() == []


def test_the_only_training_of_a_launch_reads_as_if_it_had_been_alone() -> None:
    trace = merged(process(1.0), process(2.0, alone(4)))
    assert (trace.workers, trace.complete, len(trace.data.programs)) == (("",), True, 2)


def test_the_workers_of_a_cluster_stay_one_training_beside_others() -> None:
    cluster = {"cluster": "worker:0, worker:1, worker:2"}
    workers = [replace(worker(f"worker:{number}"), environment=cluster) for number in (0, 1)]
    parts = [process(1.0), *(process(2.0 + n, each) for n, each in enumerate(workers))]
    trace = merged(*parts, process(9.0, alone(3)))
    assert trace.workers == ("process:4", "worker:0", "worker:1")
    assert [each.name for each in trace.optimizers] == ["adam", "adam#2"]
    assert trace.notes == missing("worker:2")
    again = merged(*parts[:3], process(9.0, workers[0]))  # a worker that was started again
    assert again.workers == ("process:2", "process:3", "process:4")
    assert again.notes == (
        "it is unknown which processes of worker:0 and worker:1 train together: each is listed "
        "alone",
    )
    assert not again.complete


def test_trainings_of_one_program_stay_apart() -> None:
    """Two clusters with workers of the same names, whose ranks start in turn."""
    cluster = {"cluster": "rank:0, rank:1"}

    def rank(number: int, key: str, steps: int, started: float) -> TraceData:
        data = replace(worker(f"rank:{number}", steps), environment=cluster)
        return replace(data, launch=Launch(key, "one", started=started))

    parts = [rank(0, "a", 3, 1.0), rank(1, "b", 7, 2.0), rank(0, "b", 7, 3.0), rank(1, "a", 3, 4.0)]
    trace = merged(*parts)
    assert (trace.complete, trace.notes) == (True, ())
    # 2 variables, 2 replicas.
    assert trace.count("updates", by=("optimizer", "worker")) == {
        ("adam", "rank:0"): 12,
        ("adam", "rank:1"): 12,
        ("adam#2", "rank:0#2"): 28,
        ("adam#2", "rank:1#2"): 28,
    }
    part = merged(*parts[:3])
    assert not part.complete
    assert part.notes == missing("rank:1")
    # torchrun started the ranks again.
    again = merged(*(rank(n, "a", 3, 5.0 * r + n) for n in (0, 1) for r in (0, 1)))
    assert len(again.workers) == 4 and not again.complete
