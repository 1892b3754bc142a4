"""The reports: made again, each has the counts that are kept; an odometer says they are right."""

from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import how_often
import make
import msgspec
import pytest
import without_tensorflow
from how_often import CASES, Case
from support.odometers import ODOMETERS, Reading, read
from support.scripts import ROOT, output_of

REPORTS = ROOT / "reports"


def rows_of(case: Case) -> list[how_often.Row]:
    """The rows of a case in the report."""
    return [row for row in make.kept("how_often", how_often.Row) if row.case == case.name]


def quick(cases: Iterable[Case]) -> list[Any]:
    """The cases; those that are no first of a kind or a mode are long."""
    seen: set[str] = set()
    found: list[Any] = []
    for case in cases:
        new = {case.kind, case.mode} - seen
        seen |= new
        small = case.model != "`LSTM`, `Dense`"
        found.append(case if new and small else pytest.param(case, marks=pytest.mark.long))
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("question", make.QUESTIONS)
def test_made_again_the_counts_are_the_same(question: str, tmp_path: Path) -> None:
    output_of("reports/make.py", question, "--folder", str(tmp_path), seconds=580)
    made, before = (
        msgspec.json.decode((folder / f"{question}.json").read_bytes())
        for folder in (tmp_path, REPORTS)
    )
    assert made == before
    # The last line has the versions.
    made, before = (
        (folder / f"{question}.md").read_text().splitlines()[:-1] for folder in (tmp_path, REPORTS)
    )
    assert made == before


def test_the_first_page_links_every_report() -> None:
    page = (REPORTS / "README.md").read_text()
    for question in (*make.QUESTIONS, "without_tensorflow"):
        assert f"({question}.md)" in page


def test_what_was_measured_without_tensorflow_is_what_others_counted() -> None:
    """The tests of each backend measure it again."""
    rows = make.kept("without_tensorflow", without_tensorflow.Row)
    assert {row.backend for row in rows} == without_tensorflow.BACKENDS.keys()
    assert all(row.tracer == row.oracle for row in rows)
    page = (REPORTS / "without_tensorflow.md").read_text()
    assert page.startswith(without_tensorflow.page(rows))


PLAIN = [case for case in CASES if not case.added and case.kind != "v1"]


@pytest.mark.parametrize("case", quick(PLAIN), ids=lambda case: case.name)
def test_an_odometer_counts_the_same_executions(case: Case) -> None:
    with how_often.strategy_of(case.replicas).scope():
        optimizer, model = ODOMETERS[case.kind](), how_often.build(case)
        for variable in model.trainable_variables:
            variable.assign(variable * 0)
    how_often.train(case, optimizer, model)
    readings = [read(variable) for variable in model.trainable_variables]
    steps = how_often.BATCHES
    assert {reading for each in readings for reading in each} <= {Reading(steps), Reading(0, steps)}
    executions: Counter[str] = Counter()
    for each in readings:
        for reading in each:
            executions[method(case.kind, "dense")] += reading.dense
            executions[method(case.kind, "sparse")] += reading.sparse
    rows = rows_of(case)
    assert {row.method: row.executions for row in rows} == dict(+executions)
    assert sum(row.variables for row in rows) == len(readings)
    assert {row.steps for row in rows} == {steps}


def method(kind: str, gradient: str) -> str:
    """The apply method for a gradient of that sort."""
    return f"_resource_apply_{gradient}" if kind == "legacy" else "update_step"


def test_what_was_added_did_what_its_option_says() -> None:
    rows = Counter[str]()
    for case in CASES:
        for row in rows_of(case) if case.added else ():
            # Two dense variables and one sparse, in each step that updates.
            share = 3 if case.kind == "keras3" or row.method == "update_step" else row.variables
            assert row.executions == share * (row.steps - row.without_update), row
            assert row.steps == how_often.BATCHES
            overflows, every = "overflows" in case.added, 4 if "accumulation" in case.added else 1
            assert row.without_update == (row.steps - row.steps // every) + overflows
            skipped = overflows and case.kind == "keras3"
            assert row.iterations == row.steps // every - skipped
            rows[case.added] += 1
    assert rows.keys() == how_often.ADDED.keys()
