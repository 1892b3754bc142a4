"""The report as a notebook shows it below a cell."""

import io

from rich.console import Console
from rich.text import Text

from tracer.model.trace import Trace
from tracer.reporters.text import render

_WIDTH = 100
_FORMAT = (
    '<pre style="white-space:pre;overflow-x:auto;line-height:1.4;'
    "font-family:ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace\">{code}</pre>"
)


def summary(trace: Trace) -> str:
    """The text report as HTML, with its colours."""
    text = Text.from_ansi(render(trace, width=_WIDTH, color=True))
    console = Console(
        record=True,
        file=io.StringIO(),
        width=_WIDTH,
        color_system="standard",
        force_terminal=True,
        force_jupyter=False,  # in a notebook it would show the text by itself
    )
    console.print(text, soft_wrap=True, highlight=False)
    return console.export_html(inline_styles=True, code_format=_FORMAT)
