"""The `tracer` command. It imports a framework only where a command trains something."""

import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import typer

from tracer.errors import MissingExtra, Mistake, UnknownName, shown

app = typer.Typer(
    no_args_is_help=False,
    pretty_exceptions_enable=False,  # a bug gets Python's own traceback
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_TableOption = Annotated[
    Literal["variable", "step", "replica", "worker", "method", "caller", "layer"] | None,
    typer.Option("--by", help="Show only this table, in full."),
]

_PathArgument = Annotated[
    str,
    typer.Argument(
        metavar="PATH",
        help="A trace file, or the folder of a run with several workers.",
    ),
]


def _no_trace(output: Path | None) -> Path | None:
    """Refuse to overwrite a trace, and to write a report to a URL."""
    from tracer.files import local_path
    from tracer.model.tracefile import is_trace

    if output:
        local_path(str(output))
    if output and is_trace(output):
        raise Mistake(f"{output}: is a trace, and would be overwritten: choose another name")
    return output


def _require_other(output: Path | None, trace: str) -> None:
    """Refuse to overwrite the trace that the command reads, even one saved by another program."""
    if output and output.is_file() and os.path.isfile(trace) and output.samefile(trace):
        raise Mistake(f"{output}: is the trace to read, and would be overwritten")


_OutputOption = Annotated[
    Path | None,
    typer.Option(
        "-o",
        "--output",
        metavar="FILE",
        help="Write to a file instead of the terminal.",
        callback=_no_trace,
    ),
]


def _steps(text: str) -> range:
    """The steps of a slice, `3:7`, `3:` or `:7`; of a range with its end, `3-6`; or step `3`."""
    found = re.fullmatch(r"(\d*):(\d*)|(\d+)(?:-(\d+))?", text)  # reports write 3-6
    if found is None:
        raise typer.BadParameter(f"{text!r} is not A:B or A-B with two numbers")
    start, stop, first, last = found.groups()
    if first:
        return range(int(first), int(last or first) + 1)
    return range(int(start or 1), int(stop or sys.maxsize))


def _say_written(output: Path | None) -> None:
    """Say it on standard error: standard output is for the command's result."""
    if output is not None:
        print(f"tracer: wrote {output}", file=sys.stderr)


def _codes(incomplete: str) -> list[str]:
    """The codes of findings that begin with `incomplete`, for shell completion."""
    from tracer.findings.run_rules import RULES

    return [rule.code for rule in RULES if rule.code.startswith(incomplete)]


def _examples(*lines: str) -> str:
    """Examples for the end of a command's help; the first line keeps Click from wrapping them."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def _show_version(wanted: bool) -> None:
    if wanted:
        from tracer import __version__

        typer.echo(f"tracer {__version__}")
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=_examples(
        "tracer run train.py          trace a program, unchanged",
        "tracer report tracer.json    what its optimizers did",
        "tracer COMMAND --help        more examples",
    ),
)
def _tracer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Count what an optimizer really does: its calls, executions, updates and steps."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(
    context_settings={"allow_interspersed_args": False},
    epilog=_examples(
        "tracer run train.py --epochs 3",
        "tracer run -m my_package.train",
        "tracer run -o runs/ -q train.py        a file for each worker, no report",
        "tracer run --children launch.py        also the processes that it starts",
        "python -X dev -m tracer run train.py   with options of python",
    ),
)
def run(
    program: Annotated[
        str, typer.Argument(metavar="PROGRAM", help="A script or, with -m, a module.")
    ],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="ARGS", help="The program's own arguments.")
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", help="PROGRAM is a module, as with python -m.")
    ] = False,
    output: Annotated[
        str | None,
        typer.Option(
            "-o",
            "--output",
            metavar="PATH",
            help="Where to write the trace: a file or a folder. The default is "
            "tracer.json, or the folder traces for --children and for several ranks or workers.",
        ),
    ] = None,
    children: Annotated[
        bool,
        typer.Option("--children", help="Also trace the processes that the program starts."),
    ] = False,
    effects: Annotated[
        bool,
        typer.Option(
            "--effects",
            help="Compare the weights before and after each step, to find those that did not "
            "change or are not finite. Takes time, and memory for a copy of the weights.",
        ),
    ] = False,
    by: _TableOption = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print no report.")] = False,
    seconds: Annotated[
        float,
        typer.Option(
            "--every",
            metavar="SECONDS",
            min=0.1,
            help="Save the trace at least every SECONDS while the program runs.",
        ),
    ] = 5.0,
) -> Callable[[], None]:
    """Run a program as python would, with every optimizer traced.

    When the program ends, even with an error, tracer prints the report on standard error. Standard
    output and the exit status are the program's own. The trace file is saved while the program
    runs, so a killed run leaves one too. If PATH is a folder (it exists, or ends in /), each worker
    writes its own file there.
    """
    from tracer.cli import launch

    launch.check(program, output, module=module, children=children)
    return partial(
        launch.launch,
        program,
        arguments or (),
        module=module,
        output=output,
        by=by,
        quiet=quiet,
        seconds=seconds,
        children=children,
        effects=effects,
    )


@app.command(
    epilog=_examples(
        "tracer report tracer.json",
        "tracer report runs/ --by replica              all workers of a run",
        "tracer report tracer.json --variable 'encoder/*' --step 100:200",
        "tracer report tracer.json -o report.html      one page, with a heat map",
        "tracer report tracer.json -o steps.csv --by step",
        "tracer report tracer.json --format json | jq .answer",
        "tracer report tracer.json --by caller         which lines call",
    )
)
def report(
    path: _PathArgument,
    by: _TableOption = None,
    format: Annotated[
        Literal["text", "json", "csv", "markdown", "html"] | None,
        typer.Option(
            "--format",
            "-f",
            metavar="FORMAT",
            help="text, json, csv, markdown or html. The default follows from the ending of FILE, "
            "else it is text.",
        ),
    ] = None,
    output: _OutputOption = None,
    variable: Annotated[
        str | None,
        typer.Option(
            "--variable", metavar="GLOB", help="Only rows of variables with this name or pattern."
        ),
    ] = None,
    step: Annotated[
        range | None,
        typer.Option(
            "--step",
            metavar="A:B",
            parser=_steps,
            help="Only rows of steps A up to, but not including, B; A: and :B also work. A-B "
            "includes B; a single number is one step.",
        ),
    ] = None,
    optimizer: Annotated[
        str | None,
        typer.Option(
            "--optimizer", metavar="GLOB", help="Only optimizers with this name or pattern."
        ),
    ] = None,
    replica: Annotated[
        str | None,
        typer.Option(
            "--replica",
            metavar="NAME",
            help="Only rows of this replica or rank, or of this worker.",
        ),
    ] = None,
) -> None:
    """Print what a trace file holds: the answer first, then the counts.

    A CSV file holds one table: the table of variables, unless --by names another.
    """
    from tracer.model import tracefile
    from tracer.reporters import columns, formats

    _require_other(output, path)
    trace = tracefile.load_run(path)
    part = columns.part_of(trace, optimizer, variable, step, replica)
    formats.write(trace, format, by, output, part)
    _say_written(output)


@app.command(
    epilog=_examples(
        "tracer diff before.json after.json",
        "tracer diff runs/monday/ runs/tuesday/ || echo changed",
    )
)
def diff(
    before: Annotated[str, typer.Argument(metavar="BEFORE", help="A trace file or a folder.")],
    after: Annotated[str, typer.Argument(metavar="AFTER", help="A trace file or a folder.")],
) -> int:
    """Show what changed between two runs, by variable and by step.

    The exit status is 0 if all counts are equal, 1 if not. Layers that Keras numbered differently
    (dense_3 and dense) are matched by order and shape, and the output says so.
    """
    from tracer.model import tracefile
    from tracer.reporters import comparison, formats

    traces = tracefile.load(before), tracefile.load(after)
    differences = comparison.differences(*traces)
    formats.print_text(
        lambda width, color: comparison.render(*traces, differences, width=width, color=color)
    )
    return int(bool(differences))


@app.command(
    epilog=_examples(
        'tracer check tracer.json --expect "dense=4/step" --expect "sparse=0"',
        'tracer check tracer.json -e "updates[encoder/*]=0" -e "steps>=100"',
        'tracer check tracer.json -e "_resource_apply_dense=504"',
        "tracer check tracer.json --findings warning   also what looks wrong fails",
        "tracer check runs/ --format junit -o tracer.xml",
        "tracer check tracer.json --findings warning --ignore no-gradient",
        "tracer check tracer.json -e dense=4/step --format github   annotations",
    )
)
def check(
    path: _PathArgument,
    expect: Annotated[
        list[str] | None,
        typer.Option(
            "--expect",
            "-e",
            metavar="WHAT",
            help="An expected count, such as dense=4/step; can be repeated.",
        ),
    ] = None,
    findings: Annotated[
        Literal["error", "warning"] | None,
        typer.Option(
            "--findings", help="error: fail on findings that are errors. warning: also on warnings."
        ),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        typer.Option(
            "--ignore",
            metavar="CODE",
            help="Let findings with this code pass; can be repeated.",
            autocompletion=_codes,
        ),
    ] = None,
    allow_unfinished: Annotated[
        bool,
        typer.Option("--allow-unfinished", help="Accept a run that failed or still runs."),
    ] = False,
    format: Annotated[
        Literal["text", "junit", "github"],
        typer.Option(
            "--format",
            "-f",
            help="text for people, junit for CI servers, github for annotations.",
        ),
    ] = "text",
    output: _OutputOption = None,
) -> int:
    """Check that a run did what is expected: a gate for CI.

    WHAT is a count, one of =, <=, >=, < and >, and a number. The count is updates, dense, sparse,
    steps, calls, or a method, whose executions are counted. [VARIABLE] after the count selects some
    variables. With /step the number holds for each step on each replica, else for the whole run.
    Without --expect, [tool.tracer.expect] in pyproject.toml is used, such as dense = "4/step".

    With --findings, findings fail too, except for codes in --ignore and in the list ignore of
    [tool.tracer].

    The exit status is 0 if everything holds, 1 if not, 2 for a mistake in the command. A trace does
    not pass if it is incomplete, or if its program failed, was interrupted or still runs.
    """
    from tracer.check import expectation, verdicts
    from tracer.model.tracefile import load_run
    from tracer.reporters import formats

    needed = findings or not expect
    project = verdicts.from_project(Path.cwd()) if needed else verdicts.Project()
    wanted = list(map(expectation.read, expect or ())) or project.expect
    codes = [*(ignore or ()), *project.ignore]
    if ignore and findings is None:
        raise Mistake("--ignore is for findings: give --findings too")
    if not wanted and findings is None:
        raise Mistake(
            "nothing to check: give --expect, --findings, or [tool.tracer.expect] in pyproject.toml"
        )
    _require_other(output, path)
    trace = load_run(path)
    results = verdicts.check(
        trace,
        wanted,
        findings,
        ignore=codes,
        allow_unfinished=allow_unfinished,
    )
    content = {
        "text": partial(verdicts.as_text, results),
        "junit": partial(verdicts.as_junit, results),
        "github": partial(verdicts.as_github, results),
    }[format]()
    formats.put(lambda width, color: content, output)
    _say_written(output)
    return int(any(each.reason for each in results))


@app.command(
    epilog=_examples(
        "tracer explain",
        "tracer explain override-unreached",
    )
)
def explain(
    code: Annotated[
        str | None,
        typer.Argument(metavar="CODE", help="The code of a finding.", autocompletion=_codes),
    ] = None,
) -> None:
    """Explain what a finding means, why it matters, and what to do.

    It also says when the finding is reported. Without CODE, all findings are listed.
    """
    from tracer.findings.run_rules import RULES, rule_of
    from tracer.reporters import formats, text

    formats.print_text(
        partial(text.listing, RULES) if code is None else partial(text.explanation, rule_of(code))
    )


@app.command(epilog=_examples("tracer demo"))
def demo() -> None:
    """Train four small models and count what their optimizers do.

    Prints how often the methods really ran. Takes less than a minute, downloads nothing, and uses
    only the CPU.
    """
    from tracer.cli import demo

    demo.main()


def main() -> NoReturn:
    """Run the command that `sys.argv` names; a user's mistake is one line and exit status 2."""
    try:
        # Calling the app itself would install Typer's `sys.excepthook`.
        result = typer.main.get_command(app)(prog_name="tracer", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        said = error.format_message().replace("Value error, ", "").rstrip(".")
        context = getattr(error, "ctx", None)
        command = "tracer" if context is None else context.command_path
        _fail(f"{said}{_meant(sys.argv[1:])} (see {command} --help)", error.exit_code)
    except (Mistake, MissingExtra, UnknownName) as error:
        _fail(str(error), 2)
    except OSError as error:
        if error.filename:
            _fail(f"cannot write {error.filename}: {error.strerror}", 2)
        # At exit, Python would report output that cannot be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):  # the reader of the output has closed it
            sys.exit(1)
        _fail(f"cannot write: {error.strerror or error}", 2)
    if callable(result):  # runs a program: Python shows its exceptions
        result()
    sys.exit(result if isinstance(result, int) else 0)


def _meant(arguments: Sequence[str]) -> str:
    """`: did you mean tracer run train.py?` if a file is where a command should be."""
    commands = {".py": "run", ".json": "report", "/": "report"}
    found = (commands[each] for each in commands if "".join(arguments[:1]).endswith(each))
    meant = next(found, None)
    return f": did you mean tracer {meant} {' '.join(arguments)}?" if meant else ""


def _fail(reason: str, status: int) -> NoReturn:
    print(f"tracer: {shown(' '.join(reason.split()))}", file=sys.stderr)
    sys.exit(status)
