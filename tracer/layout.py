"""Lay out text as lines that fit a width, and print it. Knows nothing of traces."""

import io
import sys
from collections.abc import Callable, Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple, TextIO

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tracer.words import shown

_NAME = 16  # least cells for names beside figures
_PROSE = 100

Figure = int | float | str | None
"""The content of a cell; numbers get commas, None is a dash."""


class Column(NamedTuple):
    """A column of a table."""

    header: str
    """It may have several lines."""
    name: str = ""
    """The key of its values, if not the header."""
    left: bool = False
    """Whether its cells begin at the left, as texts do."""


class Line(NamedTuple):
    """The cells of a row, the name first, and a note on them."""

    cells: Sequence[Figure]
    note: str = ""
    style: str = ""


def tabulated(
    columns: Sequence[Column], lines: Sequence[Line], width: int, below: Iterable[str] = ()
) -> list[Text]:
    """The lines under their headers in at most `width` cells, with notes, and paragraphs below.

    Texts in cells are written as `shown` writes them; an empty one is `''`.

    Nothing is cut: a long name stands on a line of its own, above its figures, and a note below
    them. Figures that have no room in the width make the lines longer. `rich.table` is not used
    because it takes 15 times as long, and cuts.
    """
    left = [True, *(column.left for column in columns[1:])]
    headers = [reversed(column.header.split("\n")) for column in columns]
    heads = [*zip_longest(*headers, fillvalue="")][::-1]
    grid = [[*map(_written, line.cells)] for line in lines]
    longest, *sizes = [max(map(cell_len, each)) for each in zip(*heads, *grid, strict=True)]
    room = max(width - sum(size + 2 for size in sizes), min(longest, _NAME))
    gap = "   " if longest + len(sizes) <= room else "  "
    sizes = [min(longest, room), *sizes]
    room = width - sum(sizes) - len(gap) * len(sizes)

    def drawn(cells: Sequence[str], note: str, style: str) -> Text:
        return Text(gap.join([*map(_padded, cells, sizes, left), note]).rstrip(), style)

    made = [drawn(head, "", "bold") for head in heads]
    for line, (name, *cells) in zip(lines, grid, strict=True):
        if cell_len(name) > sizes[0]:
            made.append(Text(name, line.style))
            name = ""
        beside = cell_len(line.note) <= room
        made.append(drawn([name, *cells], line.note if beside else "", line.style))
        if line.note and not beside:
            made += paragraph(line.note, width, "    ", line.style)
    for text in (*([] if lines else ["(none)"]), *below):
        made += paragraph(text, width, style="dim")
    return made


def cut(name: str, width: int, tail: int) -> str:
    """The name in `width` cells: an ellipsis replaces the middle, and `tail` cells follow it.

    >>> cut("encoder/layer_0/attention/kernel", 19, 7)
    'encoder/lay…/kernel'
    """
    if cell_len(name) <= width:
        return name
    tail = min(tail, width - 1)
    return set_cell_size(name, width - 1 - tail) + "…" + set_cell_size(name[::-1], tail)[::-1]


def paragraph(text: str, width: int, indent: str = "", style: str = "") -> list[Text]:
    """The text in lines of at most `width` cells, after the indent; words are not broken.

    Words with a no-break space between them stay together. Lines are at most `_PROSE` cells long,
    to be readable in wide terminals.
    """
    hang = " " * len(indent)
    lines = wrap(
        text,
        min(width, _PROSE),
        initial_indent=indent,
        subsequent_indent=hang,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [Text(line.replace("\xa0", " "), style) for line in lines or [indent]]


def printed(lines: Sequence[Text], width: int, color: bool) -> str:
    """The lines as one text, with ANSI codes if `color`."""
    out = io.StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=False,
        force_jupyter=False,
        legacy_windows=False,
    )
    console.print(Text("\n").join(lines), soft_wrap=True, highlight=False)
    return out.getvalue()


def print_text(render: Callable[[int | None, bool], str], file: TextIO | None = None) -> None:
    """Print the text that `render` makes for a width (None if unknown), coloured or not.

    `file` is `sys.stdout` by default. Characters that its encoding lacks are escaped. Rich decides
    on width and colour, as `NO_COLOR`, `FORCE_COLOR`, `TERM` and `COLUMNS` say.
    """
    file = sys.stdout if file is None else file
    terminal = Console(file=file, force_jupyter=False)
    colored = terminal.color_system is not None and not terminal.no_color
    text = render(terminal.width if terminal.is_terminal else None, colored)
    encoding = file.encoding or "utf-8"
    file.write(text.encode(encoding, "backslashreplace").decode(encoding))


def _written(figure: Figure) -> str:
    if isinstance(figure, str):
        return shown(figure) or "''"
    return "-" if figure is None else f"{figure:,}"


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - cell_len(text))
    return text + space if left else space + text
