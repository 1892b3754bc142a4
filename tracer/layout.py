"""Lay out text as lines that fit a width: paragraphs and tables. Knows nothing of traces."""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tracer.errors import shown as shown  # reports print through it

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


@dataclass(frozen=True)
class Row:
    """A name, its figures, and a note on them."""

    name: str
    cells: Sequence[Figure]
    note: str = ""
    style: str = ""


@dataclass
class Table:
    """Rows under headers: names on the left, figures on the right, notes if they fit.

    Nothing is cut: a long name stands on a line of its own, above its figures. Where the width has
    no room for all figures, each row is a paragraph. `rich.table` is not used because it takes 15
    times as long, and has neither.
    """

    header: str
    """The header of the names."""
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    below: Sequence[str] = ()
    """Paragraphs below the table."""

    def lines(self, width: int) -> list[Text]:
        """The table in at most `width` cells, unless a word is longer."""
        columns = [Column(self.header, left=True), *self.columns]
        heads = zip_longest(*(reversed(each.header.split("\n")) for each in columns), fillvalue="")
        head = [*heads][::-1]
        grid = [[row.name, *map(_written, row.cells)] for row in self.rows]
        longest, *sizes = [max(map(cell_len, each)) for each in zip(*head, *grid, strict=True)]
        room = width - sum(size + 2 for size in sizes)
        if room < min(longest, _NAME):
            lines = [line for row in self.rows for line in self._in_words(row, width)]
        else:
            gap = "   " if longest + len(sizes) <= room else "  "
            lines = self._drawn(head, grid, [min(longest, room), *sizes], gap, width)
        for text in (*([] if self.rows else ["(none)"]), *self.below):
            lines += paragraph(text, width, style="dim")
        return lines

    def _drawn(
        self,
        head: Iterable[Sequence[str]],
        grid: Iterable[Sequence[str]],
        sizes: Sequence[int],
        gap: str,
        width: int,
    ) -> list[Text]:
        """The rows below their header, in columns of these sizes."""
        left = [True, *(each.left for each in self.columns)]

        def line(cells: Iterable[str], note: str, style: str) -> Text:
            padded = map(_padded, cells, sizes, left)
            return Text(gap.join([*padded, note]).rstrip(), style)

        longest_note = max((cell_len(row.note) for row in self.rows), default=0)
        beside = sum(sizes) + len(gap) * len(sizes) + longest_note <= width
        lines = [line(cells, "", "bold") for cells in head]
        for row, (name, *cells) in zip(self.rows, grid, strict=True):
            if cell_len(name) > sizes[0]:
                lines.append(Text(name, row.style))
                name = ""
            lines.append(line([name, *cells], row.note if beside else "", row.style))
            if row.note and not beside:
                lines += paragraph(row.note, width, "    ", row.style)
        return lines

    def _in_words(self, row: Row, width: int) -> list[Text]:
        """A row as its name and a paragraph: `updates 4, per step 1`."""
        figures = [
            "\xa0".join([*column.header.split(), _written(cell)])
            for column, cell in zip(self.columns, row.cells, strict=True)
            if cell is not None
        ]
        note = f" ({row.note})" if row.note else ""
        said = paragraph(f"{', '.join(figures)}{note}", width, "  ", row.style)
        name = f"{' '.join(self.header.split())} {row.name}"
        return [*paragraph(name, width, style=row.style or "bold"), *said]


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


def _written(figure: Figure) -> str:
    return "-" if figure is None else figure if isinstance(figure, str) else f"{figure:,}"


def _padded(text: str, width: int, left: bool) -> str:
    space = " " * (width - cell_len(text))
    return text + space if left else space + text
