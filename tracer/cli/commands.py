"""The `tracer` command. It imports a framework only where a command trains something."""

import argparse
import difflib
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tracer import __version__
from tracer.errors import Mistake, UnknownName
from tracer.words import shown

Command = Callable[..., int | Callable[[], None] | None]
"""Returns the exit status, or a program to run, whose exceptions Python shows."""

_FORMATTER = partial(argparse.RawDescriptionHelpFormatter, max_help_position=26)


class _Parser(argparse.ArgumentParser):
    """Reads arguments; a mistake is one line."""

    def error(self, message: str) -> NoReturn:
        command = sys.argv[1] if sys.argv[1] in PARSERS else ""
        message = message.replace(", [ARGUMENTS]", "")  # may be left out
        wrong = message.partition("unrecognized arguments: ")[2].partition(" ")[0]
        near = difflib.get_close_matches(wrong, PARSERS[command]._option_string_actions, 1, 0.7)
        meant = f": did you mean {near[0]}?" if near else f" (see tracer {command} --help)"
        raise Mistake(f"{message}{meant.replace('  ', ' ')}")


_PARSER = _Parser(
    "tracer",
    "tracer COMMAND [OPTIONS]",
    "Count what an optimizer really does: its calls, executions, updates and steps.",
    """\
examples:
  tracer run train.py          trace a program, unchanged
  tracer report tracer.json    what its optimizers did
  tracer COMMAND --help        the options of a command""",
    formatter_class=_FORMATTER,
    allow_abbrev=False,
)
_PARSER.add_argument("--version", action="version", version=f"tracer {__version__}")
_PARSER.set_defaults(function=_PARSER.print_help)
_COMMANDS = _PARSER.add_subparsers(title="commands", prog="tracer", metavar="COMMAND")

PARSERS: dict[str, argparse.ArgumentParser] = {"": _PARSER}
"""What reads the arguments of each command, by its name."""


def _command(usage: str, *arguments: "_Argument", examples: str) -> Callable[[Command], Command]:
    """Make a function a command that takes these arguments; its docstring is the help."""

    def register(function: Command) -> Command:
        name, text = function.__name__, function.__doc__ or ""
        PARSERS[name] = parser = _COMMANDS.add_parser(
            name,
            usage=f"tracer {name} {usage}".rstrip(),
            help=text.partition("\n")[0],
            description=re.sub(r"\n +\Z|(?<=\n)    ", "", text),
            epilog=f"examples:\n{examples.rstrip()}",
            formatter_class=_FORMATTER,
            allow_abbrev=False,
        )
        for names, options in arguments:
            parser.add_argument(*names, **options)
        parser.set_defaults(function=function)
        return function

    return register


_Argument = tuple[tuple[str, ...], dict[str, Any]]


def _argument(*names: str, help: str = argparse.SUPPRESS, **options: Any) -> _Argument:
    return names, {"help": help, **options}


def _steps(text: str) -> range:
    """The steps `3-6`, as reports write them, `3-` to the end, or step `3`."""
    first, dash, last = text.replace(",", "").partition("-")
    with suppress(ValueError):
        if steps := range(int(first), int(last or (sys.maxsize - 1 if dash else first)) + 1):
            return steps
    raise argparse.ArgumentTypeError(f"{text!r} is no range of steps: write 3-6, 3- or 3")


def _output(path: str) -> Path:
    """A file to write, which is not a trace."""
    from tracer.model.tracefile import is_trace

    if is_trace(Path(path)):
        raise argparse.ArgumentTypeError(f"{path} is a trace, and would be overwritten")
    return Path(path)


_PATH = _argument("path", metavar="PATH")
_OUTPUT = _argument("-o", "--output", metavar="FILE", type=_output, help="write to a file")


