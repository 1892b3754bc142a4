"""The `tracer` command."""

from tracer.cli.commands import main as main
