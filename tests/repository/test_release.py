"""What is released: one version, a changelog that says what it gives, a CI that runs our own."""

import re
import sys
from pathlib import Path

import tracer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
NUMBER = r"\d+\.\d+\.\d+(?:\.dev\d+|rc\d+)?"


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads(text_of("pyproject.toml"))
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "tracer/__init__.py"}
    assert re.fullmatch(NUMBER, tracer.__version__)
    for name in ("CITATION.cff", "noxfile.py", ".github/workflows/release.yml"):
        assert not re.search(rf"(?<!\d){re.escape(tracer.__version__)}(?!\d)", text_of(name)), name


def test_the_changelog_has_a_section_for_each_version() -> None:
    heads = re.findall(r"^## (.*)", text_of("CHANGELOG.md"), re.M)
    assert heads[0] == "Unreleased"
    released = [re.fullmatch(rf"({NUMBER}) - \d{{4}}-\d\d-\d\d", head) for head in heads[1:]]
    assert all(released), heads
    kinds = re.findall(r"^### (.*)", text_of("CHANGELOG.md"), re.M)
    assert set(kinds) <= {
        "Added",
        "Changed",
        "Deprecated",
        "Removed",
        "Fixed",
        "Security",
        "Given up",
    }
