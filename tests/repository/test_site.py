"""The documentation site: built strictly, whole, and without a need for the network."""

import html
import re
from pathlib import Path

import pytest
from support.scripts import output_of

import tracer
from tracer.cli.commands import PARSERS
from tracer.findings.rule import RULES

pytestmark = pytest.mark.long

NOT_FOR_USERS = {"counts", "derived", "objects", "selection"}
"""What a trace offers to the package alone."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    output_of("-m", "mkdocs", "build", "--strict", "--site-dir", str(folder), seconds=300)
    return folder


def test_every_public_name_has_its_reference(site: Path) -> None:
    text = "".join(
        page.read_text(encoding="utf-8") for page in sorted((site / "reference").glob("*.html"))
    )
    shown = set(re.findall(r'<h\d id="([\w.]+)"', text))
    members = {name for name in dir(tracer.Trace) if not name.startswith("_")}
    names = {f"tracer.{name}" for name in tracer.__all__}
    names |= {f"tracer.Trace.{name}" for name in members - NOT_FOR_USERS}
    assert names <= shown, names - shown
    assert "tracer.keras.TraceCallback" in shown
    # `>>>` at the start of a line would be a quote in a quote in a quote.
    assert "<blockquote>" not in text
    assert '<span class="gp">&gt;&gt;&gt; </span>' in text


def test_the_help_of_every_command_is_in_the_reference(site: Path) -> None:
    text = (site / "reference" / "command.html").read_text(encoding="utf-8")
    for name, parser in PARSERS.items():
        assert html.escape(parser.format_help(), quote=False) in text, name


def test_every_rule_has_its_texts(site: Path) -> None:
    text = (site / "findings.html").read_text(encoding="utf-8")
    for rule in RULES:
        section = text.split(f"<code>{rule.code}</code>: {rule.title}")[1].split("<h3")[0]
        words = html.unescape(re.sub(r"<[^>]+>", "", section))
        for each in rule.explanation, rule.why, *rule.advices.values():
            assert re.sub(r"[`*]", "", each) in words, rule.code
