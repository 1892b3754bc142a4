"""Makes the pictures of the pages: `python docs/pictures.py`, with the extra `test` and Chromium.

`TRAIN` trains a small model under a loss scale, with one batch that is not finite and one layer
that the loss does not depend on. `tracer run` traces it; a terminal and a page show the trace.
"""

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["KERAS_BACKEND"] = "tensorflow"

from playwright.sync_api import sync_playwright
from rich.console import Console
from rich.text import Text

import tracer
from tracer.model.trace import Trace
from tracer.reporters.text import render

FOLDER = Path(__file__).parent / "pictures"
CHROMIUM = "/usr/bin/chromium"
COMMAND = (sys.executable, "-m", "tracer")
TRAIN = """
import keras
import numpy as np

keras.utils.set_random_seed(0)
inputs = keras.Input((4,), dtype="int32")
embedded = keras.layers.Embedding(20, 8, name="embedding")(inputs)
hidden = keras.layers.Dense(16, name="hidden")(keras.layers.Flatten()(embedded))
output = keras.layers.Dense(1, name="output")(hidden)
unused = keras.layers.Dense(1, name="unused")(hidden)
model = keras.Model(inputs, [output, unused])
optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(), initial_scale=2.0)
model.compile(optimizer, loss=["mse", None])
x = np.arange(64 * 8 * 4).reshape(-1, 4) % 20
y = np.ones((64 * 8, 1), "float32")
y[32 * 8] = np.inf
model.fit(x, y, batch_size=8, shuffle=False, verbose=0)
"""
"""64 steps of `model.fit`, of which the loss scale skips step 33."""


def main() -> None:
    """Train, and write `page.png` and `terminal.svg`."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shown = terminal(run("train.py", TRAIN, folder), "tracer run train.py")
        (FOLDER / "terminal.svg").write_text(shown, encoding="utf-8")
        (FOLDER / "page.png").write_bytes(screenshot(page_of("tracer.json", folder), ".map"))


def run(name: str, program: str, folder: str) -> Trace:
    """The trace of a program that `tracer run` has run."""
    (Path(folder) / name).write_text(program, encoding="utf-8")
    subprocess.run([*COMMAND, "run", "--quiet", name], cwd=folder, check=True)
    return tracer.load(Path(folder) / "tracer.json")


def page_of(trace: str, folder: str) -> Path:
    """The report on a trace file as a page."""
    command = [*COMMAND, "report", trace, "-o", "report.html"]
    subprocess.run(command, cwd=folder, check=True)
    return Path(folder) / "report.html"


def terminal(trace: Trace, command: str) -> str:
    """The report in a terminal of 88 columns, as SVG without a font of its own."""
    console = Console(record=True, file=io.StringIO(), width=88, force_terminal=True)
    report = render(trace, width=88, color=True)
    console.print(Text.from_ansi(f"$ {command}\n{report}"))
    svg = console.export_svg(title="tracer", unique_id="tracer")
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def screenshot(page: Path, chart: str) -> bytes:
    """The page from its top down to a chart."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        opened = browser.new_page(viewport={"width": 1000, "height": 1200})
        opened.goto(page.as_uri())
        end = opened.locator(chart).bounding_box()
        assert end is not None
        clip: Any = {"x": 0, "y": 0, "width": 1000, "height": end["y"] + end["height"] + 10}
        picture = opened.screenshot(clip=clip, full_page=True)
        browser.close()
    return picture


if __name__ == "__main__":
    main()
