"""The reports: made again, each has the counts that are kept; an odometer says they are right."""

import inspect
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import how_often
import make
import measuring
import msgspec
import pytest
import python_body
import without_tensorflow
import wrappers
from how_often import CASES, Case
from support.odometers import ODOMETERS, Reading, read
from support.scripts import ROOT, output_of

REPORTS = ROOT / "reports"


def kept(question: str, row: Any) -> Any:
    """The counts of a question, as they are in the repository."""
    return msgspec.json.decode((REPORTS / f"{question}.json").read_bytes(), type=list[row])


def rows_of(case: Case) -> list[how_often.Row]:
    """The rows of a case."""
    fields = ("model", "kind", "optimizer", "mode", "batch", "replicas", "built")
    return [
        row
        for row in kept("how_often", how_often.Row)
        if all(getattr(row, name) == getattr(case, name) for name in fields)
    ]


def quick(cases: Iterable[Case]) -> list[Any]:
    """The cases; those that are no first of a kind or a mode are long."""
    seen: set[str] = set()
    found: list[Any] = []
    for case in cases:
        new = {case.kind, case.mode} - seen
        seen |= new
        small = case.model not in ("`LSTM`, `Dense`", "`GRU`, `Dense`")
        found.append(case if new and small else pytest.param(case, marks=pytest.mark.long))
    return found


@pytest.mark.sweep
@pytest.mark.parametrize("question", make.QUESTIONS)
def test_made_again_the_counts_are_the_same(question: str, tmp_path: Path) -> None:
    output_of("reports/make.py", question, "--folder", str(tmp_path))
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


def test_the_page_for_forums_has_the_short_table_and_links_every_report() -> None:
    page = (REPORTS / "README.md").read_text()
    assert how_often.short_table(kept("how_often", how_often.Row)) in page
    for question in make.QUESTIONS:
        assert f"({question}.md)" in page


def test_what_was_measured_without_tensorflow_is_what_others_counted() -> None:
    """The tests of each backend measure it again."""
    answer = without_tensorflow.kept(REPORTS)
    assert {row.backend for row in answer.rows} == without_tensorflow.BACKENDS.keys()
    assert all(row.tracer == row.oracle for row in answer.rows)
    page = (REPORTS / "without_tensorflow.md").read_text()
    assert without_tensorflow.page(answer) == page
    assert "(without_tensorflow.md)" in (REPORTS / "README.md").read_text()


@pytest.mark.parametrize("case", quick(CASES), ids=lambda case: case.name)
def test_an_odometer_counts_the_same_executions(case: Case) -> None:
    with measuring.strategy_of(case.replicas).scope():
        optimizer = ODOMETERS[case.kind]()
        model = measuring.build(case.kind, case.layers)
        if case.built:
            optimizer.build(model.trainable_variables)
        for variable in model.trainable_variables:
            variable.assign(variable * 0)
    how_often.fit(case, model, optimizer)
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


@pytest.mark.parametrize(
    "case", quick(case for case in CASES if case.brief or case.built), ids=lambda case: case.name
)
def test_a_counter_in_a_subclass_counts_the_same_python_calls(case: Case) -> None:
    calls: Counter[str] = Counter()
    rows = rows_of(case)
    base = getattr(measuring.OPTIMIZERS[case.kind], case.optimizer)
    counting = type(
        case.optimizer, (base,), {r.method: counted(base, r.method, calls) for r in rows}
    )
    with measuring.strategy_of(case.replicas).scope():
        optimizer = counting()
        model = measuring.build(case.kind, case.layers)
        if case.built:
            optimizer.build(model.trainable_variables)
    how_often.fit(case, model, optimizer)
    assert calls == {row.method: row.eager_calls + row.tracing_calls for row in rows}


def counted(base: Any, name: str, calls: Counter[str]) -> Any:
    """The method of that name, counted."""
    inherited = getattr(base, name)

    def counting(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls[name] += 1
        return inherited(self, *args, **kwargs)

    # Legacy optimizers ask their own methods for their arguments.
    counting.__signature__ = inspect.signature(inherited)  # type: ignore[attr-defined]
    return counting


def test_the_python_body_ran_as_often_as_the_tracer_saw_it_called() -> None:
    for row in kept("python_body", python_body.Row):
        assert sum(row.bodies) == row.calls
        assert row.executions == row.steps * row.variables
        if row.mode == "eager":
            assert row.bodies == [row.variables] * row.steps
        else:
            assert row.calls == row.graphs * row.variables


def test_the_wrappers_did_what_their_options_say() -> None:
    rows = {(row.kind, row.added): row for row in kept("wrappers", wrappers.Row)}
    for row in rows.values():
        # Two dense variables and one sparse, in each step that updates.
        updating = row.steps - len(row.steps_without_update)
        assert row.steps == wrappers.BATCHES
        assert row.dense + row.sparse == 3 * updating
    skipped = [row for row in rows.values() if "overflows" in row.added]
    assert [row.steps_without_update for row in skipped] == [[wrappers.OVERFLOWS + 1]] * 3
    accumulating = rows["keras3", "`gradient_accumulation_steps=4`"]
    assert accumulating.iterations == wrappers.BATCHES // 4


@pytest.mark.long
def test_the_digits_report_is_the_one_that_the_script_makes() -> None:
    page = ROOT / "reports" / "digits.md"
    before = page.read_text()
    try:
        printed = output_of("reports/digits.py", seconds=150)
        assert page.read_text() == before
    finally:
        page.write_text(before)
    # 1,797 images in batches of 32 for 3 epochs, six variables
    assert -(-1797 // 32) * 3 == 171
    assert f"{171 * 6:,} executions in 171 steps" in printed
    assert printed.count("How often did") == 2
