"""Trees: what is chained, how rows are wrapped, and what they say of callers and layers."""

import io

from msgspec.structs import replace
from rich.cells import cell_len
from support import traces
from support.traces import block, called, request, step, update

from tracer.api import CallTrace
from tracer.layout import Column
from tracer.model.records import Graph, Line
from tracer.model.runs import Run
from tracer.model.summary import Summary
from tracer.reporters import formats, trees
from tracer.reporters.text import render
from tracer.reporters.trees import Node, Tree, chained, in_order


def test_what_has_one_child_and_the_same_figures_is_one_row() -> None:
    leaf = Node(("d",), ("1",))
    same = Node(("a",), ("2",), children=(Node(("b",), ("2",), children=(leaf,)),))
    assert chained(same) == Node(("a", "b"), ("2",), children=(leaf,))
    begins = Node(("a",), ("2",), children=(Node(("b",), ("2",), begins=True),))
    assert chained(begins) == begins
    two = Node(("a",), ("2",), children=(Node(("b",), ("2",)), Node(("c",), ("0",))))
    assert chained(two) == two
    said = Node(("a",), ("2",), "never ran", children=(Node(("b",), ("2",), "other"),))
    assert chained(said) == said
    empty = Node(("a",), ("2", "3"), children=(Node(("b",), ("2", "")),))
    assert chained(empty) == Node(("a", "b"), ("2", "3"))


def test_a_chain_is_wrapped_at_its_joints_and_stays_in_its_branch() -> None:
    chain = Node(("one", "two", "three", "four", "five"), ("1",))
    whole = Node(("all",), ("1,000",), children=(chain, Node(("last",), ("2",), "said")))
    tree = Tree("name", [Column("count")], nodes=[whole], joint=" → ", most=9)
    assert [line.plain for line in tree.lines(30)] == [
        "name                    count",
        "all                     1,000",
        "├── one → two → three       1",
        "│   → four → five",
        "└── last: said              2",
    ]


def loss_scaled() -> CallTrace:
    """10 steps under a loss scale, whose updates are in a branch of the step; one was skipped."""
    lines = (
        Line("train", "train.py", 7),
        Line("train_step", graph=True),
        Line("LossScaleOptimizer.apply_gradients"),
        Line("Adam.apply"),
    )
    blocks = (
        block([step(), request(0, 1)], Run(1, 1, 10), graphs=1),
        block([update(0, 1)], Run(1, 1, 4), Run(6, 1, 5), is_step=False, graphs=1),
    )
    paths = ((0, 1, 2), (0, 1, 2, 3))
    placed = [replace(each, path=n) for n, each in enumerate(blocks)]
    calls = (called(1, (0, 1), tracing=1, path=1),)
    trace = traces.keras3(("kernel", "bias"), blocks, ())
    graphs = (Graph(0, 0, "train_function", "", 1, 0, 10, 0),)
    trace = traces.changed(trace, blocks=tuple(placed), calls=calls, graphs=graphs)
    return traces.changed(trace, lines=lines, paths=paths)


def test_a_part_of_a_step_has_no_steps_of_its_own() -> None:
    (row,) = trees.caller_nodes(Summary(loss_scaled(), 0))
    assert row.names == (
        "train.py:7 train",
        "train_step: 1 graph",
        "LossScaleOptimizer.apply_gradients",
        "Adam.apply",
    )
    assert row.cells == ("18", "10", "2")
    (method,) = row.children
    assert (method.names, method.cells) == (("update_step",), ("18", "", "2"))
    assert method.note == "2 variables"


def test_graphs_that_never_ran_are_told_where_they_were_traced() -> None:
    """Of such a graph only the part of the path is known that is in it."""
    trace = traces.several_callers()
    idle = [
        replace(each, total=0, runs=(), graphs=1, idle=1, path=5)
        for each in trace.blocks
        if each.path == 0
    ]
    ran = [replace(each, graphs=1, idle=0) if each.path == 0 else each for each in trace.blocks]
    paths = (*trace.data.paths, (3, 4, 5, 6))
    trace = traces.changed(trace, blocks=(*idle, *ran), paths=paths)
    text = render(trace, "caller")
    assert "train.py:41 main → Model.fit" in text
    assert "train_function: 2 graphs, 1 never ran" in text
    assert text.count("never ran") == 1


