"""How often do the apply methods run when a model learns scikit-learn's handwritten digits?

`python reports/digits.py` trains, prints the report and writes it to `digits.md` beside this file.
It needs the extra `test` (scikit-learn, tf_keras).
"""

import io
import os
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ["KERAS_BACKEND"] = "tensorflow"

import tracer
from tracer.model.trace import Trace

BATCH, EPOCHS = 32, 3
OPTIMIZERS = {
    "Adam of tf_keras (legacy)": ("tf_keras", "optimizers.legacy.Adam"),
    "Adam of Keras 3": ("keras", "optimizers.Adam"),
}


def main() -> None:
    """Train with each optimizer, print the reports, and write `digits.md`."""
    traces = {label: train(*names) for label, names in OPTIMIZERS.items()}
    page = markdown(traces)
    print(page, end="")
    Path(__file__).with_suffix(".md").write_text(page, encoding="utf-8")


def train(package: str, optimizer_name: str) -> Trace:
    """The trace of three epochs of `model.fit` on the digits: 1,797 images of 8 x 8 pixels."""
    from sklearn.datasets import load_digits

    keras = import_module(package)
    make: Any = keras
    for part in optimizer_name.split("."):
        make = getattr(make, part)
    keras.utils.set_random_seed(0)
    images, labels = load_digits(return_X_y=True)
    model = keras.Sequential(
        [
            keras.layers.Reshape((8, 8, 1)),
            keras.layers.Conv2D(8, 3, activation="relu", name="convolution"),
            keras.layers.Flatten(),
            keras.layers.Dense(32, activation="relu", name="hidden"),
            keras.layers.Dense(10, name="output"),
        ]
    )
    optimizer = tracer.wrap(make())
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss=loss)
    model.fit(images.astype("float32") / 16, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0)
    return tracer.trace_of(optimizer)


def markdown(traces: dict[str, Trace]) -> str:
    """The page: what was trained, and each report as `tracer.report` prints it."""
    versions: dict[str, str] = {}
    for trace in traces.values():
        versions |= trace.environment
    made_with = ", ".join(
        f"{name} {versions[name]}" for name in ("tensorflow", "keras", "tf_keras")
    )
    intro = (
        "The 1,797 images of scikit-learn's `load_digits`; one convolution and two dense layers; "
        f"batches of {BATCH}, so that the last one of each epoch has 5 images; {EPOCHS} epochs of "
        f"`model.fit` with default settings. Made by `python reports/digits.py` with {made_with}."
    )
    lines = ["# Handwritten digits", "", *textwrap.wrap(intro, 100, break_on_hyphens=False)]
    for label, trace in traces.items():
        report = io.StringIO()
        tracer.report(trace, file=report)
        lines += ["", f"## {label}", "", "```text", report.getvalue().rstrip(), "```"]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