@_command(
    "[OPTIONS] PROGRAM [ARGUMENTS]",
    _argument("program", metavar="PROGRAM"),
    _argument("arguments", nargs="...", metavar="[ARGUMENTS]"),
    _argument("-m", dest="module", action="store_true", help="PROGRAM is a module"),
    _argument(
        *("-o", "--output"),
        metavar="PATH",
        help="where to write the trace: a file, or a folder for a file of each worker "
        "(default: tracer.json, or traces/ for several processes)",
    ),
    _argument("--children", action="store_true", help="also trace the processes that it starts"),
    _argument(
        "--effects",
        action="store_true",
        help="compare the weights before and after each step, to find steps that changed nothing "
        "or made NaN; takes time, and memory for a copy of the weights",
    ),
    _argument(
        "--every",
        dest="seconds",
        metavar="SECONDS",
        type=float,
        default=5.0,
        help="save the trace at least every SECONDS (default: 5)",
    ),
    _argument("-q", "--quiet", action="store_true", help="print no report"),
    examples="""\
  tracer run train.py --epochs 3
  tracer run -m my_package.train
  python -X dev -m tracer run train.py
""",
)
def run(program: str, arguments: list[str], **options: Any) -> Callable[[], None]:
    """Run a script as python does, with every optimizer traced.

    When the program ends, even with an error, the report comes on standard error.
    Standard output and the exit status are the program's own. A killed run leaves
    a trace file, too.
    """
    from tracer.cli import process

    return process.prepared(program, arguments, **options)


@_command(
    "[OPTIONS] PATH",
    _PATH,
    _argument(
        "--by",
        metavar="TABLE",
        choices=("variable", "layer", "step", "replica", "method", "caller"),
        help="print only this table, in full: %(choices)s",
    ),
    _argument(
        *("-f", "--format"),
        metavar="KIND",
        choices=("text", "json", "csv", "markdown", "html"),
        help="the default follows from the ending of FILE: %(choices)s",
    ),
    _OUTPUT,
    _argument("--variable", metavar="GLOB", help="only rows of these variables"),
    _argument("--step", metavar="A-B", type=_steps, help="only rows of these steps: A-B, A- or A"),
    _argument("--optimizer", metavar="GLOB", help="only these optimizers"),
    _argument("--replica", metavar="NAME", help="only rows of this replica, rank or worker"),
    examples="""\
  tracer report tracer.json
  tracer report runs/ --by replica              all workers of a run
  tracer report tracer.json --variable 'encoder/*' --step 100-200
  tracer report tracer.json -o report.html      one page, with a heat map
  tracer report tracer.json -o steps.csv --by step
""",
)
def report(
    path: str,
    by: Any,
    format: Any,
    output: Path | None,
    variable: str | None,
    step: range | None,
    optimizer: str | None,
    replica: str | None,
) -> None:
    """Print what a trace holds: the answer first, then the counts.

    PATH is a trace file, or the folder of a run with several workers. A CSV file
    holds one table: the table of variables, unless --by names another.
    """
    from tracer.model import tracefile
    from tracer.reporters import columns, formats

    trace = tracefile.load_run(path)
    part = columns.part_of(trace, optimizer, variable, step, replica)
    kind = formats.chosen(format, output)
    _put(lambda width, color: formats.render(trace, kind, by, part, width, color), output)


@_command(
    "BEFORE AFTER",
    _argument("before", metavar="BEFORE"),
    _argument("after", metavar="AFTER"),
    examples="""\
  tracer diff before.json after.json
  tracer diff runs/monday/ runs/tuesday/ || echo changed
""",
)
def diff(before: str, after: str) -> int:
    """Show what differs between two runs: methods, variables, steps.

    BEFORE and AFTER are trace files, or folders of several workers.
    The exit status is 0 if all counts are equal, 1 if not. Layers that Keras
    numbered differently (dense_3 and dense) are matched by shapes and order.
    """
    from tracer.layout import print_text
    from tracer.model import tracefile
    from tracer.reporters import comparison

    traces = tracefile.load(before), tracefile.load(after)
    differences = comparison.differences(*traces)
    print_text(
        lambda width, color: comparison.render(*traces, differences, width=width, color=color)
    )
    return int(bool(differences))