def test_it_is_said_if_nobody_knows_who_ran_a_graph() -> None:
    trace = traces.several_callers()
    paths = (trace.data.paths[0][3:], *trace.data.paths[1:])
    text = render(traces.changed(trace, paths=paths), "caller", width=120)
    assert "caller not known → train_function: 2 graphs, 1 never ran" in text


def test_what_was_called_and_never_ran_says_so() -> None:
    data = traces.several_callers().data
    made = traces.never_ran()
    calls = tuple(replace(each, path=3) for each in made.data.calls)
    blocks = tuple(replace(each, path=3) for each in made.blocks)
    trace = traces.changed(made, calls=calls, blocks=blocks, lines=data.lines, paths=data.paths)
    text = render(trace, "caller")
    assert "update_step: never ran, 2 variables" in text


def test_names_of_lines_cannot_act_on_a_terminal() -> None:
    trace = traces.several_callers()
    lines = tuple(
        Line("\x1b[2J[bold]main[/bold]\n:warning:", f"{each.file}\u202e", each.number)
        for each in trace.data.lines
    )
    text = render(traces.changed(trace, lines=lines), "caller", width=200)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert r"train.py\u202e:50 \x1b[2J[bold]main[/bold]\n:warning:" in text


def test_a_path_as_long_as_paths_can_be() -> None:
    trace = traces.several_callers()
    lines = tuple(Line("call_it_again", "deep.py", number) for number in range(1, 201))
    path = tuple(range(200))
    blocks = tuple(replace(each, path=0) for each in trace.blocks)
    deep = traces.changed(trace, lines=lines, paths=(path,), blocks=blocks, calls=())
    deep = traces.changed(deep, graph_tracings=())
    text = render(deep, "caller")
    assert all(f"deep.py:{number} " in text for number in range(1, 201))
    assert max(map(cell_len, text.split("\n"))) <= 80


def test_where_a_terminal_lacks_the_guides_they_are_plain() -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    formats.print_report(traces.several_callers(), "caller", out)
    out.seek(0)
    text = out.read()
    assert "+-- train.py:44 main > Model.fit > train_function  " in text
    assert "`-- steps/warm.py:12 warm_up" in text
    assert "\\u" not in text


# Layers.


def test_a_layer_and_a_variable_may_have_one_name() -> None:
    trace = traces.trained(["a", "a/b", "a/b/c", "", "/"], Run(1, 1, 3))
    names = [each.path for _, each in in_order(trees.layers_of(Summary(trace, 0)).children)]
    assert names == ["a", "a", "a/b", "a/b", "a/b/c", "", "", "/"]
    assert render(trace, "layer")


def test_the_layers_add_up_to_their_variables() -> None:
    for make in traces.ALL.values():
        trace = make()
        for root in {each.root for each in trace.optimizers}:
            summary = Summary(trace, root)
            whole = trees.layers_of(summary)
            variables, _, updates, dense, sparse = whole.counts()
            own = trace.optimizers[root].name
            assert variables == len(summary.variables)
            assert updates == dense + sparse == trace.updates(optimizer=own)
            for _, layer in in_order([whole]):
                if layer.children:
                    counts = [each.counts() for each in layer.children]
                    assert layer.counts() == tuple(map(sum, zip(*counts, strict=True)))


def test_layers_that_differ_in_anything_are_not_folded() -> None:
    """Of five blocks the third is never updated, and the last has a variable more."""
    names = [f"block_{n}/{part}" for n in range(5) for part in ("kernel", "bias")]
    work = [step(), request(*range(11)), update(*(n for n in range(11) if n not in (4, 5)))]
    trace = traces.keras3([*names, "block_4/scale"], (block(work, Run(1, 1, 2)),), ())
    rows = trees.layer_nodes(Summary(trace, 0))
    assert [(row.names, row.note) for row in rows] == [
        (("block_0",), "kernel, bias"),
        (("block_1",), "kernel, bias"),
        (("block_2",), "never updated; kernel, bias"),
        (("block_3",), "kernel, bias"),
        (("block_4",), "kernel, bias, scale"),
    ]


def test_layers_that_are_alike_are_one_with_the_sum() -> None:
    names = [f"net/block_{n}/{part}" for n in range(4) for part in ("kernel", "bias")]
    (row,) = trees.layer_nodes(Summary(traces.trained(names, Run(1, 1, 7)), 0))
    assert row.names == ("net", "block_0 … block_3")
    assert row.note == "4 alike; kernel, bias"
    assert row.cells == ("8", "56", "7", "56", "0")
