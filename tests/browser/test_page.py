"""The HTML report in a real browser: it opens, requests nothing, fits, and prints."""

import os
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, sync_playwright
from support import traces

from tracer.reporters import html

pytestmark = pytest.mark.long

CHROMIUM = Path("/usr/bin/chromium")
ARGUMENTS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


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


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("many_variables", marks=pytest.mark.sweep),
        "hostile_names",
        "with_effects",
    ],
)
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_a_page_opens_fits_and_prints(
    name: str, scheme: Any, width: int, browser: Browser, tmp_path: Path
) -> None:
    """Without an error, a refused style or a request; `TRACER_SCREENSHOTS` keeps the pictures."""
    path, wrong = tmp_path / "report.html", list[str]()
    path.write_text(html.render(traces.ALL[name]()), encoding="utf-8")
    page = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("request", lambda request: wrong.append(request.url))
    page.on("dialog", lambda dialog: wrong.append(dialog.message))
    page.goto(path.as_uri())
    folder = Path(os.environ.get("TRACER_SCREENSHOTS") or tmp_path)
    page.screenshot(path=folder / f"{name}-{scheme}-{width}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate("document.scripts.length") == 0
    color = "getComputedStyle(document.body).backgroundColor"
    assert (sum(map(int, re.findall(r"\d+", page.evaluate(color))[:3])) < 200) == (scheme == "dark")
    for row in page.locator(".map svg").all():  # cells fill the row, and have texts
        ends = row.evaluate(
            "e => [e, e.firstChild, e.lastChild].map(c => c.getBoundingClientRect())"
        )
        whole, first, last = ends
        assert whole["width"] > 150
        assert (first["left"], last["right"]) == pytest.approx(
            (whole["left"], whole["right"]), abs=1
        )
        assert row.locator("rect title").count() == row.locator("rect").count()
    page.emulate_media(media="print")
    assert page.evaluate(color) == "rgb(255, 255, 255)"
    boxes = [row.bounding_box() for row in page.locator(".map th").all()]
    assert all(a["y"] + a["height"] <= b["y"] + 1 for a, b in pairwise(filter(None, boxes)))
    assert page.pdf().startswith(b"%PDF")
    page.close()
    assert wrong == [path.as_uri()]
