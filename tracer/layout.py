"""Lay out names and tables as lines of text that fit a width. Knows nothing of traces."""

import io
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from rich.cells import cell_len, set_cell_size
from rich.console import Console
from rich.text import Text

from tracer.errors import shown as shown  # reports print through it

_NAME = 16  # least cells of a name before other columns are dropped
_PROSE = 100

Figure = int | str | None
"""The content of a cell; numbers get commas, None is a dash."""


@dataclass(frozen=True)
class Column:
    """A column of figures; `header` may have several lines."""

    header: str
    drop: int = 0
    """Columns are dropped from a narrow table from the highest number down; 0 never."""
    left: bool = False
    optional: bool = False
    """True to drop the column if it is empty in all rows."""


@dataclass(frozen=True)
class Row:
    """A name, its figures, and a note on them."""

    name: str
    cells: Sequence[Figure]
    note: str = ""
    style: str = ""


@dataclass
class Table:
    """Rows under headers: names on the left, figures on the right, notes if they fit."""

    header: str
    """The header of the names; it may have several lines."""
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    cut_names: bool = True
    """False to put a long name on a line of its own instead of cutting its middle."""
    below: Sequence[str] = ()
    """Paragraphs below the table."""

    def lines(self, width: int) -> list[Text]:
        """The table in at most `width` cells, unless the figures alone are wider."""
        kept, dropped, room = self._fitted(width)
        header = [line.plain for text in self.header.split("\n") for line in paragraph(text, room)]
        names = [row.name for row in self.rows]
        names = cut_apart(names, room) if self.cut_names else names
        longest = _widest((*header, *names))
        gap = 3 if longest + len(kept) <= room else 2
        room = max(_widest(header), min(longest, room))
        filled = room + sum(gap + size for _, _, size in kept)
        notes_fit = filled + gap + _widest(row.note for row in self.rows) <= width

        def line(name: str, cells: Iterable[str], note: str, style: str) -> Text:
            figures = zip(cells, kept, strict=True)
            padded = (_pad(cell, size, column.left) for cell, (column, _, size) in figures)
            return Text((" " * gap).join([_pad(name, room), *padded, note]).rstrip(), style)

        headers = [header, *(column.header.split("\n") for column, _, _ in kept)]
        upwards = [*zip_longest(*(reversed(each) for each in headers), fillvalue="")]
        out = [line(name, cells, "", "bold") for name, *cells in reversed(upwards)]
        cells_of = [texts for _, texts, _ in kept]
        for row, name, *cells in zip(self.rows, names, *cells_of, strict=True):
            alone = [name] if cell_len(name) > room else []
            note, below = (row.note, "") if notes_fit else ("", row.note)
            out += [Text(each.rstrip(), row.style) for each in alone]
            out.append(line("" if alone else name, cells, note, row.style))
            out += paragraph(below, width, "    ", row.style) if below else []
        none = [] if self.rows else ["(none)"]
        not_shown = [f"Not shown in {width} columns: {', '.join(dropped)}."] if dropped else []
        for text in (*none, *not_shown, *self.below):
            out += paragraph(text, width, style="dim")
        return out

    def _fitted(self, width: int) -> tuple[list[tuple[Column, list[str], int]], list[str], int]:
        """The columns that fit, with texts and widths; the other columns; the room for names."""
        filled = []
        for index, column in enumerate(self.columns):
            texts = [_written(row.cells[index]) for row in self.rows]
            if not column.optional or set(texts) - {"", "-"}:
                filled.append((column, texts, _widest([*column.header.split("\n"), *texts])))
        longest = _widest([*self.header.split(), *(row.name for row in self.rows)])
        for rank in sorted({0, *(column.drop for column, _, _ in filled)}, reverse=True):
            kept = [each for each in filled if each[0].drop <= rank]
            room = width - sum(size + 2 for _, _, size in kept)
            if room >= min(longest, _NAME):
                break
        dropped = [column.header for column, _, _ in filled if column.drop > rank]
        named = [header.replace("\n", " ").strip() for header in dropped]
        return kept, named, max(room, min(longest, _NAME))


def cut(name: str, width: int, tail: int) -> str:
    """The name in `width` cells: an ellipsis replaces the middle, and `tail` cells follow it.

    >>> cut("encoder/layer_0/attention/kernel", 19, 7)
    'encoder/lay…/kernel'
    """
    if cell_len(name) <= width:
        return name
    tail = min(tail, width - 1)
    return set_cell_size(name, width - 1 - tail) + "…" + set_cell_size(name[::-1], tail)[::-1]


def cut_apart(names: Sequence[str], width: int) -> list[str]:
    """The names, cut to `width` at places where they stay different.

    A name stays whole if every cut would make it equal to another one.
    """
    cuts = {name: cut(name, width, _tail(name, width)) for name in names}
    for tail in (width * 3 // 4, width - 1, width // 2, width // 4, 0, None):
        number = Counter(cuts.values())
        for name, each in cuts.items():
            if number[each] > 1:
                cuts[name] = name if tail is None else cut(name, width, tail)
    return [cuts[name] for name in names]


def paragraph(text: str, width: int, indent: str = "", style: str = "") -> list[Text]:
    """The text in lines of at most `width` cells, after the indent; words are not broken.

    Lines are at most `_PROSE` cells long, to be readable in wide terminals.
    """
    first, *words = text.split(" ")
    room = min(width, _PROSE) - len(indent)
    first, *lines = _wrapped([first, *(f" {word}" for word in words)], room)
    hang = " " * len(indent)
    return [Text(line, style) for line in (indent + first, *(hang + line for line in lines))]


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


def _wrapped(words: Sequence[str], width: int) -> list[str]:
    """The words in lines of at most `width` cells, unless one is longer; no line begins blank."""
    lines = [words[0]]
    for word in words[1:]:
        if cell_len(lines[-1] + word) <= width:
            lines[-1] += word
        else:
            lines.append(word.lstrip(" "))
    return lines


def _tail(name: str, width: int) -> int:
    """The cells after the ellipsis: the last part of a path, if it is short enough."""
    last = cell_len(name.rpartition("/")[2]) + 1
    return last if "/" in name and last <= width * 2 // 3 else (width - 1) // 2


def _widest(texts: Iterable[str]) -> int:
    return max(map(cell_len, texts), default=0)


def _written(figure: Figure) -> str:
    return "-" if figure is None else figure if isinstance(figure, str) else f"{figure:,}"


def _pad(text: str, width: int, left: bool = True) -> str:
    space = " " * (width - cell_len(text))
    return text + space if left else space + text
