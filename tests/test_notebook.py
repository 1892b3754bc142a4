"""A notebook that is run as Jupyter runs it: a trace in its last line, and `%%trace`."""

import warnings
from collections.abc import Sequence
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

SETUP = """
import os
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import tensorflow as tf, keras
%load_ext tracer
variable = tf.Variable([0.0, 0.0], name="weights")

def train(optimizer, steps):
    for _ in range(steps):
        optimizer.apply_gradients([(tf.ones(2), variable)])
"""


@pytest.fixture(scope="module")
def outputs() -> list[Any]:
    """The outputs of `CELLS`, in one kernel; those of the setup are left out."""
    v4: Any = nbformat.v4
    cells = [v4.new_code_cell(each.strip()) for each in (SETUP, *CELLS)]
    notebook = v4.new_notebook(cells=cells)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # theirs
        NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
    return [cell.outputs for cell in notebook.cells[1:]]


CELLS = (
    """
import tracer
optimizer = tracer.wrap(keras.optimizers.SGD(1.0))
train(optimizer, 5)
tracer.trace_of(optimizer)
""",
    "%%trace\ntrain(keras.optimizers.SGD(1.0), 7)\nprint('done')\n1 + 1",
    "%%trace mine\ntrain(keras.optimizers.SGD(1.0), 3)",
    "mine.steps, int(variable[0]), mine.has_effects",
    "%%trace --effects seen\ntrain(keras.optimizers.SGD(0.0), 3)",
    "seen.count('unchanged', by='variable'), int(variable[0])",
    "%%trace\ntrain(keras.optimizers.SGD(1.0), 3)\nraise KeyError('mine')",
)


def htmls(outputs: Sequence[Any]) -> list[str]:
    return [each.data["text/html"] for each in outputs if "text/html" in each.get("data", {})]


@pytest.mark.long
def test_a_notebook_shows_traces(outputs: list[Any]) -> None:
    last_line, magic, named, *_ = outputs
    assert "update_step ran once a step: 5 executions in 5 steps." in htmls(last_line)[0]
    assert last_line[-1].data["text/plain"].endswith(": 5 steps, 5 updates>")
    assert "update_step ran once a step: 7 executions in 7 steps." in htmls(magic)[0]
    assert [len(htmls(each)) for each in (last_line, magic, named)] == [1, 1, 1]
    assert [each.text for each in magic if each.output_type == "stream"] == ["done\n"]
    assert "2" in [each.get("data", {}).get("text/plain") for each in magic]
    assert "3 executions in 3 steps" in htmls(named)[0]


@pytest.mark.long
def test_a_trace_has_a_name_and_a_cell_may_fail(outputs: list[Any]) -> None:
    asked, effects, unchanged, failed = outputs[3:]
    assert asked[0].data["text/plain"] == "(3, -15, False)"
    assert unchanged[0].data["text/plain"] == "({('weights',): 3}, -15)"
    assert "unchanged" in htmls(effects)[0]
    errors = [[each for each in cell if each.output_type == "error"] for cell in outputs]
    assert [len(each) for each in errors] == [0] * 6 + [1]
    assert errors[-1][0].ename == "KeyError"
    text = "".join(each.text for each in failed if each.output_type == "stream")
    assert "%%trace: the cell failed; the trace is of what ran before" in text
    assert "3 executions in 3 steps" in htmls(failed)[0]
