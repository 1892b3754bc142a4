"""The HTML report in a real browser: what people see, search, hover over and press."""

import io
import os
import random
import re
import time
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright
from support import traces
from support.traces import block, called, request, step, update

from tracer.api import CallTrace
from tracer.model.records import Graph
from tracer.model.runs import Run, fold
from tracer.reporters import colors, heatmap, html

pytestmark = pytest.mark.long

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)
HOSTILE = (
    "<script>alert(1)</script>",
    "long/" + "x" * 495,
    "two\nlines\r\n\u202eevil \u0645\u0631\u062d\u0628\u0627",
    "</script><img src=x onerror=alert(2)>",
    "<!--<script>",
    "{{ 7 * 7 }}",
    "\u2028 & 'quotes' \"",
)

Open = Callable[..., Page]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        reason = f"no browser: {CHROMIUM} is not there (apt-get install chromium)"
        if os.environ.get("TRACER_BROWSER") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=str(CHROMIUM), args=ARGUMENTS.split(), headless=True
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Opens the report on a trace; in the end, nothing may have gone wrong in it."""
    wrong: list[str] = []
    contexts = []

    def open_page(
        trace: CallTrace, width: int = 1100, scheme: Any = "light", touch: bool = False
    ) -> Page:
        path = tmp_path / "report.html"
        path.write_text(html.render(trace), encoding="utf-8")
        context = browser.new_context(
            viewport={"width": width, "height": 800}, color_scheme=scheme, has_touch=touch
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda message: wrong.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda request: _check(request.url, path, wrong))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not wrong


def _check(url: str, path: Path, wrong: list[str]) -> None:
    if url != path.as_uri() and not url.startswith(("data:", "blob:")):
        wrong.append(f"request: {url}")


def heat(page: Page) -> Any:
    page.wait_for_selector("#plot .cell")
    return page.locator("#plot")


def readout(page: Page, *keys: str) -> str:
    """What the line under the heat map says after these keys."""
    heat(page)
    page.focus("#heat")
    for key in keys:
        page.keyboard.press(key)
    return page.inner_text("#cell")


def steps_of(text: str) -> tuple[int, int]:
    """The steps that the line under the heat map is about."""
    found = re.search(r"steps ([\d,]+)-([\d,]+)", text)
    assert found
    return int(found[1].replace(",", "")), int(found[2].replace(",", ""))


def show_steps(page: Page, first: int, last: int) -> None:
    page.fill("#to", str(last))
    page.fill("#from", str(first))
    page.keyboard.press("Enter")
    page.wait_for_function(
        "([a, b]) => document.getElementById('from').value == a"
        " && document.getElementById('to').value == b"
        " && document.getElementById('cell').textContent.startsWith('Hover')",
        arg=[str(first), str(last)],
    )


def hover(page: Page, row: int, right: int = 12) -> str:
    """The tooltip over a row, so many pixels from the right end of the steps."""
    box = heat(page).locator(".track").nth(row).bounding_box()
    assert box
    x, y = box["x"] + box["width"] - right, box["y"] + 10
    page.mouse.move(x - 3, y)
    page.mouse.move(x, y, steps=3)
    page.wait_for_selector("#tip", state="visible")
    return page.inner_text("#tip")


def column(page: Page, number: int) -> list[str]:
    return page.locator(f"#table tbody tr > :nth-child({number})").all_inner_texts()


ALIKE = {"accumulation", "discarding", "eager", "function_argument", "uneven_replicas"}
"""The traces whose pages have parts that those of others have, too."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(each, marks=[pytest.mark.sweep] * (each in ALIKE)) for each in traces.ALL],
)
def test_every_trace_makes_a_page_without_an_error(name: str, open_page: Open) -> None:
    trace = traces.ALL[name]()
    page = open_page(trace)
    answer = " ".join(page.locator(".answer").all_inner_texts())
    assert answer.split() == trace.answer().split()
    if trace.steps and trace.variables:
        heat(page)
    elif trace.optimizers:
        assert page.is_visible("#empty")
    for note in trace.notes:
        assert note in page.inner_text(".notes")
    assert page.is_visible(".banner.wrong") != trace.complete


