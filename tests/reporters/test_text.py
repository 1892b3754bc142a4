"""The text report: golden files, widths, terminals and encodings."""

import csv
import io
import json
import re

import msgspec
import pytest
from rich.cells import cell_len
from support import traces
from support.cost import at_most
from support.golden import assert_golden
from support.traces import block, request, step, update

from tracer.errors import UnknownName
from tracer.model.merge import combine
from tracer.model.records import Block, Line, Replica
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.reporters import formats
from tracer.reporters.columns import TABLES, By
from tracer.reporters.text import render

# Golden files.


@pytest.mark.parametrize("name", traces.ALL)
def test_report(name: str) -> None:
    assert_golden(f"reporters/{name}.txt", render(traces.ALL[name]()))


@pytest.mark.parametrize("name", ["embedding_on_two_replicas"])
def test_a_narrow_terminal(name: str) -> None:
    assert_golden(f"reporters/{name}.40.txt", render(traces.ALL[name](), width=40))


def test_colors() -> None:
    assert_golden("reporters/no_gradients.ansi", render(traces.no_gradients(), color=True))


# What must hold of every report.


@pytest.mark.parametrize("name", traces.ALL)
@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("by", [None, *TABLES])
def test_fits_and_is_plain(name: str, width: int, by: By | None) -> None:
    text = render(traces.ALL[name](), by, width=width)
    for line in text.removesuffix("\n").split("\n"):
        assert line == line.rstrip()
        assert line.isprintable()
        # A word that is longer than the width is left whole, so that it can be copied.
        assert cell_len(line) <= max(width, max(map(cell_len, line.split(" "))) + 2), line


def test_unknown_table() -> None:
    with pytest.raises(UnknownName, match="no table 'line': by is one of variable, layer"):
        render(traces.eager(), "line")  # type: ignore[arg-type]  # that is the test


@pytest.mark.parametrize("by", [None, "replica"])
def test_processes_of_pytorch_are_ranks(by: By | None) -> None:
    trace = traces.uneven_replicas()
    ranks = tuple(Replica(f"rank:{each}", 0, "cpu") for each in range(len(trace.replicas)))
    said = render(traces.changed(trace, replicas=ranks), by)
    said = said.replace("under MirroredStrategy", "").replace("replicas-disagree", "")
    assert "replica" not in said and re.search(r" 2 variables,\s4\sranks\n", said)
    if by == "replica":
        table = said[said.index("\nrank ") :].splitlines()
        assert "worker" not in table[1] and table[2].startswith("0 ")


@pytest.mark.parametrize("name", traces.ALL)
def test_who_called_changes_no_other_table(name: str) -> None:
    """Blocks that differ in their path alone are told as one: here the first step of each run."""
    trace, blocks, replace = traces.ALL[name](), list[Block](), msgspec.structs.replace
    for whole in trace.data.blocks:
        first = tuple(Run(run.first, 1, 1, run.times) for run in whole.runs)
        rest = (run.intersect(range(run.first + 1, run.last + 1)) for run in whole.runs)
        alone = sum(run.times for run in first)
        blocks.append(replace(whole, path=0, runs=first, total=alone))
        later = tuple(filter(None, rest))
        blocks.append(replace(whole, path=1, runs=later, total=whole.total - alone))
    data = replace(
        trace.data,
        lines=(Line("main", "train.py", 1), Line("main", "train.py", 2)),
        paths=((0,), (1,)),
        calls=tuple(replace(each, path=None) for each in trace.data.calls),
        graphs=tuple(replace(each, path=None) for each in trace.graphs),
    )
    plain = tuple(replace(each, path=None) for each in trace.data.blocks)
    split = Trace(replace(data, blocks=tuple(blocks)))
    assert render(split) == render(Trace(replace(data, blocks=plain)))


def of_workers(count: int) -> Trace:
    """3 steps on one replica of each worker; the last one made a step less."""
    work = [step(), request(0), update(0)]
    blocks = [block(work, Run(1, 1, 3), replica=each) for each in range(count - 1)]
    blocks.append(block(work, Run(1, 1, 2), replica=count - 1))
    workers = tuple(Replica(f"worker:{each}", 0, "CPU:0") for each in range(count))
    return traces.changed(traces.keras3(("a",), tuple(blocks), ()), replicas=workers)


