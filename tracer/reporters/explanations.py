"""The rules of the findings, for `tracer explain`."""

from collections.abc import Sequence

from rich.text import Text

from tracer.findings.rule import Rule
from tracer.layout import paragraph
from tracer.reporters.text import printed


def listing(rules: Sequence[Rule], width: int | None, color: bool) -> str:
    """A line for each rule, those that a narrow terminal breaks apart."""
    width = max(40, width or 80)
    longest = max(len(rule.code) for rule in rules)
    lines = []
    for rule in rules:
        name = f"{rule.code:{longest}}  {rule.severity:7}  "
        first, *rest = paragraph(rule.title, width, name)
        first.stylize("bold", 0, len(name))
        lines += [first, *rest]
    return printed(lines, width, color)


def page(rules: Sequence[Rule]) -> str:
    """All rules in Markdown: that part of `docs/findings.md` is made by this."""
    return "\n".join(
        f"### `{rule.code}`: {rule.title}\n\n*{rule.severity}.* {rule.explanation}\n\n"
        f"*Why it matters:* {rule.why}\n\n*What to do:* {rule.advice}\n"
        for rule in rules
    )


def explanation(rule: Rule, width: int | None, color: bool) -> str:
    """All that is to say of one rule."""
    width = max(40, width or 80)
    lines = paragraph(f"{rule.code} ({rule.severity}): {rule.title}", width, style="bold")
    for name, text in (
        ("Why it matters", rule.why),
        ("What to do", rule.advice),
        ("When it is reported", rule.explanation),
    ):
        lines += [Text(), Text(name, "bold"), *paragraph(text, width, "  ")]
    return printed(lines, width, color)
