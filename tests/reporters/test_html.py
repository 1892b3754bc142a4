"""The HTML report: what is in it, what its heat map counts, and how large it can become."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from msgspec.structs import replace
from support import traces
from support.golden import assert_golden
from support.traces import block, called, request, step, update

from tracer.model.records import Graph, Line, Program
from tracer.model.timeline import Run, fold
from tracer.model.trace import Trace, summaries_of
from tracer.reporters import html
from tracer.reporters.html import COLUMNS, MAX_ROWS, HeatMap, heat_map

MEGABYTE = 1_000_000
STYLE = (Path(html.__file__).parent / "templates/report.css").read_text(encoding="utf-8")


def heat_of(trace: Trace, most: int = 8_000) -> HeatMap:
    return heat_map(summaries_of(trace)[0], most)


def cells_of(trace: Trace) -> dict[str, list[tuple[str, str]]]:
    """The states and texts of each row of a heat map."""
    return {name: [cell[2:] for cell in cells] for name, cells in heat_of(trace).rows}


def test_the_page() -> None:
    name = "embedding_on_two_replicas"
    page = html.render(traces.ALL[name]()).replace(STYLE, "")
    assert_golden(f"reporters/{name}.html", re.sub("sha256-[^']*", "sha256-...", page))


# The heat map.

COUNTS = st.lists(st.tuples(st.integers(1, 60), st.integers(0, 3)), min_size=1, max_size=12)


def counted(parts: list[tuple[int, int]], steps: int) -> list[int]:
    """The updates of each step: a number of steps with as many updates each, and so on, cyclic."""
    each = [count for length, count in parts for _ in range(length)]
    return (each * (steps // len(each) + 1))[:steps]


@settings(max_examples=60, deadline=None)
@given(COUNTS, COUNTS, st.integers(1, 3_000))
def test_cells_say_what_the_steps_count(ours: Any, others: Any, steps: int) -> None:
    """With each step counted by itself; two variables of one optimizer."""
    truth = {"a": counted(ours, steps), "b": counted(others, steps)}
    work = [block([step()], Run(1, 1, steps), graph=True)]
    for index, updates in enumerate(truth.values()):
        runs = fold((n, count) for n, count in enumerate(updates, 1) if count)
        work.append(block([update(index)], *runs, is_step=False, graph=True))
    heat = heat_of(traces.keras3(("a", "b"), tuple(work), ()))
    assert heat.columns <= COLUMNS and (heat.columns - 1) * heat.size < steps
    for name, cells in heat.rows:
        column = 0
        for begin, width, state, text in cells:
            assert begin == column
            column += width
            first, last = begin * heat.size, min(column * heat.size, steps)
            mine = truth[name][first:last]
            both = [
                a + b for a, b in zip(*(each[first:last] for each in truth.values()), strict=True)
            ]
            where = f"step {last:,}" if last == first + 1 else f"steps {first + 1:,}-{last:,}"
            said = text.removeprefix(f"{where}: ")
            sizes = [both[at : at + heat.size] for at in range(0, len(both), heat.size)]
            numbers = [int(n.replace(",", "")) for n in re.findall(r"\d[\d,]*", said)]
            match state:
                case "never":
                    assert not any(truth[name]) and said == "never updated"
                case "nothing" | "expected":
                    assert not any(both) and said.startswith("no update: ")
                case "others":
                    assert not any(mine) and all(map(any, sizes))
                    assert said == "no update, while other variables were updated"
                case _:
                    assert (state == "some") == (min(mine) == 0)
                    assert numbers == [sum(mine)]
        assert column == heat.columns


def test_cells_of_what_updates_did_to_the_weights() -> None:
    """Steps 4 to 6 do not change the kernel; the bias is not finite from step 8 on."""
    assert cells_of(traces.with_effects()) == {
        "dense/kernel": [
            ("updated", "steps 1-3: updated (3 updates)"),
            ("unchanged", "steps 4-6: unchanged by updates (3 updates)"),
            ("updated", "steps 7-10: updated (4 updates)"),
        ],
        "dense/bias": [
            ("updated", "steps 1-7: updated (7 updates)"),
            ("infinite", "steps 8-10: not finite after a step (3 updates)"),
        ],
    }


@pytest.mark.parametrize(
    ("name", "state", "text"),
    [
        ("accumulation", "expected", "steps 1-3: no update: accumulating, it seems"),
        ("embedding_on_two_replicas", "nothing", "step 33: no update: the step updated nothing"),
        ("incomplete", "unknown", "steps 41-46: no update known"),
        ("all_skipped", "never", "steps 1-40: never updated"),
        ("no_gradients", "others", "step 2: no update, while other variables were updated"),
    ],
)
def test_why_a_cell_has_no_update(name: str, state: str, text: str) -> None:
    rows = cells_of(getattr(traces, name)())
    assert (state, text) in rows["branch/kernel" if state == "others" else next(iter(rows))]


def test_odd_rows_come_first_and_others_are_counted() -> None:
    ids = range(1_000)
    work = block([step(), request(*ids), update(*range(999))], Run(1, 1, 1_000_000), graph=True)
    trace = traces.keras3([f"v{n}" for n in ids], (work,), ())
    heat = heat_of(trace)
    assert [name for name, _ in heat.rows] == ["v999", *(f"v{n}" for n in range(MAX_ROWS - 1))]
    assert (heat.size, heat.columns) == (5_000, 200)
    assert "700 more variables" in html.render(trace) and "A column is 5,000 steps" in html.render(
        trace
    )
    assert len(heat_of(trace, most=10).rows) == 10


# Safety and size.


def test_nothing_in_the_trace_can_leave_its_place() -> None:
    bad = "</style></title><script>alert(1)</script><!--\u2028\" onclick='alert(2)' {{ 7 * 7 }}"
    work = [step(), request(0), update(0)]
    dirty = traces.changed(
        traces.keras3((bad,), (block(work, Run(1, 1, 3)),), (), bad, notes=(bad,)),
        environment={bad: bad},
        graphs=(Graph(0, 0, bad, bad, 1, 0, 3, 0, path=0, detail=bad),),
        lines=(Line(bad, bad, 1), Line(bad, graph=True)),
        paths=((0, 1),),
        programs=(Program(bad, 1_790_000_000.0, "", 0),),
    )
    (one,) = dirty.data.blocks
    page = html.render(traces.changed(dirty, blocks=(replace(one, path=0),)))
    assert page.count("alert(1)") > 8 and "49" not in page and "\u2028" not in page
    tags = Tags(page)
    assert not tags.names & {"script", "img", "iframe", "object", "a", "link", "form"}
    allowed = {"lang", "charset", "http-equiv", "content", "name", "class", "open", "id"}
    allowed |= {"tabindex", "role", "aria-label", "aria-labelledby", "scope", "title"}
    assert tags.attributes <= allowed | {
        "viewbox",
        "preserveaspectratio",
        "x",
        "y",
        "width",
        "height",
    }
    assert tags.comments == []


class Tags(HTMLParser):
    """The names of all tags of a page and of their attributes, and its comments."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.comments: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_comment(self, data: str) -> None:
        self.comments.append(data)


