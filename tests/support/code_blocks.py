"""Runs the code blocks of a Markdown page as its reader would: in order, as one program.

    python tests/support/code_blocks.py PAGE

A block is code between fences. What becomes of it is decided by its language and its title:

- `python` runs, all blocks of a page in one namespace.
- `sh` runs in `bash`, which stops at the first command that fails.
- `text` is what the last block that ran printed, word for word; times and the folder are left
  open. It must follow a block that printed, unless no code stands above it.
- A block of any language with a title (```` ```python title="train.py" ````, or a first line
  `# train.py`) is a file. Blocks with the same title are one file. All files are written to the
  page's folder, in which its code runs, before anything runs.
- Others (`toml`, `json`) are not looked at.

Two comments, each on a line of its own or over several:

- `<!-- not run: REASON -->` before a block: it is left out, and the reader of the source knows why.
- `<!-- invisible-code-block: python`, then code, then `-->`: runs, and is not shown. It makes what
  the page takes for granted.
"""

import contextlib
import difflib
import io
import os
import re
import subprocess
import sys
import tempfile
import textwrap
import types
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from sybil import Document, Example, Region
from sybil.parsers.markdown.lexers import DirectiveInHTMLCommentLexer, RawFencedCodeBlockLexer

import tracer

ROOT = Path(__file__).parents[2]

UPDATE = "TRACER_UPDATE_GOLDEN"
"""With this in the environment, `text` blocks are written anew: see `tests/golden/README.md`."""

RUN = ("python", "sh")

MEANT = {
    **dict.fromkeys(("py", "python3", "pycon", "ipython"), "python"),
    **dict.fromkeys(("bash", "shell", "console", "shell-session", "zsh"), "sh"),
    "": "text",
}
"""What nobody would run, and what is to be written in its place."""

SECONDS = 300
"""How long the commands of a block may take. A command that trains takes ten."""

NOISE = r"(?m)^(WARNING: All log messages before absl|[IWE]\d{4} ).*\n"
"""What TensorFlow's C++ says on standard error, before its level is known."""

OPEN: tuple[tuple[str, str | Callable[[re.Match[str]], str]], ...] = (
    # Where a line ends depends on the numbers below.
    (r"(?ms)^Ran: .+?(?=\n\n|\n?\Z)", lambda found: " ".join(found[0].split())),
    (r"\b\d{4}-\d\d-\d\d( at)? \d\d:\d\d:\d\d\b", "DATE"),
    (r"\b[\d.,]+ (?=(seconds?|s|ms)\b)", "N "),
    (r"\b\d+ min (?=N s\b)", ""),
    (r"\b\d+\.\d+s\b", "Ns"),
    # The lines of a page's program are those of the page, which a reader does not count.
    (r"(?m)^Called from train\.py:\d+$", "Called from train.py:N"),
)
"""What is another one each time, and what stands for it when texts are compared."""

_fences = RawFencedCodeBlockLexer(re.compile(r"(?P<info>[^\n]*)\n"))
_hidden = DirectiveInHTMLCommentLexer("invisible-code-block", arguments="python|sh")
_marks = DirectiveInHTMLCommentLexer("not run")


class BadPage(Exception):
    """A page whose blocks cannot be run as they are written."""


@dataclass(frozen=True)
class Block:
    """Some code on a page, or the reason why the next one does not run."""

    language: str
    source: str
    line: int
    """Where its first line stands on the page, from 0."""
    start: int
    end: int
    """Where the source stands in the text of the page."""
    title: str | None = None
    reason: str | None = None

    @property
    def is_code(self) -> bool:
        """Whether it runs, if nothing is against it."""
        return self.language in RUN and self.title is None