def test_a_long_table_shows_the_first_rows_and_says_how_to_see_the_others() -> None:
    names = [f"layer_{index}/kernel" for index in range(40)]
    work = [step(), request(*range(40)), update(*range(5))]  # the other 35 are odd
    variables = traces.keras3(names, (block(work, Run(1, 1, 2)),), ())
    text = render(variables, width=120)
    assert "... and 10 more rows: the report by variable has them all" in text
    assert "layer_0/kernel" not in text.split("\n\n")[-3]
    assert "more rows" not in render(variables, "variable")
    workers = of_workers(35)
    assert "... and 5 more rows: the report by replica has them all" in render(workers)
    assert "\nworker:34/0 " in render(workers) and "\nworker:29/0 " not in render(workers)
    assert render(workers, "replica").count("\nworker:") == 35
    replicas = traces.trained(["a"], Run(1, 1, 2), replicas=1003)
    said = "... and 3 more rows: the report by replica as csv has them all"
    assert said in render(replicas, "replica")


# Large runs.


def test_a_million_steps_take_no_longer() -> None:
    with at_most(20_000):
        text = render(traces.accumulation(steps=1_000_000, every=4))
    assert "1-3, 5-7 … 999,997-999,999         0       0        0" in text
    assert "4, 8 … 1,000,000                   4       4        0" in text
    assert len(text.splitlines()) < 30


# Several optimizers.


def test_an_optimizer_that_updated_nothing_is_a_fault_among_many() -> None:
    trace = traces.many_optimizers()
    blocks = tuple(each for each in trace.data.blocks if each.root != 4)
    text = render(traces.changed(trace, blocks=blocks), color=True)
    (fault,) = [line for line in text.splitlines() if line.startswith("\x1b[1;31m  Adam")]
    assert '"adam_4"' in fault


def test_an_optimizer_of_one_worker_names_it() -> None:
    one, other = of_workers(2), of_workers(2)
    parts = [(each.data, [None]) for each in (one, other)]
    both = Trace(combine(parts)[0])
    first = [each for each in both.data.blocks if each.root != 0 or each.replica == 1]
    data = msgspec.structs.replace(both.data, blocks=tuple(first))
    assert ", in worker:1" in render(Trace(data))


# Printing.


class Terminal(io.StringIO):
    """A terminal without a size."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("forced", ["", "1"])
def test_a_file_gets_no_ansi_unless_it_is_asked_for(
    forced: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", forced)
    monkeypatch.setenv("COLUMNS", "80" if forced else "33")
    file = io.StringIO()
    formats.print_report(traces.no_gradients(), file=file)
    assert file.getvalue() == render(traces.no_gradients(), color=bool(forced))


@pytest.mark.parametrize(
    ("variable", "value", "colored"),
    [("NO_COLOR", "", True), ("NO_COLOR", "1", False), ("TERM", "dumb", False)],
)
def test_a_terminal_gets_colors(
    variable: str, value: str, colored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv(variable, value)
    file = Terminal()
    formats.print_report(traces.no_gradients(), file=file)
    assert ("\x1b[" in file.getvalue()) == colored
    plain = re.sub(r"\x1b\[[\d;]*m", "", file.getvalue())
    assert plain == render(traces.no_gradients())


def test_an_encoding_without_the_characters() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii", newline="\n")
    formats.print_report(traces.hostile_names(), file=file)
    file.flush()
    assert rb"\u5c64/\u30ab" in raw.getvalue()


def test_no_cell_of_a_csv_file_is_a_formula() -> None:
    """What OWASP lists: a text that begins with one of these is run by a spreadsheet."""
    names = [f"{begin}cmd|' /C calc'!A0" for begin in ("=", "+", "-", "@", "\t=", "\r=", "\uff1d")]
    trace = traces.trained([*names, "dense/kernel", "a=b-c"], Run(1, 1, 2))
    (optimizer,) = trace.optimizers
    evil = msgspec.structs.replace(optimizer, name='=HYPERLINK("http://x","y")')
    rows = list(csv.reader(io.StringIO(formats.as_csv(traces.changed(trace, optimizers=(evil,))))))
    cells = [cell for row in rows for cell in row]
    assert [cell for cell in cells if cell[:1] in ("=", "+", "-", "@", "\t", "\r", "\uff1d")] == []
    assert [row[1] for row in rows[-2:]] == ["dense/kernel", "a=b-c"]
    assert [row[1] for row in rows[1:5]] == [f"'{name}" for name in names[:4]]


def test_json_names_the_optimizers_inside_another_one() -> None:
    trace = traces.loss_scaled()
    (found,) = json.loads(formats.as_json(trace))["optimizers"]
    assert [found["class"], *found["nested"]] == [each.class_name for each in trace.optimizers]
    assert len(found["nested"]) == 1


def test_a_notebook_shows_the_report_and_no_tag_of_a_name() -> None:
    bad = "<script>alert(1)</script>"
    page = traces.trained([bad], Run(1, 1, 2))._repr_html_()
    assert page.startswith("<pre ") and "\x1b" not in page
    assert "&lt;script&gt;" in page and bad not in page
