"""The pages for people say what is there: links, tests, modules, layers, facts, versions."""

import ast
import importlib.util
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest

import tracer
from tracer.findings.rule import RULES

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[2]
ARCHITECTURE = ROOT / "docs" / "architecture.md"
FACTS_FILE = ROOT / "docs" / "facts.toml"
CONTRIBUTING = ROOT / "CONTRIBUTING.md"
PAGES = [ROOT / "README.md", CONTRIBUTING, *sorted((ROOT / "docs").rglob("*.md"))]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)", text_of(page), re.M)
    if "<!-- rules -->" in text_of(page):  # `docs/hooks.py` fills them in on the site
        headings += [f"{each.code}: {each.title}" for each in RULES]
    return {re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings}


@every_page
def test_links_lead_to_what_is_there(page: Path) -> None:
    for path, anchor in re.findall(r"\]\(([^)#\s]*)(?:#([^)\s]+))?\)", text_of(page)):
        if not path.startswith("http"):
            target = (page.parent / path) if path else page
            assert target.exists(), path
            assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@cache
def files_of_tests() -> dict[str, set[str]]:
    """The names of all tests, with those of the files that they are in."""
    found: dict[str, set[str]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for name in re.findall(r"^def (test_\w+)", text_of(path), re.M):
            found.setdefault(name, set()).add(path.name)
    return found


@pytest.mark.parametrize(
    "page",
    [page for page in [*PAGES, FACTS_FILE] if page.name != "testing.md"],
    ids=lambda page: page.name,
)
def test_tests_that_are_named_exist(page: Path) -> None:
    for file, name in re.findall(r"[`\"](?:[\w/]*?(\w+\.py)::)?(test_\w+)[`\"]", text_of(page)):
        assert name in files_of_tests(), name
        assert not file or file in files_of_tests()[name], f"{file}::{name}"


def modules_named(text: str) -> Iterator[tuple[Path, str]]:
    """The modules of ours that a page names in code, each with a definition in it, or none."""
    for path, name in re.findall(r"[`\"]((?:\w+/)*\w+\.py)(?::([\w.]+))?[`\"]", text):
        yield ROOT / path if path.startswith("tracer/") else ROOT / "tracer" / path, name


def test_modules_and_functions_that_are_named_exist() -> None:
    named = list(modules_named(text_of(ARCHITECTURE) + text_of(FACTS_FILE)))
    assert len(named) > 100
    for path, name in named:
        assert path.exists(), path
        body = ast.parse(text_of(path)).body
        for part in name.split(".") if name else ():
            inner = {
                each.name: each.body
                for each in body
                if isinstance(each, ast.ClassDef | ast.FunctionDef)
            }
            assert part in inner, f"{path.name}: {name}"
            body = inner[part]


def test_what_the_sessions_of_nox_run_is_there() -> None:
    paths = re.findall(r'"((?:tests|benchmarks)/[\w./]+)"', text_of(ROOT / "noxfile.py"))
    assert len(paths) > 40
    for path in paths:
        assert (ROOT / path).exists(), path


def layers_drawn() -> Iterable[list[str]]:
    """The layers that the page draws, in each of its first three pictures."""
    for picture in re.findall(r"```text\n(.*?)```", text_of(ARCHITECTURE), re.S)[:3]:
        yield [re.split(r" {3,}", line)[0] for line in picture.splitlines()]


def test_the_layers_are_those_of_the_import_contracts() -> None:
    settings = tomllib.loads(text_of(ROOT / "pyproject.toml"))["tool"]["importlinter"]
    contracts = [each for each in settings["contracts"] if each["type"] == "layers"]
    assert [each["layers"] for each in contracts] == list(layers_drawn())


TEXTS = [
    found.groups()
    for facts in tomllib.loads(text_of(FACTS_FILE)).values()
    for text in chain.from_iterable(fact.get("theirs", ()) for fact in facts)
    if (found := re.match(r"((tensorflow|tf_keras|keras|jax|optax|torch)/[\w/]+\.py): (.+)", text))
]


@pytest.mark.parametrize(("path", "package", "name"), TEXTS)
def test_the_facts_about_the_frameworks_stand_where_the_file_says(
    path: str, package: str, name: str
) -> None:
    """A name that is gone from its file is a fact to look at again, before other tests fail."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        pytest.skip(f"{package} is not installed")
    if package == "keras" and metadata.version("keras").startswith("2."):
        pytest.skip("this TensorFlow has no Keras 3")
    assert name in text_of(Path(spec.origin).parents[1] / path)


# What is released.

NUMBER = r"\d+\.\d+\.\d+(?:\.dev\d+|rc\d+)?"


def test_the_version_stands_in_one_place() -> None:
    project = tomllib.loads(text_of(ROOT / "pyproject.toml"))
    assert "version" not in project["project"] and project["project"]["dynamic"] == ["version"]
    assert project["tool"]["hatch"]["version"] == {"path": "tracer/__init__.py"}
    assert re.fullmatch(NUMBER, tracer.__version__)
    for name in ("CITATION.cff", "noxfile.py", ".github/workflows/release.yml"):
        assert not re.search(
            rf"(?<!\d){re.escape(tracer.__version__)}(?!\d)", text_of(ROOT / name)
        ), name


def test_the_changelog_has_a_section_for_each_version() -> None:
    heads = re.findall(r"^## (.*)", text_of(ROOT / "CHANGELOG.md"), re.M)
    assert heads[0] == "Unreleased"
    released = [re.fullmatch(rf"({NUMBER}) - \d{{4}}-\d\d-\d\d", head) for head in heads[1:]]
    assert all(released), heads
    kinds = re.findall(r"^### (.*)", text_of(ROOT / "CHANGELOG.md"), re.M)
    assert set(kinds) <= {
        "Added",
        "Changed",
        "Deprecated",
        "Removed",
        "Fixed",
        "Security",
        "Given up",
    }