@dataclass
class Page:
    """A Markdown page whose blocks can be run."""

    path: Path
    text: str = field(init=False)

    def __post_init__(self) -> None:
        self.text = self.path.read_text(encoding="utf-8")

    @property
    def name(self) -> str:
        """The page's name, with that of its folder if that is not `docs`."""
        return str(self.path.relative_to(ROOT)) if ROOT in self.path.parents else self.path.name

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks, in order, with their marks.

        Raises `BadPage` for a language that is written otherwise, a mark that gives no reason or
        stands before no block, and a `text` that is not the output of anything.
        """
        found: list[Block] = []
        reason: str | None = None
        printed = False
        code_above = False
        for block in sorted(self._all(), key=lambda each: each.start):
            if block.language == "not run":
                if reason is not None or not block.source:
                    raise BadPage(f"{self._at(block)}: a mark is `<!-- not run: REASON -->`")
                reason = block.source
                continue
            if block.language in MEANT and block.title is None:
                raise BadPage(f"{self._at(block)}: write `{MEANT[block.language]}`")
            marked = Block(**{**vars(block), "reason": reason})
            if marked.language == "text" and not marked.title and code_above and reason is None:
                if not printed:
                    raise BadPage(f"{self._at(block)}: this `text` follows no block that runs")
                printed = False
            if marked.is_code:
                code_above, printed = True, reason is None
            reason = None
            found.append(marked)
        if reason is not None:
            raise BadPage(f"{self.name}: no block follows `not run: {reason}`")
        return found

    @property
    def not_run(self) -> list[Block]:
        """The blocks that are left out, each with its reason."""
        return [block for block in self.blocks if block.reason is not None]

    @property
    def makes_devices(self) -> bool:
        """Whether its code must run before TensorFlow has started: it needs a process."""
        running = (block for block in self.blocks if block.is_code and not block.reason)
        return any("set_logical_device_configuration" in block.source for block in running)

    def run(self, folder: Path) -> None:
        """Run the blocks in this folder, which is the current one; raise what a block raises."""
        program = _Program(self, folder)
        program.write_files()

        def parse(document: Document) -> Iterable[Region]:
            for block in self.blocks:
                yield Region(block.start, block.end, parsed=block, evaluator=program)

        for example in Document.parse(str(self.path), parse):
            example.evaluate()
        program.write_outputs()

    def _at(self, block: Block) -> str:
        return f"{self.name}:{block.line}"

    def _all(self) -> Iterator[Block]:
        document = Document(self.text, str(self.path))
        comments = [each.span() for each in re.finditer(r"(?s)<!--.*?-->", self.text)]
        for region in _marks(document):
            yield self._block(region, "not run", " ".join(_content(region).split()))
        for region in _hidden(document):
            source = str(region.lexemes["source"])
            yield self._block(region, region.lexemes["arguments"], source)
        for region in _fences(document):
            if any(start < region.start < end for start, end in comments):
                continue
            info = region.lexemes["info"].strip()
            language = re.split(r"[\s{]", info, maxsplit=1)[0]
            source = str(region.lexemes["source"])
            titled = re.search(r'title="([^"]+)"', info) or re.match(r"# ([\w./]+\.\w+)\n", source)
            yield self._block(region, language, source, titled[1] if titled else None)

    def _block(self, region: Region, language: str, source: str, title: str | None = None) -> Block:
        offset = region.lexemes["source"].offset
        line = self.text.count("\n", 0, region.start + offset)
        return Block(language, source, line, region.start, region.end, title)


def _content(region: Region) -> str:
    """What a comment says, on its first line and on those after it."""
    return f"{region.lexemes['arguments']} {region.lexemes['source']}"


class _Program:
    """The blocks of a page, as they are run one after the other: an evaluator of Sybil's."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._printed = ""
        self._written: list[tuple[Block, str]] = []
        self._module = types.ModuleType(re.sub(r"\W", "_", f"page {page.name}"))
        self._source = folder / f"{self._module.__name__}.py"

    def write_files(self) -> None:
        """Write the page's files, and its program for those who look up source by line.

        What the commands name of this repository is there too.
        """
        commands = "".join(block.source for block in self._page.blocks if block.language == "sh")
        for name in set(re.findall(r"\b(benchmarks|reports|tests)/\w", commands)):
            (self._folder / name).symlink_to(ROOT / name)
        files: dict[str, str] = {}
        for block in self._page.blocks:
            if block.title is not None and block.reason is None:
                files[block.title] = files.get(block.title, "") + block.source + "\n\n"
        lines = self._page.text.count("\n") * [""]
        for block in self._page.blocks:
            if block.language == "python" and block.is_code and block.reason is None:
                code = block.source.splitlines()
                lines[block.line : block.line + len(code)] = code
        files[self._source.name] = "\n".join(lines) + "\n"
        for name, text in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def __call__(self, example: Example) -> str | None:
        """Run one block, or say how its text differs from what was printed."""
        block: Block = example.parsed
        if block.reason is not None or block.title is not None:
            return None
        if block.language == "python":
            self._printed = self._output_of_python(block)
        elif block.language == "sh":
            self._printed = self._output_of_commands(block)
        elif block.language == "text" and self._printed:
            printed, self._printed = self._printed, ""
            return self._difference(block, printed)
        elif block.language == "text" and self._has_run(block):
            return "nothing was printed"
        return None

    def _has_run(self, text: Block) -> bool:
        return any(each.is_code and each.start < text.start for each in self._page.blocks)

    def _output_of_python(self, block: Block) -> str:
        # The lines of the file are those of the page, in tracebacks as for AutoGraph.
        code = compile("\n" * block.line + block.source, str(self._source), "exec", 0, True)
        # AutoGraph and `inspect` look for the module of a function.
        sys.modules[self._module.__name__] = self._module
        try:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(code, vars(self._module))
        finally:
            del sys.modules[self._module.__name__]
        return printed.getvalue()

    def _output_of_commands(self, block: Block) -> str:
        paths = (str(Path(sys.executable).parent), os.environ.get("PATH", ""))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", block.source],
            cwd=self._folder,
            env={
                # With these pytest tells more, and the pages are not for a CI server.
                **{name: os.environ[name] for name in os.environ.keys() - {"CI", "BUILD_NUMBER"}},
                "COLUMNS": "80",
                "PATH": os.pathsep.join(paths),
                "PYTHONPATH": str(Path(tracer.__file__).parents[1]),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        if done.returncode:
            raise AssertionError(f"exit status {done.returncode}:\n{done.stdout}")
        return done.stdout

    def _difference(self, block: Block, printed: str) -> str | None:
        """How a text differs from what was printed; None if it does not, or is to be updated."""
        shown, now = (self._plain(each) for each in (block.source, printed))
        if shown == now:
            return None
        if os.environ.get(UPDATE):
            self._written.append((block, self._tidy(printed)))
            return None
        before, after = (each.splitlines(keepends=True) for each in (shown, now))
        return "".join(difflib.unified_diff(before, after, "on the page", "printed"))

    def _plain(self, text: str) -> str:
        """A text without what is another one each time."""
        text = self._tidy(text)
        for pattern, plain in OPEN:
            text = re.sub(pattern, plain, text)
        return text

    def _tidy(self, text: str) -> str:
        """A text as a page has it, without blanks at the end of lines."""
        text = re.sub(NOISE, "", text.replace(f"{self._folder}{os.sep}", ""))
        text = text.replace(self._source.name, "train.py")  # what stands on the page is a program
        # Sybil takes away what all lines of a block are indented by.
        lines = textwrap.dedent(text).strip("\n").splitlines()
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def write_outputs(self) -> None:
        """Put what was printed in the place of the texts that differed from it."""
        text = self._page.text
        for block, now in reversed(self._written):
            head, _, rest = text[block.start :].partition("\n")
            text = text[: block.start] + head + "\n" + now + rest[rest.index("```") :]
        if self._written:
            self._page.path.write_text(text, encoding="utf-8")


def main() -> None:
    """Run one page in a folder that is gone afterwards."""
    page = Page(Path(sys.argv[1]).resolve())
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        page.run(Path(folder))


if __name__ == "__main__":
    main()
