"""Paths of stacks, without any framework: what stands in them and what does not."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tracer.core import call_paths as paths_module
from tracer.core.call_paths import Paths, frames_from, shown_file
from tracer.model.records import Line


def not_known(code: Any, line: int) -> None:
    """Nothing here was written by AutoGraph."""


def line_here() -> Line:
    """The line of the program that calls this."""
    paths = Paths(not_known)
    (line,) = paths.lines(paths.above(sys._getframe(1)))
    return line


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


def test_the_innermost_line_of_the_program(tmp_path: Path) -> None:
    """Of a package, the standard library and a comprehension nothing is shown."""
    there = tmp_path / "site-packages" / "trainers" / "loop.py"
    package = module(there, "trainers.loop", CALLS)
    lines = [package.outer(line_here), max(map(lambda call: call(), [line_here]), key=str)]
    lines += [[line_here() for _ in range(2)][1]]
    for line in lines:
        assert "lines" in Path(__file__).read_text().splitlines()[line.number - 1]
        assert line.file.endswith("test_call_paths.py")


def test_a_program_that_is_a_package(tmp_path: Path) -> None:
    """Where nothing but packages is on the stack, its innermost line is the program's."""
    file = tmp_path / "site-packages" / "app" / "main.py"
    package = module(file, "app.main", CALLS)
    paths = Paths(not_known)
    number = package.outer(lambda: paths.of([*frames_from(sys._getframe(1))][:2]))
    assert paths.rows[number] == (Line("inner", shown_file(str(file)), 6),)


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


def test_frames_are_forgotten_and_found_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their paths keep their numbers."""
    monkeypatch.setattr(paths_module, "_MAX_FRAMES", 1)
    paths = Paths(not_known)
    numbers = []
    for _ in range(3):
        numbers.append(paths.above(sys._getframe()))
        numbers.append(paths.above(sys._getframe()))
    assert numbers == numbers[:2] * 3
    assert len(set(numbers)) == 2
