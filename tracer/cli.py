"""The `tracer` command. It imports TensorFlow only where a command trains something."""

import os
import sys
from typing import Annotated, NoReturn

import typer

app = typer.Typer(
    add_completion=False,
    no_args_is_help=False,
    pretty_exceptions_enable=False,  # a bug is told of by Python's own traceback
    rich_markup_mode=None,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from tracer import __version__

        typer.echo(f"tracer {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _tracer(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    """Count what a TensorFlow or Keras optimizer does: calls, executions, updates and steps."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def demo() -> None:
    """Train four small models, and print how often their optimizers' methods really ran.

    Takes less than a minute, downloads nothing and uses the CPU only.
    """
    from tracer import demo

    demo.main()


def main() -> NoReturn:
    """Run the command that `sys.argv` names; a user's mistake is one line and exit status 2."""
    try:
        status = app(prog_name="tracer", standalone_mode=False)
        sys.stdout.flush()
    except typer.TyperException as error:
        _fail(error.format_message(), error.exit_code)
    except BrokenPipeError:
        # Whoever read the output has seen enough; Python would complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    sys.exit(status if isinstance(status, int) else 0)


def _fail(message: str, status: int) -> NoReturn:
    line = " ".join(message.split())
    print(f"tracer: {line} (see tracer --help)", file=sys.stderr)
    sys.exit(status)