def test_the_policy_allows_the_style_alone() -> None:
    page = html.render(traces.eager())
    digest = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'"
    assert f'http-equiv="Content-Security-Policy" content="{policy}"' in page
    assert re.findall(r"<style>(.*?)</style>", page, re.DOTALL) == [STYLE]
    assert len(page) < 20_000


def many_names() -> Trace:
    ids = range(10_000)
    work = (block([step(), request(*ids), update(*ids)], Run(1, 1, 1_000), graph=True),)
    names = [f"{'層' * 300}{n}" for n in ids]
    return traces.keras3(names, work, (called(1, ids, tracing=1),), notes=("n" * 5_000,) * 999)


def many_optimizers() -> Trace:
    gan = traces.two_optimizers()
    adam = gan.optimizers[0]
    return traces.changed(
        gan, optimizers=tuple(replace(adam, name=f"adam#{n}", root=n) for n in range(100))
    )


@pytest.mark.long
@pytest.mark.parametrize(
    ("trace", "left"),
    [
        (many_names(), ["9,500 more rows", "9,700 more variables", "899 more notes"]),
        (many_optimizers(), ["50 more optimizers"]),
    ],
    ids=["names", "optimizers"],
)
def test_a_page_has_a_size_whatever_the_trace(trace: Trace, left: list[str]) -> None:
    page = html.render(trace)
    assert len(page.encode()) < 2 * MEGABYTE
    for each in left:
        assert each in page


# The words around the tables.


def test_a_healthy_run_has_nothing_yellow() -> None:
    page = html.render(traces.accumulation())
    assert not re.search(r'class="(banner|warning|error|others|nothing|never)"', page)


def test_the_first_line_says_what_the_page_is_of() -> None:
    program = Program("train.py --lr <1>", 1_790_000_000.0, "", 0)
    page = html.render(traces.changed(traces.no_gradients(), programs=(program,)))
    said = "train.py --lr &lt;1&gt;, on 2026-09-21 at 14:13:20 UTC"
    assert f"<title>{said}</title>" in page and f"<h1>{said}</h1>" in page
    assert "<title>optimizer-tracer</title>" in html.render(traces.eager())
