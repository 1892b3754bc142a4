"""The HTML report without a browser: what is in the page, and how large it can become."""

import base64
import hashlib
import json
import math
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import combinations, product
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from support import traces
from support.traces import block, called, request, step, update

from tracer.api import CallTrace
from tracer.model.records import (
    OBSERVATIONS,
    Effect,
    Graph,
    GraphTracing,
    Line,
    Note,
    Program,
    Replica,
)
from tracer.model.runs import Run, fold
from tracer.model.summary import summaries_of
from tracer.model.timeline import Stretch, Timeline
from tracer.reporters import colors, heatmap, html
from tracer.reporters.heatmap import Cell, HeatMap, Lane

MEGABYTE = 1_000_000

cycles = st.lists(
    st.tuples(st.integers(1, 5), st.tuples(st.integers(0, 2), st.integers(0, 2))),
    min_size=1,
    max_size=4,
)


def added(timeline: Timeline, first: int, last: int) -> Cell:
    return heatmap.added_up(timeline.within(first, last))


def lane_of(updates: Timeline) -> Lane:
    """The lane of one variable with these dense and sparse updates, while others are updated."""
    busy = Timeline([Stretch(1, ((updates.stretches[-1].last, (1,)),))])
    return heatmap.lane(updates.map(lambda values: (*values, 0, 0, 0)), busy)