def test_a_cell_says_variable_steps_replica_and_count(open_page: Open) -> None:
    page = open_page(traces.embedding_on_two_replicas())
    assert hover(page, 0) == (
        "embedding/embeddings, steps 34-64, each of 2 replicas: 1 in each step: 31 in all, sparse"
    )
    assert hover(page, 4).startswith("dense_1/bias, ")
    page.select_option("#view", label="all 2 replicas together")
    page.mouse.move(5, 5)
    assert page.is_hidden("#tip")
    assert hover(page, 1) == (
        "dense/kernel, steps 34-64, all 2 replicas together: 2 in each step: 62 in all, dense"
    )
    show_steps(page, 33, 33)
    assert hover(page, 2) == (
        "dense/bias, step 33, all 2 replicas together: none: the step updated nothing"
    )


def test_each_of_a_million_steps_can_be_reached(open_page: Open) -> None:
    page = open_page(traces.accumulation(1_000_000, every=4))
    # 4 ** 6 steps, the least such that 240 cells show all.
    assert "steps 1-16,384, the replica: in 4,096 of the 16,384 steps" in readout(
        page, "ArrowRight"
    )
    assert page.is_visible("#sums")
    show_steps(page, 500_001, 500_008)
    texts = [readout(page, "ArrowRight") for _ in range(4)]
    found = [re.findall(r"steps? ([\d,-]+), the replica: (\w+)", each) for each in texts]
    assert found == [
        [("500,001-500,003", "none")],
        [("500,004", "1")],
        [("500,005-500,007", "none")],
        [("500,008", "1")],
    ]
    assert page.is_hidden("#sums")
    page.click("#all")
    page.wait_for_function("document.getElementById('to').value == 1000000")


