"""Names and tables as lines of text that fit a width. Knows nothing of traces."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.text import Text

from tracer.errors import shown as shown  # what a report prints goes through it

_NAME = 16  # cells that a name is cut to before other columns go
_GAPS = (3, 2)
_PROSE = 100


@dataclass(frozen=True)
class Column:
    """A column of figures; `header` may have several lines."""

    header: str
    drop: int = 0
    """Where the width is too small, those with the highest go first; 0 stays."""
    left: bool = False
    optional: bool = False
    """Whether it is left out where no row has anything in it."""


@dataclass(frozen=True)
class Row:
    """A name, its figures, and what must be said about it."""

    name: str
    cells: tuple[str, ...]
    note: str = ""
    style: str = ""


@dataclass
class Table:
    """Rows under headers: names to the left, figures to the right, notes where there is room."""

    header: str
    """Of the names; it may have several lines."""
    columns: Sequence[Column]
    rows: list[Row] = field(default_factory=list)
    cut_names: bool = True
    """False if a name that is too long takes a line of its own instead of losing its middle."""
    least: int = _NAME
    """Cells that a name is cut to before other columns go."""
    below: list[str] = field(default_factory=list)
    """What is said below it."""

    def lines(self, width: int) -> list[Text]:
        """The table in at most `width` cells, if the figures alone are not wider than that."""
        used = [
            index
            for index, column in enumerate(self.columns)
            if not column.optional or any(row.cells[index] for row in self.rows)
        ]
        kept = used
        header = max(cell_len(line) for line in self.header.split("\n"))
        longest = max([header, *(cell_len(row.name) for row in self.rows)])
        while True:
            widths = [self._width(index) for index in kept]
            gap, room = self._room(widths, longest, width)
            last = max((self.columns[index].drop for index in kept), default=0)
            if room >= min(longest, self.least) or not last:
                break
            kept = [index for index in kept if self.columns[index].drop < last]
        room = max(room, min(longest, _NAME), header)
        names = distinct([row.name for row in self.rows], room) if self.cut_names else None
        out = [Text(line, style="bold") for line in self._headers(kept, widths, room, gap)]
        filled = room + sum(gap + column_width for column_width in widths)
        notes = max((cell_len(row.note) for row in self.rows), default=0)
        notes_fit = filled + gap + notes <= width
        for number, row in enumerate(self.rows):
            name = names[number] if names else row.name
            if cell_len(name) > room:
                out.append(Text(name, style=row.style))
                name = ""
            line = _pad(name, room)
            for index, column_width in zip(kept, widths, strict=True):
                line += " " * gap + _pad(
                    row.cells[index], column_width, left=self.columns[index].left
                )
            if row.note and notes_fit:
                line += " " * gap + row.note
            out.append(Text(line.rstrip(), style=row.style))
            if row.note and not notes_fit:
                out += paragraph(row.note, width, "    ", row.style)
        if not self.rows:
            out.append(Text("(none)", style="dim"))
        dropped = [self.columns[index].header for index in used if index not in kept]
        named = ", ".join(header.replace("\n", " ").strip() for header in dropped)
        not_shown = [f"Not shown in {width} columns: {named}."] if dropped else []
        for text in (*not_shown, *self.below):
            out += paragraph(text, width, style="dim")
        return out

    def _width(self, index: int) -> int:
        header = self.columns[index].header.split("\n")
        return max(cell_len(text) for text in (*header, *(row.cells[index] for row in self.rows)))

    def _room(self, widths: Sequence[int], longest: int, width: int) -> tuple[int, int]:
        """The gap between columns, and what is left for the names."""
        for gap in _GAPS:
            room = width - sum(gap + each for each in widths)
            if room >= longest:
                return gap, longest
        return gap, room

    def _headers(
        self, kept: Sequence[int], widths: Sequence[int], room: int, gap: int
    ) -> list[str]:
        headers = [self.columns[index].header.split("\n") for index in kept]
        names = self.header.split("\n")
        height = max(len(header) for header in (names, *headers))
        lines = []
        for number in range(height):
            line = _pad(([""] * (height - len(names)) + names)[number], room)
            for index, header, width in zip(kept, headers, widths, strict=True):
                text = ([""] * (height - len(header)) + header)[number]
                line += " " * gap + _pad(text, width, left=self.columns[index].left)
            lines.append(line.rstrip())
        return lines


def cut(name: str, width: int, tail: int) -> str:
    """The name in `width` cells: the middle gives way to an ellipsis, `tail` cells stay behind it.

    >>> cut("encoder/layer_0/attention/kernel", 19, 7)
    'encoder/lay…/kernel'
    """
    if cell_len(name) <= width:
        return name
    behind = _fitting(reversed(name), min(tail, width - 1))[::-1]
    return _fitting(name, width - 1 - cell_len(behind)) + "…" + behind


def distinct(names: Sequence[str], width: int) -> list[str]:
    """The names cut to `width`; where that would make two of them equal, they are cut elsewhere.

    A name that cannot be told from another at this width is left whole.
    """
    cuts = [cut(name, width, _tail(name, width)) for name in names]
    for tail in (width * 3 // 4, width - 1, width // 2, width // 4, 0):
        twice = _twice(names, cuts)
        if not twice:
            break
        others = {each for each in cuts if each not in twice}
        group = [i for i, each in enumerate(cuts) if each in twice]
        tried = {names[i]: cut(names[i], width, tail) for i in group}
        values = list(tried.values())
        for i in group:
            new = tried[names[i]]
            if values.count(new) == 1 and new not in others:
                cuts[i] = new
    twice = _twice(names, cuts)
    return [name if each in twice else each for name, each in zip(names, cuts, strict=True)]


def paragraph(text: str, width: int, indent: str = "", style: str = "") -> list[Text]:
    """The text in lines of at most `width` cells, each after the indent; words are kept whole.

    Lines of prose are not longer than people like to read, however wide the terminal is.
    """
    width = min(width, _PROSE)
    hang = " " * len(indent)
    lines: list[str] = []
    line = indent
    for word in text.split(" "):
        gap = " " if line.strip() and line not in (indent, hang) else ""
        if gap and cell_len(line) + 1 + cell_len(word) > width:
            lines.append(line)
            line, gap = hang, ""
        line += gap + word
    return [Text(each, style=style) for each in [*lines, line]]


def _twice(names: Sequence[str], cuts: Sequence[str]) -> set[str]:
    """The cuts that different names share."""
    first: dict[str, str] = {}
    return {
        cut for name, cut in zip(names, cuts, strict=True) if first.setdefault(cut, name) != name
    }


def _tail(name: str, width: int) -> int:
    """The cells that stay behind the ellipsis: the last part of a path, if it is short enough."""
    last = cell_len(name.rpartition("/")[2]) + 1
    return last if "/" in name and last <= width * 2 // 3 else (width - 1) // 2


def _fitting(chars: Iterable[str], width: int) -> str:
    taken, used = "", 0
    for char in chars:
        used += cell_len(char)
        if used > width:
            break
        taken += char
    return taken


def _pad(text: str, width: int, left: bool = True) -> str:
    space = " " * (width - cell_len(text))
    return text + space if left else space + text
