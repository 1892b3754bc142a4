"""What the documentation site takes from elsewhere in the repository, so that it stands once.

MkDocs calls the `on_...` functions; `mkdocs.yml` names this file. They give pages outside of
`docs/` a place on the site, turn their links to fit, fill `reference/command.md` and `findings.md`
with what the command says of itself and of the rules, and put the pages of a folder into the
navigation.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]

PLACES = {
    "README.md": "index.md",
    "LICENSE": "LICENSE.txt",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "reports/README.md": "measured/index.md",
    **{
        f"reports/{path.name}": f"measured/{path.name}"
        for pattern in ("*.md", "*.py")
        for path in sorted((ROOT / "reports").glob(pattern))
        if path.name != "README.md"
    },
}
"""Files of the repository that have a page on the site or can be read there, and where."""

COMMANDS = "<!-- commands -->"
"""Where the help of all commands goes."""

RULES = "<!-- rules -->"
"""Where the texts of all rules go."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages of a folder in the navigation, in the place of its name; of none, nothing."""
    config.nav = [entry for each in config.nav or () for entry in _with_pages(each)]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that stand outside of `docs/`."""
    for source, place in PLACES.items():
        files.append(File.generated(config, place, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page to where things are on the site, and fill in the commands."""
    source = page.file.abs_src_path
    assert source is not None
    markdown = re.sub(
        r"(?<=\]\()([^)#:\s]+)",
        lambda link: _on_site(link[1], Path(source).parent, page.file.src_uri),
        markdown,
    )
    for mark, text in ((COMMANDS, help_of_all_commands), (RULES, texts_of_all_rules)):
        markdown = markdown.replace(mark, text()) if mark in markdown else markdown
    return markdown


def texts_of_all_rules() -> str:
    """What `tracer explain CODE` says of each rule, as Markdown."""
    from tracer.findings.rule import RULES

    return "\n".join(
        f"### `{rule.code}`: {rule.title}\n\n*{rule.severity.capitalize()}.* {rule.explanation} "
        f"{rule.why} {' '.join(f'**{name}:** {text}' for name, text in rule.advices.items())}\n"
        for rule in RULES
    )


def help_of_all_commands() -> str:
    """What `tracer --help` and `tracer COMMAND --help` say, as Markdown."""
    from tracer.cli.commands import PARSERS

    return "\n".join(
        f"## `{parser.prog}`\n\n```text\n{parser.format_help()}\n```\n"
        for parser in PARSERS.values()
    )


def _with_pages(entry: Any) -> list[Any]:
    """The entry of the navigation as it is, or for a folder with its pages."""
    if not isinstance(entry, dict):
        return [entry]
    ((title, folder),) = entry.items()
    if not isinstance(folder, str) or not folder.endswith("/"):
        return [entry]
    moved = {place: ROOT / source for source, place in PLACES.items()}
    index = moved.get(f"{folder}index.md", ROOT / "docs" / folder / "index.md")
    if not index.exists():
        return []
    # In the order of the folder's own page, which links to each of them.
    linked = dict.fromkeys(re.findall(r"\]\((\w[\w-]*\.md)\)", index.read_text(encoding="utf-8")))
    return [{title: [f"{folder}{name}" for name in ("index.md", *linked)]}]


def _on_site(link: str, folder: Path, page: str) -> str:
    """Where a link of a file in `folder` leads on the site, seen from `page`."""
    target = (folder / link).resolve()
    if not target.is_relative_to(ROOT):
        return link
    path = target.relative_to(ROOT).as_posix()
    place = PLACES.get(path, path.removeprefix("docs/") if path.startswith("docs/") else None)
    return posixpath.relpath(place, posixpath.dirname(page) or ".") if place else link