def test_what_is_too_irregular_is_summed_up_exactly(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(html, "_MAX_CHARACTERS", 30_000)
    dice = random.Random(1)
    runs = fold((n, dice.randint(1, 3)) for n in range(1, 20_001) if dice.random() < 0.7)
    work = (
        block([step()], Run(1, 1, 20_000), graphs=1),
        block([update(0, 1)], *runs, is_step=False, graphs=1),
    )
    trace = traces.keras3(("a", "b"), work, (called(1, (0, 1), tracing=1),))
    page = open_page(trace)
    text = readout(page, "ArrowRight")
    assert "keeps" in page.inner_text(".grain")
    first, last = steps_of(text)
    assert f"{trace.updates(variable='a', step=range(first, last + 1))} in all" in text
    for _ in range(9):
        if page.is_disabled("#in"):
            break
        page.click("#in")
        page.wait_for_timeout(150)
    text = readout(page, "ArrowRight", "ArrowRight")
    first, last = steps_of(text)
    assert last - first + 1 in (4, 16, 64, 256, 1024)
    assert f"{trace.updates(variable='a', step=range(first, last + 1))} in all" in text


def test_dragging_zooms_into_the_steps(open_page: Open) -> None:
    page = open_page(traces.embedding_on_two_replicas())
    box = heat(page).bounding_box()
    assert box
    y = box["y"] + 50
    page.mouse.move(box["x"] + box["width"] - 200, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 100, y, steps=4)
    page.mouse.up()
    page.wait_for_function("document.getElementById('from').value > 40")
    first, last = int(page.input_value("#from")), int(page.input_value("#to"))
    assert 40 < first < last < 64
    page.click("#out")
    page.wait_for_function("document.getElementById('from').value < 40")


def test_the_heat_map_needs_no_mouse(open_page: Open) -> None:
    page = open_page(traces.embedding_on_two_replicas())
    assert readout(page, "ArrowRight") == (
        "embedding/embeddings, steps 1-32, each of 2 replicas: 1 in each step: 32 in all, sparse"
    )
    assert readout(page, "ArrowDown", "ArrowRight") == (
        "dense/kernel, step 33, each of 2 replicas: none: the step updated nothing"
    )
    readout(page, "+")
    page.wait_for_function("document.getElementById('from').value > 20")
    readout(page, "Home")
    page.wait_for_function("document.getElementById('from').value == 1")
    reached = set()
    for _ in range(30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"search", "BUTTON"} <= reached


def test_the_table_is_searched_and_sorted(open_page: Open) -> None:
    page = open_page(traces.no_gradients())
    assert column(page, 2) == ["20", "10", "0"]
    assert "never updated" in column(page, 1)[2]
    header = page.locator("#table thead th").nth(1)
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    header.locator("button").click()
    assert column(page, 2) == ["0", "10", "20"]
    assert header.get_attribute("aria-sort") == "ascending"
    page.locator("#table thead button").first.click()
    assert [name.split("/")[0] for name in column(page, 1)] == ["branch", "shared", "unused"]
    page.fill("#search", "KERNEL")
    assert len(column(page, 1)) == 3
    page.fill("#search", "share")
    assert column(page, 1) == ["shared/kernel"]
    assert page.inner_text("#matches") == "1 of 3 variables"
    page.fill("#search", "<script>")
    assert column(page, 1) == []


def test_names_are_shown_and_never_run(open_page: Open) -> None:
    ids = range(len(HOSTILE))
    work = (block([step(), request(*ids), update(*ids)], Run(1, 1, 7), graphs=1),)
    trace = traces.keras3(
        HOSTILE, work, (called(1, ids, tracing=1),), "<b>Adam</b>", notes=(HOSTILE[0], HOSTILE[3])
    )
    page = open_page(trace)
    names = column(page, 1)
    assert names[:2] == list(HOSTILE[:2])
    assert names[2] == "two\\nlines\\r\\n\\u202eevil \u0645\u0631\u062d\u0628\u0627"
    assert names[3:6] == list(HOSTILE[3:6])
    assert page.locator(".notes li").all_inner_texts() == [HOSTILE[0], HOSTILE[3]]
    assert "<b>Adam</b>" in page.inner_text("h2")
    assert hover(page, 0).startswith(f"{HOSTILE[0]}, steps 1-7")
    assert hover(page, 1).startswith("long/xxx")
    assert readout(page, "ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown").startswith(
        HOSTILE[3] + ", steps 1-7"
    )
    assert page.locator("img").count() == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1100


def test_a_thousand_variables_in_a_million_steps_open_at_once(open_page: Open) -> None:
    ids = range(1000)
    names = [f"encoder/layer_{n // 10}/query_{n % 10}/kernel" for n in ids]
    work = (
        block([step(), request(*ids), update(*range(999))], Run(1, 1, 399_999), graphs=1),
        block([step(), request(*ids)], Run(400_000, 1, 1), graphs=1),
        block([step(), request(*ids), update(*range(999))], Run(400_001, 1, 600_000), graphs=1),
    )
    start = time.perf_counter()
    page = open_page(traces.keras3(names, work, (called(1, ids, tracing=3),)))
    start = page.evaluate("performance.timing.navigationStart")
    heat(page)
    assert page.evaluate("Date.now()") - start < 3000
    assert len(page.content()) < 6_000_000
    assert page.text_content("#rows-shown") == "rows 1-2 of 2" and page.is_hidden("#pager")
    assert "never updated" in readout(page, "ArrowRight", "ArrowDown")
    page.uncheck("#fold")
    page.wait_for_function("document.getElementById('rows-shown').textContent.includes('1,000')")
    page.click("#rows-after")
    page.wait_for_function("document.getElementById('rows-shown').textContent.includes('26-50')")
    assert readout(page, "ArrowRight", "ArrowRight") == (
        "encoder/layer_2/query_5/kernel, step 400,000, the replica: none: the step updated nothing"
    )


def test_ten_thousand_variables(open_page: Open) -> None:
    ids = range(10_000)
    work = (block([step(), request(*ids), update(*ids)], Run(1, 1, 1000), graphs=1),)
    names = [f"model/block_{n // 7}/variable_{n}" for n in ids]
    page = open_page(traces.keras3(names, work, (called(1, ids, tracing=1),)))
    page.fill("#search", "variable_9999")
    assert column(page, 1) == ["model/block_1428/variable_9999"]
    page.fill("#search", "")
    page.click("#more")
    assert page.locator("#table tbody tr").count() == 275
    assert page.inner_text("#more") == "Show 250 more"
    page.locator("#table thead button").nth(0).click()
    page.locator("#table thead button").nth(0).click()
    assert column(page, 1)[0] == "model/block_1428/variable_9999"


def test_graphs_that_never_ran_are_named(open_page: Open) -> None:
    graphs = (
        Graph(0, 0, "train_step", "x: float32[32, 4]", 2, 1, 60, 0),
        Graph(0, 0, "train_step", "x: float32[7, 4]", 1, 1, 0, 60),
    )
    page = open_page(traces.changed(traces.never_ran(), graphs=graphs))
    points = page.locator(".graphs [data-tip]")
    assert [each.get_attribute("data-tip") for each in points.all()] == [
        "train_step(x: float32[32, 4]): 2 tracings",
        "train_step(x: float32[32, 4]): 60 executions",
        "train_step(x: float32[7, 4]): 1 tracing",
        "train_step(x: float32[7, 4]): never ran",
    ]
    assert "2 graph tracings never ran" in page.inner_text("main")
    rows = page.locator("table:has(th:text('tracings')) tbody tr").all_inner_texts()
    assert [re.split(r"\s*\t\s*", row) for row in rows] == [
        ["train_step(x: float32[32, 4])", "2", "1", "60", "0"],
        ["train_step(x: float32[7, 4])", "1", "1", "0", "60"],
    ]


def test_optimizers_are_chosen(open_page: Open) -> None:
    page = open_page(traces.two_optimizers())
    assert column(page, 1) == ["generator/kernel", "generator/bias"]
    page.select_option("#optimizer", index=1)
    page.wait_for_function("document.getElementById('to').value == 30")
    assert column(page, 1) == ["discriminator/kernel"]


@pytest.mark.parametrize(("look", "width"), [("light", 1100), ("dark", 1100), ("phone", 390)])
def test_it_looks_right(look: str, width: int, open_page: Open, tmp_path: Path) -> None:
    """The pictures are for people: where `TRACER_SCREENSHOTS` says, or nowhere."""
    folder = Path(os.environ.get("TRACER_SCREENSHOTS") or tmp_path)
    scheme = "dark" if look == "dark" else "light"
    for name in ("embedding_on_two_replicas", "many_variables"):
        page = open_page(traces.ALL[name](), width, scheme, look == "phone")
        heat(page)
        page.screenshot(path=folder / f"{name}-{look}.png", full_page=True)
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        back = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", back)[:3])) < 200) == (look == "dark")
        page.context.close()


def test_a_finger_sees_what_a_mouse_does(open_page: Open) -> None:
    page = open_page(traces.embedding_on_two_replicas(), 390, touch=True)
    last = heat(page).locator(".row").nth(4).locator(".cell").last
    last.tap()
    page.wait_for_function("document.getElementById('cell').textContent.includes('34-64')")
    assert page.inner_text("#cell").startswith("dense_1/bias, steps 34-64")


NAMES = (
    ["sequential/hidden/kernel", "sequential/hidden/bias", "sequential/out/kernel"],
    [f"encoder/layer_{n}/attention/self/query/kernel" for n in range(25)],
    ["a" * 30 + "x" + "b" * 30, "a" * 30 + "y" + "b" * 30],
    ["dense/kernel", "a/very/long/name/of/a/kernel", "a/very/long/name/of/another/kernel"],
    ["one/very/long/name/of/a/kernel"],
)


@pytest.mark.parametrize("names", NAMES)
@pytest.mark.parametrize("most", [14, 16, 36])
def test_labels_of_rows_stay_different(names: list[str], most: int, browser: Browser) -> None:
    script = (files("tracer.reporters") / "templates" / "report.js").read_text(encoding="utf-8")
    found = re.search(r"^function short\(.*?^}$", script, re.DOTALL | re.MULTILINE)
    assert found
    page = browser.new_page()
    cut = page.evaluate(
        f"([names, most]) => {{ {found[0]}; return short(names, most); }}", [names, most]
    )
    page.close()
    assert len(set(cut)) == len(names)
    assert all(len(each) <= most or each in names for each in cut)


def test_what_steps_did_to_the_weights(open_page: Open) -> None:
    """Two more columns, and a line that stands out, where effects were asked for."""
    page = open_page(traces.with_effects())
    head = page.locator("#table thead th").all_inner_texts()
    assert [text.strip() for text in head][-4:-2] == ["unchanged", "not finite"]
    lines = page.locator("#table tbody tr")
    assert [line.locator("td").all_inner_texts()[-4:-2] for line in lines.all()] == [
        ["3", "0"],
        ["2", "3"],
    ]
    assert [line.get_attribute("class") for line in lines.all()] == [None, "odd"]
    page = open_page(traces.eager())
    assert page.locator("#table thead th").nth(-3).inner_text().strip() == "without gradient"


def line_of_pixels(page: Page, row: int, below: int) -> list[str]:
    """The colours of the heat map, so many pixels below the top of a row."""
    track = heat(page).locator(".track").nth(row)
    picture = Image.open(io.BytesIO(track.screenshot())).convert("RGB")
    pixels = picture.crop((0, below, picture.width, below + 1)).tobytes()
    return [f"#{pixels[at : at + 3].hex()}" for at in range(0, len(pixels), 3)]


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_marks_say_what_came_of_the_weights(width: int, scheme: str, open_page: Open) -> None:
    """Of 10 steps, 4 to 6 leave the kernel as it is, and the bias is not finite from 8 on."""
    page = open_page(traces.with_effects(), width=width, scheme=scheme)
    theme = colors.LIGHT if scheme == "light" else colors.DARK
    blue = theme[heatmap.states([(1, 1)])["1"]]
    places = {}
    for row, mark in ((0, theme["unchanged"]), (1, theme["infinite"])):
        edge, middle = (line_of_pixels(page, row, below) for below in (3, 10))
        plot = [x for x, color in enumerate(edge) if color == blue]
        bar = [x for x, color in enumerate(middle) if color == mark and plot[0] <= x <= plot[-1]]
        length = plot[-1] - plot[0]
        places[row] = (bar[0] - plot[0]) / length, (bar[-1] - plot[0]) / length
    assert places[0] == pytest.approx((0.3, 0.6), abs=0.02)
    assert places[1] == pytest.approx((0.7, 1.0), abs=0.06)  # the cross is at its begin
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#plot .cross").count() == 1
    assert readout(page, "ArrowRight", "ArrowRight") == (
        "dense/kernel, steps 4-6, the replica: 1 in each step: 3 in all, dense. Weights: "
        "unchanged in each step"
    )
    assert readout(page, "ArrowDown", "ArrowRight").endswith(
        "dense/bias, step 8, the replica: 1 in each step: 1 in all, dense. Weights: changed; "
        "not finite; not finite for the first time after step 8"
    )
    assert hover(page, 1).endswith("Weights: unchanged in each step; not finite in each step")


def test_callers_and_layers_are_tables(open_page: Open) -> None:
    page = open_page(traces.several_callers())
    rows = page.locator("[aria-label=Callers] tbody tr").all_inner_texts()
    assert rows[0].split("\t") == ["traced from train.py:41 main", "880", "40", "44"]
    page.locator("summary", has_text="Updates by layer").click()
    rows = page.locator("[aria-label='Updates by layer'] tbody tr").all_inner_texts()
    assert rows[0].split("\t") == ["encoder/*", "9", "0", "1,134", "1,134", "0"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_callers_fit_a_phone(scheme: str, open_page: Open) -> None:
    page = open_page(traces.several_callers(), width=360, scheme=scheme)
    assert page.is_visible("[aria-label=Callers]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_a_table_that_is_too_wide_says_that_it_scrolls(open_page: Open) -> None:
    hint = "getComputedStyle(document.querySelector('#variables .wide'), '::before').content"
    page = open_page(traces.several_callers(), width=390)
    assert "Scroll sideways" in page.evaluate(hint)
    page.set_viewport_size({"width": 1280, "height": 800})
    page.wait_for_function(f"{hint} === 'none'")


def test_long_names_fit_a_phone(open_page: Open) -> None:
    names = [f"model/encoder/layer_{n}/attention/query/kernel_{'x' * 40}" for n in range(3)]
    work = (block([step(), request(0, 1, 2), update(0, 1)], Run(1, 1, 5), graphs=1),)
    page = open_page(traces.keras3(names, work, (called(1, (0, 1, 2), tracing=1),)), width=390)
    assert names[2] in page.inner_text(".findings")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
