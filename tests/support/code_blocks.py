"""Runs the code blocks of a Markdown page as its reader would: in order, as one program.

    python tests/support/code_blocks.py PAGE

A block is code between fences. What becomes of it is decided by its language and its title:

- `python` runs, all blocks of a page in one namespace.
- `sh` runs in `bash`, which stops at the first command that fails.
- `text` is what the last block that ran printed, word for word; times and the folder are left
  open. Each follows a block that printed, unless no code stands above it.
- A block of any language with a title (```` ```python title="train.py" ````, or a first line
  `# train.py`) is a file. Blocks with the same title are one file. All files are written to the
  page's folder, in which its code runs, before anything runs.
- `toml` and `yaml` are not looked at. No other language is allowed.

Two comments:

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
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tracer

ROOT = Path(__file__).parents[2]

UPDATE = "TRACER_UPDATE_GOLDEN"
"""With this in the environment, `text` blocks are written anew: see `tests/golden/README.md`."""

RUN = ("python", "sh")
LANGUAGES = (*RUN, "text", "toml", "yaml")

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

PARTS = re.compile(
    r"<!-- not run:(?P<reason>.*?)-->"
    r"|<!-- invisible-code-block: (?P<hidden>python|sh)\n(?P<code>.*?)-->"
    r"|<!--.*?-->"
    r"|^```(?P<info>[^\n]*)\n(?P<source>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """Some code on a page."""

    language: str
    source: str
    line: int
    """Where its first line stands on the page, from 0."""
    start: int
    end: int
    """Where the source stands in the text of the page."""
    title: str = ""
    reason: str = ""
    """Why it does not run."""

    @property
    def runs(self) -> bool:
        return self.language in RUN and not self.title and not self.reason


class Page:
    """A Markdown page whose blocks can be run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = str(path.relative_to(ROOT)) if ROOT in path.parents else path.name
        self.text = path.read_text(encoding="utf-8")
        self.blocks: list[Block] = []
        reason = ""
        for part in PARTS.finditer(self.text):
            if part["reason"] is not None:
                reason = " ".join(part["reason"].split())
            elif part["hidden"] or part["info"] is not None:
                self.blocks.append(self._block(part, reason))
                reason = ""

    def _block(self, part: re.Match[str], reason: str) -> Block:
        group = "code" if part["hidden"] else "source"
        info = part["hidden"] or part["info"].strip()
        language = re.split(r"[\s{]", info, maxsplit=1)[0]
        titled = re.search(r'title="([^"]+)"', info) or re.match(r"# ([\w./]+\.\w+)\n", part[group])
        start, end = part.span(group)
        line = self.text.count("\n", 0, start)
        assert language in LANGUAGES, f"{self.name}:{line}: a block of {language or 'no language'}"
        return Block(language, part[group], line, start, end, titled[1] if titled else "", reason)

    @property
    def makes_devices(self) -> bool:
        """Whether its code must run before TensorFlow has started: it needs a process."""
        return any(
            "set_logical_device_configuration" in block.source
            for block in self.blocks
            if block.runs
        )

    def run(self, folder: Path) -> None:
        """Run the blocks in this folder, which is the current one; raise what a block raises."""
        program = _Program(self, folder)
        program.write_files()
        for block in self.blocks:
            program.do(block)
        program.write_outputs()


class _Program:
    """The blocks of a page, as they are run one after the other."""

    def __init__(self, page: Page, folder: Path) -> None:
        self._page = page
        self._folder = folder
        self._printed: str | None = None
        """By the last block, if there was one; empty if it does not run."""
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
        lines = self._page.text.count("\n") * [""]
        for block in self._page.blocks:
            if block.title and not block.reason:
                files[block.title] = files.get(block.title, "") + block.source + "\n\n"
            elif block.runs and block.language == "python":
                code = block.source.splitlines()
                lines[block.line : block.line + len(code)] = code
        files[self._source.name] = "\n".join(lines) + "\n"
        for name, text in files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def do(self, block: Block) -> None:
        """Run a block, or compare its text with what was printed."""
        if block.runs:
            run = self._output_of_python if block.language == "python" else self._output_of_commands
            self._printed = run(block)
        elif block.language in RUN and not block.title:
            self._printed = ""
        elif block.language == "text" and not block.title and self._printed is not None:
            assert self._printed, f"{self._page.name}:{block.line}: nothing was printed"
            self._compare(block, self._printed)
            self._printed = ""

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

    def _compare(self, block: Block, printed: str) -> None:
        """Fail if a text differs from what was printed, unless it is to be updated."""
        shown, now = (self._plain(each) for each in (block.source, printed))
        if shown == now:
            return
        if os.environ.get(UPDATE):
            self._written.append((block, self._tidy(printed)))
            return
        before, after = (each.splitlines(keepends=True) for each in (shown, now))
        difference = "".join(difflib.unified_diff(before, after, "on the page", "printed"))
        raise AssertionError(f"{self._page.name}:{block.line}:\n{difference}")

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
        lines = text.strip("\n").splitlines()
        return "\n".join(line.rstrip() for line in lines) + "\n"

    def write_outputs(self) -> None:
        """Put what was printed in the place of the texts that differed from it."""
        text = self._page.text
        for block, now in reversed(self._written):
            text = text[: block.start] + now + text[block.end :]
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
