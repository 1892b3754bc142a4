"""Numbers and lists as a sentence has them."""

from collections.abc import Sequence

Numbers = int | tuple[int, int]
"""A number, or the lowest and the highest of several."""


def plural(count: int, one: str, many: str = "") -> str:
    """The word for one of them, or for `many`, which has an `s` more if it is not given."""
    return one if count == 1 else many or f"{one}s"


def span(numbers: Numbers) -> str:
    """`3`, or `3 to 10`."""
    low, high = (numbers, numbers) if isinstance(numbers, int) else numbers
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def dash(low: int, high: int) -> str:
    """`3`, or `3-10`, where a table has no room."""
    return f"{low:,}" if low == high else f"{low:,}-{high:,}"


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


def first_of(items: Sequence[str], most: int, comma: str = ", ") -> str:
    """The items with commas, of more than `most` the first: `a`, `a, b`, `a, b and 3 more`."""
    more = f" and {len(items) - most:,} more" if len(items) > most else ""
    return comma.join(items[:most]) + more


def listed(items: Sequence[str], most: int | None = None) -> str:
    """`a`, `a and b`, `a, b and c`; as `first_of` if they are more than `most`."""
    if most is not None and len(items) > most:
        return first_of(items, most)
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)


def first_true(*cases: tuple[object, str]) -> str:
    """The text of the first case that is true; empty if none is.

    >>> first_true((0, "some"), ("x", "one"), (True, "none"))
    'one'
    """
    return next((text for case, text in cases if case), "")


def all_true(*cases: tuple[object, str]) -> list[str]:
    """The texts of all cases that are true.

    >>> all_true((0, "some"), ("x", "one"), (True, "and this"))
    ['one', 'and this']
    """
    return [text for case, text in cases if case]
