"""The benchmarks: their exact figures hold, and each script starts and prints its table."""

from itertools import pairwise
from pathlib import Path

import files
import pytest
from files import MOST, cost
from support.scripts import output_of

from tracer.model import tracefile
from tracer.model.timeline import Run

OPS_OF_A_BLOCK = 37


def printed(name: str, *arguments: str) -> list[list[str]]:
    """The rows of all tables that a benchmark prints, without their headers."""
    page = output_of(f"benchmarks/{name}.py", *arguments)
    assert f"Printed by `python benchmarks/{name}.py" in page
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.splitlines()
        if line.startswith("|")
    ]
    heads = [place - 1 for place, row in enumerate(rows) if set("".join(row)) <= {"-", ":"}]
    assert heads, page
    return [row for place, row in enumerate(rows) if {place, place - 1}.isdisjoint(heads)]


def number(cell: str) -> int:
    return int(cell.replace(",", ""))


@pytest.mark.sweep
def test_graphs_and_memory_grow_with_nothing_but_effects() -> None:
    every, mirrored, fourth, few, many, (_, *growth) = printed("fixed_costs")
    assert every[1] == "legacy, keras2, keras3, v1, legacy with XLA"
    ops, size = map(number, every[4:])
    assert 0 < ops <= OPS_OF_A_BLOCK
    assert size < 200_000
    assert list(map(number, mirrored[4:])) == [2 * ops, 2 * size]
    for row in (fourth, few, many):  # with another block, of the branch; with answers of effects
        assert ops < number(row[4])
        assert number(row[5]) < 2.1 * size
    assert every[2] == mirrored[2] == fourth[2] == "4, 100"
    assert number(many[4]) - number(few[4]) == 96 * 12
    # Ten times the steps.
    assert number(growth[-1]) < 1.5 * number(growth[-2])


@pytest.mark.sweep
def test_only_the_first_block_walks_over_all_objects() -> None:
    assert printed("recording", "--quick") == [
        ["1, the first block of a process", "2"],
        ["1", "0"],
        ["10", "0"],
        ["100", "0"],
        ["300", "0"],
        ["300, each used in a block", "0"],
    ]


@pytest.mark.sweep
def test_every_update_is_counted() -> None:
    rows = printed("instructions", "--quick", "tensorflow")
    assert len(rows) == 4
    assert all(0 < number(counted) == number(updates) for *_, counted, updates in rows)


@pytest.mark.sweep
def test_each_step_of_the_benchmark_for_a_gpu_is_counted() -> None:
    for name, _, steps, complete in printed("gpu", "--quick"):
        assert (number(steps), complete) == (100 if "scan of 10" in name else 10, "yes")


@pytest.mark.sweep
def test_what_each_peer_sees() -> None:
    rows = printed("peers")
    blind = {"unittest.mock", "cProfile", "VizTracer", "Debugger V2"}
    assert {peer for peer, seen, expected in rows if seen != expected} == blind


@pytest.mark.sweep
def test_the_files_benchmark_prints_its_sizes() -> None:
    rows = printed("files", "--quick")
    assert len(rows) == 6
    assert all(number(row[3]) > 0 for row in rows)


# Files, without TensorFlow and without another process.


def test_a_million_regular_steps_are_less_than_200_kilobytes(tmp_path: Path) -> None:
    path = files.big(tmp_path)
    assert path.stat().st_size < 200_000
    (block, *others) = tracefile.load(path).data.blocks
    assert block.runs == (Run(1, 1, 10**6),)
    assert len(others) == 7


@pytest.mark.parametrize("pattern", ["regular", "accumulating"])
def test_a_file_does_not_grow_with_the_steps(pattern: files.Pattern, tmp_path: Path) -> None:
    short = cost(tmp_path, pattern, 10**3, timed=False)
    long = cost(tmp_path, pattern, MOST[pattern], timed=False)
    assert short.runs == long.runs == 1
    assert long.size - short.size < 100  # longer numbers


def test_a_file_grows_with_the_changes(tmp_path: Path) -> None:
    few = cost(tmp_path, "skipping", 10**4, timed=False)
    more = cost(tmp_path, "skipping", 10**6, timed=False)
    assert more.runs > 50 * few.runs
    each = (more.size - few.size) / (more.runs - few.runs)
    assert each < 25  # bytes
    sparser = cost(tmp_path, "random", 2 * few.runs, timed=False)
    assert sparser.size < few.size + 25 * sparser.runs


def test_workers_are_merged(tmp_path: Path) -> None:
    parts = tmp_path / "parts"
    parts.mkdir()
    files.write_workers(parts, 64, 2, 10)
    _, megabytes, workers, updates = files.merge(parts, tmp_path / "all.json")
    assert (workers, updates) == (64, 64 * 2 * 10 * 10**6)
    assert megabytes < 1000


@pytest.mark.parametrize("pattern", ["skipping", "random"])
def test_the_steps_are_those_that_the_pattern_says(pattern: files.Pattern) -> None:
    runs = files.updated(pattern, 10_000)
    share = sum(run.total for run in runs) / 10_000
    assert share == 0.99 if pattern == "skipping" else 0.45 < share < 0.55
    assert all(before.last < after.first for before, after in pairwise(runs))
    assert runs[-1].last <= 10_000