@given(
    st.lists(st.tuples(cycles, st.integers(1, 6)), min_size=1, max_size=4),
    st.lists(st.integers(2, 5), max_size=2),
)
def test_a_lane_sums_up_any_steps(parts: list[tuple[list[Any], int]], sizes: list[int]) -> None:
    """By ones, then so many of them as one, and again."""
    stretches: list[Stretch] = []
    steps: list[tuple[int, int]] = []
    for cycle, turns in parts:
        stretches.append(Stretch(len(steps) + 1, tuple(cycle), turns))
        steps += [values for length, values in cycle for _ in range(length)] * turns
    made = lane_of(Timeline(stretches)).timeline
    for size in sizes:
        made = heatmap.coarser(made, size)
    cells = (cell for each in made.stretches for cell in each.cycle * each.turns)
    found = [cell for n, cell in cells for _ in range(n)]
    size = math.prod(sizes)
    assert len(found) == -(-len(steps) // size)
    for at, cell in enumerate(found):
        chosen = steps[at * size : (at + 1) * size]
        counts = [sum(each) for each in chosen]
        assert cell == (
            min(counts),
            max(counts),
            len(chosen),
            sum(dense for dense, _ in chosen),
            sum(sparse for _, sparse in chosen),
            counts.count(0),
            *(0, 0, 0, 0, 0, 0 if any(dense or sparse for dense, sparse in steps) else len(chosen)),
        )


RUNS = st.lists(
    st.builds(Run, st.integers(1, 30), st.integers(1, 4), st.integers(1, 6)), max_size=3
)


@settings(max_examples=40)
@given(st.lists(st.tuples(RUNS, RUNS, RUNS), min_size=2, max_size=2), st.data())
def test_a_lane_sums_up_effects(of_variables: list[Any], data: st.DataObject) -> None:
    """Two variables, each compared, unchanged and not finite in steps of its own."""
    steps = 50
    seen = []
    truth = []
    for variable, runs in enumerate(of_variables):
        for what, each in zip(OBSERVATIONS, runs, strict=True):
            total = sum(run.total for run in each)
            seen.append(Effect(0, 0, what, (variable,), total, tuple(each)))
        truth.append(
            [{n for r in each for n in range(r.first, r.last + 1, r.stride)} for each in runs]
        )
    work = (
        block([step(), request(0, 1)], Run(1, 1, steps), graphs=1),
        block([update(0)], Run(2, 2, 25), is_step=False, graphs=1),
    )
    trace = traces.changed(traces.keras3(("a", "b"), work, ()), effects=tuple(seen))
    heat = HeatMap(summaries_of(trace)[0])
    first = data.draw(st.integers(1, steps))
    last = data.draw(st.integers(first, steps))
    for variable, (compared, unchanged, not_finite) in enumerate(truth):
        (view,) = heat.views
        lane = heat.lanes[view.lanes[heat.patterns[variable]]]
        assert lane.not_finite_since == min(not_finite & {*range(1, steps + 1)}, default=0)
        chosen = {*range(first, last + 1)}
        updated = chosen & ({*range(2, steps + 1, 2)} if variable == 0 else set())
        assert added(lane.timeline, first, last)[6:10] == (
            len(compared & chosen),
            len(unchanged & chosen),
            len(not_finite & chosen),
            len(unchanged & updated),
        )


def test_without_effects_nothing_of_them_is_in_the_page() -> None:
    with_effects = traces.with_effects()
    plain = html.render(traces.changed(with_effects, effects=()))
    found, asked = data_of(plain), data_of(html.render(with_effects))
    assert found["columns"][-3]["title"] == "without gradient"
    assert [each["title"] for each in asked["columns"][-4:-2]] == ["unchanged", "not finite"]
    assert "Bars and crosses" not in plain and "weights after the step" not in plain
    (before,), (after,) = found["optimizers"], asked["optimizers"]
    assert [each[-1] for each in before["cells"]] == [""] * len(before["cells"])
    assert all(each[-1] for each in after["cells"])
    assert [each["sizes"] for each in before["tracks"] if each["sizes"]] == [
        [[0, [1, 1, 10, 10, 0]]]
    ]


def unfolded(track: Any, steps: int) -> Iterator[tuple[int, list[tuple[int, int, int]]]]:
    """The cells of each size, as `(first, last, number)`, each step by itself."""
    for size, *cycles in track:
        found: list[tuple[int, int, int]] = []
        for first, turns, period, *cycle in cycles:
            at = first
            for length, number in [*zip(cycle[::2], cycle[1::2], strict=True)] * turns:
                for _ in range(length if size else 1):
                    last = min(at + (size or length) - 1, steps)
                    found.append((at, last, number))
                    at = last + 1
            assert at == first + turns * period or at == steps + 1
        yield size, found


counted = st.lists(st.tuples(st.integers(1, 5), st.integers(0, 2)), min_size=1, max_size=3)
pieces = st.lists(st.tuples(counted, st.integers(1, 90)), min_size=1, max_size=3)


@settings(max_examples=60, deadline=None)
@given(pieces, pieces, st.sampled_from([1, 4]))
def test_a_track_says_of_each_size_what_the_steps_count(ours: Any, other: Any, grain: int) -> None:
    """Of two variables, the first is drawn: checked with each step counted by itself."""
    stretches = []
    steps: list[int] = []
    for cycle, turns in ours:
        parts = tuple((length, (count, 0)) for length, count in cycle)
        stretches.append(Stretch(len(steps) + 1, parts, turns))
        steps += [count for length, count in cycle for _ in range(length)] * turns
    others: list[int] = []
    for cycle, turns in other:
        others += [count for length, count in cycle for _ in range(length)] * turns
    others = (others * (len(steps) // len(others) + 1))[: len(steps)]
    both = [a + b for a, b in zip(steps, others, strict=True)]
    work = [block([step()], Run(1, 1, len(steps)), graphs=1)]
    for variable, counts in enumerate((steps, others)):
        runs = fold((n, count) for n, count in enumerate(counts, 1) if count)
        work.append(block([update(variable)], *runs, is_step=False, graphs=1))
    heat = HeatMap(summaries_of(traces.keras3(("a", "b"), tuple(work), ()))[0])
    lane = heat.lanes[heat.views[0].lanes[heat.patterns[0]]]

    class Kept:
        cells: ClassVar[list[Cell]] = []

        def number(self, cell: Cell) -> int:
            assert cell.never == (0 if any(steps) else cell.steps)
            if cell not in self.cells:
                self.cells.append(cell)
            return self.cells.index(cell)

    kept: Any = Kept()
    kept.cells = []
    track = html.track(lane.timeline, kept, grain)
    widest = []
    for size, found in unfolded(track, len(steps)):
        assert [first for first, _, _ in found] == [1, *(last + 1 for _, last, _ in found[:-1])]
        assert found[-1][1] == len(steps)
        for first, last, number in found:
            chosen, cell = steps[first - 1 : last], kept.cells[number]
            idle = both[first - 1 : last].count(0) if any(steps) else cell.idle
            assert cell[:5] == (min(chosen), max(chosen), len(chosen), sum(chosen), 0)
            assert cell.without == chosen.count(0)
            assert cell.idle == idle
            assert size or len(set(chosen)) == 1
        widest = found
    assert len(widest) <= html.COLUMNS


def test_marks_of_what_updates_did_to_the_weights() -> None:
    """Found in the lanes of a trace: steps 4 to 6 change nothing, 8 is the first of three NaNs."""
    heat = HeatMap(summaries_of(traces.with_effects())[0])
    (view,) = heat.views
    kernel, bias = (heat.lanes[view.lanes[heat.patterns[each]]] for each in (0, 1))
    marks = [
        [heatmap.mark_of(added(lane.timeline, n, n)) for n in range(1, 11)]
        for lane in (kernel, bias)
    ]
    unchanged, not_finite = [heatmap.UNCHANGED], [heatmap.NOT_FINITE]
    assert marks == [[""] * 3 + unchanged * 3 + [""] * 4, [""] * 7 + not_finite * 3]
    assert heatmap.mark_of(added(kernel.timeline, 3, 4)) == heatmap.PARTLY
    assert (kernel.not_finite_since, bias.not_finite_since) == (0, 8)


@pytest.mark.parametrize("name", traces.ALL)
def test_the_heat_map_has_what_the_trace_counts(name: str) -> None:
    trace = traces.ALL[name]()
    for found in summaries_of(trace):
        heat = HeatMap(found)
        together = [view for view in heat.views if "together" in view.name] or heat.views
        for variable, pattern in heat.patterns.items():
            if not trace.variables[variable].name or not together:
                continue  # a filter for no name is none
            lane = heat.lanes[together[0].lanes[pattern]]
            counted = trace.per_step("updates", variable=trace.variables[variable].name)
            for first, last, count in counted:
                if first <= found.steps:
                    inside = added(lane.timeline, first, min(last, found.steps))
                    assert (inside.least, inside.most) == (count, count)


def test_replicas_that_are_alike_share_a_view() -> None:
    alike = HeatMap(summaries_of(traces.many_variables())[0])
    assert [view.name for view in alike.views] == [
        "each of 8 replicas",
        "all 8 replicas together",
    ]
    uneven = HeatMap(summaries_of(traces.uneven_replicas())[0])
    assert [view.name for view in uneven.views] == [
        "all 4 replicas together",
        "worker:0 replica 0, and 1 like it",
        "worker:1 replica 0, and 1 like it",
    ]


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_processes_of_pytorch_are_ranks() -> None:
    trace = traces.uneven_replicas()
    ranks = tuple(Replica(f"rank:{each}", 0, "cpu") for each in range(len(trace.replicas)))
    page = html.render(traces.changed(trace, replicas=ranks))
    seen = re.sub(r"<(script|style).*?</\1>|<[^>]*>|replicas-disagree", "", page, flags=re.DOTALL)
    assert "Updates by rank" in seen and "replica" not in seen.lower()


def test_nothing_in_the_trace_can_leave_its_place() -> None:
    bad = "</script><script>alert(1)</script><!--\u2028"
    work = [step(), request(0), update(0)]
    dirty = traces.changed(
        traces.keras3((bad,), (block(work, Run(1, 1, 3)),), (), bad, notes=(bad,)),
        environment={bad: bad},
        graphs=(Graph(0, 0, bad, bad, 1, 0, 3, 0),),
        graph_tracings=(GraphTracing(0, 0, "argument", bad, 0, 1.0),),
        lines=(Line(bad, bad, 1), Line(bad, graph=True)),
        paths=((0, 1),),
    )
    (one,) = dirty.blocks
    dirty = traces.changed(dirty, blocks=(replace(one, path=0),))
    page = html.render(dirty)
    assert "alert(1)</script>" not in page
    assert "\u2028" not in page
    assert len(re.findall(r"<script\b", page)) == 2
    assert data_of(page)["optimizers"][0]["variables"][0][0] == bad.replace("\u2028", "\\u2028")


def test_the_page_allows_its_own_scripts_and_no_request() -> None:
    page = html.render(traces.eager())
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src 'none';")
    assert "eval" not in policy[1]
    assert "unsafe-inline" not in policy[1].replace("style-src 'unsafe-inline'", "")
    scripts = re.findall(r'<script type="module">(.*?)</script>', page, re.DOTALL)
    hashes = [hashlib.sha256(each.encode()).digest() for each in scripts]
    assert len(scripts) == 1
    assert scripts[0].count("\n") <= 250
    for each in hashes:
        assert f"'sha256-{base64.b64encode(each).decode()}'" in policy[1]
    assert not re.search(r"""(src|href)=["'](?!#)""", page)
    assert len(page) < 50_000


@pytest.mark.long
def test_a_page_has_a_size_whatever_the_names_and_notes() -> None:
    ids = range(9_000)
    work = (block([step(), request(*ids), update(*ids)], Run(1, 1, 1_000), graphs=1),)
    names = [f"{'層' * 300}{n}" for n in ids]
    notes = ("n" * 500,) * 999
    page = html.render(traces.keras3(names, work, (called(1, ids, tracing=1),), notes=notes))
    assert len(page.encode()) < 6 * MEGABYTE
    shown = data_of(page)["optimizers"][0]
    assert shown["left"] + len(shown["variables"]) == 9_000
    assert 0 < len(shown["variables"]) < 9_000
    assert "799 more notes" in page


@pytest.mark.long
def test_a_page_has_a_size_however_irregular_the_steps() -> None:
    dice = random.Random(3)
    counts = [(dice.randint(0, 1), dice.randint(0, 1)) for _ in range(100_000)]
    regular = Timeline([Stretch(1, ((3, (0, 0)), (1, (1, 0))), turns=25_000)])
    irregular = Timeline(Stretch(n, ((1, each),)) for n, each in enumerate(counts, 1))
    heat: Any = HeatMap(summaries_of(traces.eager())[0])
    heat.lanes = [lane_of(each) for each in (irregular, regular, irregular)]
    heat.levels = [(1, 1), (2, 2)]
    (summary,) = summaries_of(traces.eager())
    summary.steps_on = {0: 100_000}
    grain, described, drawn = html.fitting(summary, heat, html._MAX_CHARACTERS // 4)
    described_rows = list(described.rows)
    assert len(json.dumps([described_rows, drawn])) < html._MAX_CHARACTERS // 3
    assert grain == 4
    first, second, _ = (each["sizes"] for each in drawn)
    assert first[0][0] == 4
    assert second[0] == [0, [1, 25_000, 4, 3, second[0][1][4], 1, second[0][1][6]]]  # exact
    for size, found in unfolded(first, 100_000):
        texts = [described_rows[number][2] for _, _, number in found]
        sums = [re.search(r"([\d,]+) in all", text) for text in texts]
        total = sum(int(each[1].replace(",", "")) for each in sums if each)
        assert total == sum(map(sum, counts)), size


def test_graph_tracings_stand_in_the_order_of_time() -> None:
    trace = traces.several_callers()
    late, *rest = reversed(trace.graph_tracings)
    page = html.render(traces.changed(trace, graph_tracings=(late, *rest)))
    part = page[page.index('aria-label="Graph tracings in order of time"') :]
    rows = re.findall(r"<tr>(.*?)</tr>", part[: part.index("</table>")], re.DOTALL)[1:]
    cells = [[re.sub(r"<.*?>", "", each) for each in re.split("</t[dh]>", row)] for row in rows]
    assert [row[:4] for row in cells] == [
        ["0.00 s", "3", "train_function", "the first call"],
        ["0.75 s", "3", "train_function", "variables were made in the first call"],
        *[["60.00 s", "43", "train_function", row[3]] for row in cells[2:]],
    ]
    assert cells[2][3:5] == [
        "another argument: x: float32[32, 4] -&gt; float32[8, 4]",
        "train.py:44 main",
    ]


def test_a_page_without_callers_has_no_section_of_them() -> None:
    page = html.render(traces.eager())
    assert "Who calls" not in page
    page = html.render(traces.several_callers())
    row = "<bdi>traced from train.py:41 main</bdi></th>" + '<td class="n">{}</td>' * 3
    assert "Who calls" in page and row.format(880, 40, 44) in page
    row = "<bdi>encoder/*</bdi></th>" + '<td class="n">{}</td>' * 5
    assert row.format(9, 0, "1,134", "1,134", 0) in page


@pytest.mark.long
def test_a_page_has_a_size_however_many_callers() -> None:
    trace = traces.several_callers()
    lines = tuple(Line("層" * 300, f"{'層' * 300}.py", number) for number in range(1_000))
    (one, *_) = trace.blocks
    blocks = [replace(one, path=number) for number in range(1_000)]
    paths = [(number, (number + 1) % 1_000) for number in range(1_000)]
    many = traces.changed(trace, lines=lines, paths=tuple(paths), blocks=tuple(blocks), calls=())
    page = html.render(many)
    assert len(page.encode()) < 6 * MEGABYTE
    assert "500 more lines" in page


def test_a_healthy_run_has_nothing_yellow() -> None:
    usual = (Graph(0, 0, "train_function", "x: float32[32, 4]", 2, 1, 64, 0),)
    trace = CallTrace(replace(traces.accumulation().data, graphs=usual))
    page = html.render(trace)
    assert 'class="banner odd"' not in page
    assert '<tr class="odd"' not in page
    assert "Graphs that never ran are usual: a first tracing only makes the variables." in page
    drawn = data_of(page)["optimizers"][0]
    assert ["accumulating, it seems", "expected"] in drawn["states"]
    assert heatmap.SKIPPED not in [state for state, _ in drawn["states"]]


def test_a_page_names_the_loss_scale_that_skipped_all_steps() -> None:
    page = html.render(traces.all_skipped())
    drawn = data_of(page)["optimizers"][0]
    texts = {text for _, _, text, _ in drawn["cells"]}
    assert texts == {"none: the variable was never updated, skipped by the loss scale"}
    assert "what else never ran is in a part of a graph that no step reached." in page


def test_steps_without_an_update_stand_out_where_nobody_knows_why() -> None:
    drawn = data_of(html.render(traces.embedding_on_two_replicas()))["optimizers"][0]
    assert [heatmap.SKIPPED, "skipped"] in drawn["states"]
    assert drawn["odd"] == ["others", "skipped"]
    assert [view["per"] for view in drawn["views"]] == ["step and replica", "step, all replicas"]


def unexplained() -> CallTrace:
    """100,000 steps, of which each 400th updates a variable; nobody knows why."""
    updates = block([update(0)], Run(400, 400, 250), is_step=False, graphs=1)
    return traces.keras3(("a",), (block([step()], Run(1, 1, 100_000), graphs=1), updates), ())


@pytest.mark.parametrize(
    ("trace", "states"),
    [
        (traces.accumulation(40, every=4), ["expected", "level2"]),
        (traces.accumulation(100_000, every=400), ["part"]),
        (unexplained(), ["some"]),
    ],
)
def test_cells_with_some_idle_steps_have_a_colour_by_the_reason(
    trace: CallTrace, states: list[str]
) -> None:
    """All cells of the coarsest size: of single steps, and of 400 and more in which one updates."""
    (drawn,) = data_of(html.render(trace))["optimizers"]
    *_, (_, found) = unfolded(drawn["tracks"][0]["sizes"], trace.steps)
    assert sorted({drawn["cells"][number][0] for _, _, number in found}) == states


def test_counts_of_an_incomplete_trace_are_at_least_so_many() -> None:
    trace = traces.embedding_on_two_replicas()
    for complete, least in ((True, ""), (False, "at least ")):
        page = html.render(traces.changed(trace, notes=() if complete else (Note("missed"),)))
        assert f"<dt>steps</dt><dd>{least}64</dd>" in page
        assert f"<dt>updates</dt><dd>{least}630</dd>" in page
        assert ("the counts are “at least”" in page) == (not complete)


def test_a_bar_is_as_long_as_the_updates_of_its_replica() -> None:
    """Of 10 dense and 10 sparse updates, and of 5 dense ones."""
    work = (
        block([step(), update(0), update(1, kind="sparse")], Run(1, 1, 10)),
        block([step(), update(0)], Run(1, 1, 5), replica=1),
    )
    trace = traces.changed(traces.keras3(("a", "b"), work, ()), replicas=traces.replicas(2))
    bar = r'data-tip="(replica \d: [^"]*)">.*?class="track">(.*?)</div>'
    bars = re.findall(bar, html.render(trace))
    assert [(tip, re.findall(r"(left|width): ([\d.]+)%", drawn)) for tip, drawn in bars] == [
        (
            "replica 0: 10 dense, 10 sparse",
            [("width", "50.000"), ("left", "50.000"), ("width", "50.000")],
        ),
        (
            "replica 1: 5 dense, 0 sparse",
            [("width", "25.000"), ("left", "25.000"), ("width", "0.000")],
        ),
    ]


COLOR_BLIND = {
    "all colours": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.1523, 1.0526, -0.2049), (0.1145, 0.7863, 0.0992), (-0.0039, -0.0481, 1.052)),
    "no green": ((0.3673, 0.8606, -0.228), (0.2801, 0.6725, 0.0474), (-0.0118, 0.0429, 0.9689)),
    "no blue": ((1.2555, -0.0767, -0.1788), (-0.0784, 0.9308, 0.1476), (0.0047, 0.6914, 0.3039)),
}
"""How colours look to people, as matrices: Machado, Oliveira and Fernandes 2009, severity 1."""


@pytest.mark.parametrize("sight", COLOR_BLIND)
@pytest.mark.parametrize("theme", ["LIGHT", "DARK"])
def test_colours_can_be_told_apart_by_everyone(theme: str, sight: str) -> None:
    counts = ([(1, 1)], [(1, 1), (2, 2)], [(n, n) for n in range(5)])
    for levels, calm in product(counts, ("", "accumulating")):
        shades = [getattr(colors, theme)[each] for each in heatmap.states(levels, calm).values()]
        seen = [_lab(each, COLOR_BLIND[sight]) for each in shades]
        for one, other in combinations(range(len(seen)), 2):
            distance = sum((a - b) ** 2 for a, b in zip(seen[one], seen[other], strict=True)) ** 0.5
            assert distance > 10, (shades[one], shades[other], distance)


def _lab(color: str, matrix: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    """The colour in CIE L*a*b* (D65), where equal distances look about equal."""
    raw = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in raw]
    r, g, b = (
        min(1.0, max(0.0, sum(m * c for m, c in zip(row, linear, strict=True)))) for row in matrix
    )
    white = (
        (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
        0.2126 * r + 0.7152 * g + 0.0722 * b,
        (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
    )
    x, y, z = (t ** (1 / 3) if t > 0.008856 else 7.787 * t + 16 / 116 for t in white)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def command(*arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command, perhaps on a machine that lacks a package."""
    code = (
        f"import sys\nfor name in {without.split()!r}: sys.modules[name] = None\n"
        "from tracer.cli.commands import main\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'tensorflow', 'keras'} & set(sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, encoding="utf-8"
    )


def test_errors_and_warnings_come_first_and_the_map_above_its_controls() -> None:
    page = html.render(traces.several_callers())
    parts = ("<h1>", 'class="warning"', "Also noticed: 1", 'class="info"', 'id="plot"', 'id="view"')
    places = [page.index(each) for each in parts]
    assert places == sorted(places)
    assert "<details><summary>Updates by layer</summary>" in page


def test_the_command_writes_a_page(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    traces.uneven_replicas().save(path)
    run = command("report", str(path), "-o", str(tmp_path / "report.html"))
    assert (run.returncode, run.stdout) == (0, "")
    assert run.stderr == f"tracer: wrote {tmp_path}/report.html\n"
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "update_step" in page


@pytest.mark.parametrize(
    ("arguments", "without", "line"),
    [
        (["-o", "x.html"], "jinja2", "needs jinja2: pip install jinja2"),
        (["-o", "x.html", "--by", "step"], "", "pick some with text, csv or json"),
        (["-o", "x.html", "--step", "3"], "", "pick some with text, csv or json"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    arguments: list[str], without: str, line: str, tmp_path: Path
) -> None:
    path = tmp_path / "trace.json"
    traces.eager().save(path)
    run = command("report", str(path), *arguments, without=without)
    assert run.returncode == 2
    assert run.stderr.startswith("tracer: ")
    assert run.stderr.endswith(line + "\n")
    assert run.stderr.count("\n") == 1


def test_a_page_has_a_size_however_many_optimizers() -> None:
    gan = traces.two_optimizers()
    many = traces.changed(
        gan,
        optimizers=tuple(replace(gan.optimizers[0], name=f"adam#{n}", root=n) for n in range(100)),
        graphs=tuple(Graph(n % 100, 0, "step", "x" * 5_000, 1, 0, 10, 0) for n in range(3_000)),
    )
    page = html.render(many)
    assert len(page.encode()) < 6 * MEGABYTE
    assert "50 more optimizers are not in this page" in page


def test_the_pictures_are_small_and_shown() -> None:
    root = Path(__file__).parents[2]
    pages = [root / "README.md", *(root / "docs").rglob("*.md")]
    shown = "".join(each.read_text(encoding="utf-8") for each in pages)
    pictures = sorted((root / "docs" / "pictures").iterdir())
    names = ["page.png", "terminal.svg"]
    assert [each.name for each in pictures] == names
    for each in pictures:
        assert each.stat().st_size < 200_000
        assert f"pictures/{each.name})" in shown


def test_the_first_line_says_what_it_is_of() -> None:
    """Program, when, and what was found; and no section for what there is none of."""
    found = traces.no_gradients()
    program = Program("train.py --lr <1>", 1_790_000_000.0, 3.0, "", 0)
    page = html.render(traces.changed(found, programs=(program,)))
    counts = Counter(each.severity for each in found.findings())
    said = "train.py --lr &lt;1&gt;, 2026-09-21 14:13 UTC: 1 warning"
    assert (counts["error"], counts["warning"]) == (0, 1)
    assert f"<title>{said}</title>" in page and f"<h1>{said}</h1>" in page
    plain = html.render(traces.eager())
    assert "<title>optimizer-tracer: no errors and no warnings</title>" in plain
    assert "Updates by replica" not in plain and "graph is traced" not in plain
    assert "Updates by replica" in html.render(traces.uneven_replicas())


def test_graphs_of_several_workers_say_whose_they_are() -> None:
    column = '<th scope="col">graph</th><th scope="col">worker</th>'
    trace = traces.uneven_replicas()
    last = len(trace.replicas) - 1
    graphs = tuple(Graph(0, each, "train", "", 1, 0, 10, 0) for each in (0, last))
    tracings = (GraphTracing(1, None, "first", "", 0, 1.0),)
    page = html.render(traces.changed(trace, graphs=graphs, graph_tracings=tracings))
    assert page.count(column) == 2  # in the table of tracings, too
    for worker in trace.workers:
        assert f"</th><td><bdi>{worker}</bdi></td>" in page
    assert column not in html.render(traces.embedding_on_two_replicas())