@_command(
    "[OPTIONS] PATH",
    _PATH,
    _argument(
        *("-e", "--expect"),
        metavar="WHAT",
        action="append",
        help="an expected count; can be repeated (default: those in pyproject.toml)",
    ),
    _argument(
        "--findings",
        metavar="LEVEL",
        choices=("error", "warning"),
        help="fail on findings from LEVEL: %(choices)s",
    ),
    _argument(
        "--ignore",
        metavar="CODE",
        action="append",
        help="let findings with this code pass; can be repeated",
    ),
    _argument(
        "--allow-unfinished", action="store_true", help="accept a run that failed or still runs"
    ),
    _argument(
        *("-f", "--format"),
        metavar="KIND",
        choices=("text", "junit", "github"),
        default="text",
        help="for people, CI servers, or annotations: %(choices)s",
    ),
    _OUTPUT,
    examples="""\
  tracer check tracer.json -e dense=4/step -e "steps>=100" --findings warning
""",
)
def check(
    path: str,
    expect: list[str] | None,
    findings: Any,
    ignore: list[str] | None,
    allow_unfinished: bool,
    format: str,
    output: Path | None,
) -> int:
    """Check that a run did what is expected: a gate for CI.

    WHAT is a count, one of = <= >= < >, and a number:
      dense=4/step            in each step on each replica: dense, sparse, updates
      steps>=100              in the whole run: steps, calls, dense, sparse, updates
      updates[encoder/*]=0    of these variables together
      updates>=1/variable     for each variable, also updates[encoder/*]>=1/variable
      update_step<=504        executions of a method

    Exits with 0 if all holds and the trace is complete, else 1; 2 for a mistake.
    """
    from tracer.check import FORMATS, from_project, read, verdicts
    from tracer.model.tracefile import load_run

    needed = findings or not expect
    own, ignored = from_project(Path.cwd()) if needed else ([], [])
    wanted = list(map(read, expect or ())) or own
    if not wanted and findings is None:
        raise Mistake(
            "nothing to check: give --expect, --findings, or [tool.tracer.expect] in pyproject.toml"
        )
    results = verdicts(
        load_run(path),
        wanted,
        findings,
        ignore=[*(ignore or ()), *ignored],
        allow_unfinished=allow_unfinished,
    )
    _put(lambda width, color: FORMATS[format](results), output)
    return int(any(each.reason for each in results))


@_command(
    "[CODE]",
    _argument("code", nargs="?", metavar="CODE"),
    examples="""\
  tracer explain
  tracer explain override-unreached
""",
)
def explain(code: str | None) -> None:
    """Explain what a finding means, why it matters, and what to do.

    Without CODE, all findings are listed. CODE may also be frozen or not-passed:
    words of the table of variables.
    """
    from tracer.layout import print_text
    from tracer.reporters import text

    print_text(text.listing if code is None else partial(text.explanation, code))


@_command("", examples="  tracer demo")
def demo() -> None:
    """Train two small models and count what their optimizers do.

    Prints how often the methods really ran. Takes less than a minute, downloads
    nothing, and uses only the CPU.
    """
    from tracer.cli import demo

    demo.main()


def _put(render: Callable[[int | None, bool], str], output: Path | None) -> None:
    """Write a text to a file, whole, and say so; print it if `output` is None."""
    from tracer.layout import print_text
    from tracer.model.tracefile import write

    if output is None:
        print_text(render)
    else:
        write(output, render(None, False).encode("utf-8", "backslashreplace"))
        print(f"tracer: wrote {output}", file=sys.stderr)


def main() -> NoReturn:
    """Run the command that `sys.argv` names; a user's mistake is one line and exit status 2."""
    try:
        try:
            name = " ".join(sys.argv[1:2])
            if name not in PARSERS and os.path.exists(name):
                meant = "run" if name.endswith(".py") else "report"
                raise Mistake(f"{name} is no command: did you mean tracer {meant} {name}?")
            values = vars(_PARSER.parse_args())
            result = values.pop("function")(**values)
        finally:
            sys.stdout.flush()
    except (Mistake, UnknownName) as error:
        _fail(str(error))
    except OSError as error:
        if not error.filename:  # at exit, Python would report output that cannot be flushed
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of the output has closed it
            sys.exit(1)
        _fail(f"cannot write {error.filename or 'the output'}: {error.strerror}")
    if callable(result):  # runs a program: Python shows its exceptions
        result()
    sys.exit(result if isinstance(result, int) else 0)


def _fail(reason: str) -> NoReturn:
    print(f"tracer: {shown(' '.join(reason.split()))}", file=sys.stderr)
    sys.exit(2)
