"""Paths of stacks, without any framework: what stands in them and what does not."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tracer.core import call_paths as paths_module
from tracer.core.call_paths import UNKNOWN, Paths, frames_above, lines_of, shown_file
from tracer.model.records import Line


def not_known(code: Any, line: int) -> None:
    """Nothing here was written by AutoGraph."""


def lines_here() -> list[Line]:
    """The path to who calls this."""
    return lines_of(frames_above(sys._getframe(1)), not_known)


def module(file: Path, name: str, code: str) -> ModuleType:
    """A module with this code, as if it had been imported from `file`."""
    made = ModuleType(name)
    made.__file__ = str(file)
    exec(compile(code, str(file), "exec"), vars(made))
    return made


CALLS = """
def outer(function):
    return inner(function)

def inner(function):
    return function()
"""


def names(lines: list[Line]) -> list[str]:
    return [line.function for line in lines]


def test_what_runs_the_tests_is_left_out() -> None:
    """The outermost line is one of the program, and pytest is none."""
    assert names(lines_here()) == ["test_what_runs_the_tests_is_left_out"]
    (line,) = lines_here()
    assert line.file.endswith("test_call_paths.py")
    assert "lines_here()" in Path(__file__).read_text().splitlines()[line.number - 1]


def test_of_a_package_one_name_stays(tmp_path: Path) -> None:
    """That of what the program called; what only hands calls on has none."""
    there = tmp_path / "site-packages"
    package = module(there / "trainers" / "loop.py", "trainers.loop", CALLS)
    wrapper = module(there / "wrapt" / "wrappers.py", "wrapt.wrappers", CALLS)
    lines = package.outer(lambda: wrapper.outer(lines_here))
    assert names(lines) == [
        "test_of_a_package_one_name_stays",
        "trainers: outer",
        "test_of_a_package_one_name_stays.<locals>.<lambda>".rpartition("<locals>.")[2],
    ]
    assert [bool(line.file) for line in lines] == [True, False, True]


def test_a_program_that_is_a_package(tmp_path: Path) -> None:
    """Where nothing but packages is on the stack, theirs are the program's lines."""
    file = tmp_path / "site-packages" / "app" / "main.py"
    package = module(file, "app.main", CALLS)
    seen: list[Line] = []
    package.outer(lambda: seen.extend(lines_of(frames_above(sys._getframe(1))[:2], not_known)))
    assert seen == [
        Line("outer", shown_file(str(file)), 3),
        Line("inner", shown_file(str(file)), 6),
    ]


def test_the_standard_library_and_comprehensions_are_left_out() -> None:
    """They say nothing of the program; what calls itself stands there once."""

    def down(depth: int) -> Any:
        return down(depth - 1) if depth else [lines_here() for _ in range(2)][1]

    found = max(map(lambda _: down(5), [0]), key=len)
    assert names(found)[-1] == "down"
    assert names(found).count("down") == 1
    assert all(line.file.endswith("test_call_paths.py") for line in found)


def test_a_very_long_path_is_cut_in_its_middle() -> None:
    """Both ends stay."""
    lines: list[str] = ["def f0(): return here()"]
    lines += [f"def f{number}(): return f{number - 1}()" for number in range(1, 400)]
    space: dict[str, Any] = {"here": lines_here}
    exec("\n".join(lines), space)
    found = space["f399"]()
    assert len(found) == 201
    assert found[0].function == "test_a_very_long_path_is_cut_in_its_middle"
    assert found[100] == Line("...")
    assert found[-1] == Line("f0", "<string>", 1)


def test_equal_code_of_two_files_is_two_paths() -> None:
    """Python holds code for equal that differs in its file alone, as two cells may."""
    paths = Paths(not_known)

    def number_of(file: str) -> int:
        space: dict[str, Any] = {"here": lambda: paths.above(sys._getframe(1))}
        exec(compile("number = here()", file, "exec"), space)
        return int(space["number"])

    def both() -> list[int]:
        return [number_of(file) for file in ("<one>", "<other>", "<one>")]

    first, second, third = both()
    assert first == third != second
    assert paths.rows[first][-1] == Line("<module>", "<one>", 1)
    assert paths.rows[second][-1] == Line("<module>", "<other>", 1)


def test_there_is_an_end_to_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes later is not known, and what is known stays so."""
    monkeypatch.setattr(paths_module, "MAX_PATHS", 2)
    paths = Paths(not_known)
    rows = [[Line(name)] for name in "abc"]
    assert [paths.number(row) for row in rows] == [0, 1, UNKNOWN]
    assert paths.number(rows[1]) == 1


def test_stacks_are_forgotten_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their paths keep their numbers."""
    monkeypatch.setattr(paths_module, "_MAX_STACKS", 1)
    paths = Paths(not_known)
    numbers = []
    for _ in range(3):
        numbers.append(paths.of(frames_above(sys._getframe())))
        numbers.append(paths.of(frames_above(sys._getframe())))
    assert numbers == numbers[:2] * 3
    assert len(set(numbers)) == 2
