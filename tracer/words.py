"""Writes numbers and lists as text, and names so that they are safe to print."""

from collections.abc import Sequence

Numbers = int | tuple[int, int]
"""A number, or the lowest and the highest of several."""


def plural(count: int, one: str, many: str = "") -> str:
    """The noun for a count; the plural adds an `s` unless `many` is given."""
    return one if count == 1 else many or f"{one}s"


def span(numbers: Numbers) -> str:
    """`3`, or `3 to 10`."""
    low, high = (numbers, numbers) if isinstance(numbers, int) else numbers
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def times(numbers: Numbers) -> str:
    """`once`, `twice`, `3 times`.

    >>> times(1), times(2), times(1000), times((1, 1)), times((1, 3))
    ('once', 'twice', '1,000 times', 'once', '1 to 3 times')
    """
    return {"0": "never", "1": "once", "2": "twice"}.get(span(numbers), f"{span(numbers)} times")


def some(numbers: Numbers, noun: str) -> str:
    """`1 step`, `1,000 steps`, or `1 to 10 steps`.

    >>> some(1, "step"), some((1, 1), "step"), some((1, 10), "step")
    ('1 step', '1 step', '1 to 10 steps')
    """
    return f"{span(numbers)} {noun}{'' if span(numbers) == '1' else 's'}"


def listed(items: Sequence[str], most: int | None = None) -> str:
    """Join items: `a`, `a and b`, `a, b and c`; of more than `most` + 1 the first: `a and 3 more`.

    >>> listed(["a", "b", "c"]), listed(["a", "b", "c"], 1)
    ('a, b and c', 'a and 2 more')
    """
    if most is not None and len(items) > most + 1:
        items = [*items[:most], f"{len(items) - most:,} more"]
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def first_true(*cases: tuple[object, str]) -> str:
    """The text of the first true case; empty if none is.

    >>> first_true((0, "some"), ("x", "one"), (True, "none"))
    'one'
    """
    return next((text for case, text in cases if case), "")


def all_true(*cases: tuple[object, str]) -> list[str]:
    """The texts of all true cases.

    >>> all_true((0, "some"), ("x", "one"), (True, "and this"))
    ['one', 'and this']
    """
    return [text for case, text in cases if case]


def shown(text: str) -> str:
    r"""The text on one line, with what a terminal would act on or hide written as an escape.

    >>> print(shown("a" + chr(10) + "b" + chr(0x202E) + "c[red]"))
    a\nb\u202ec[red]
    """
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
