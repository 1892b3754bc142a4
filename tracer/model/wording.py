"""Numbers and lists as a sentence has them."""

from collections.abc import Sequence


def times(count: int) -> str:
    """`once`, `twice`, `3 times`.

    >>> times(1), times(2), times(1000)
    ('once', 'twice', '1,000 times')
    """
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count:,} times")


def some(count: int, noun: str) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def span(numbers: tuple[int, int]) -> str:
    """`3`, or `3 to 10`."""
    low, high = numbers
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def some_between(numbers: tuple[int, int], noun: str) -> str:
    """`1 step`, `3 steps`, or `1 to 10 steps`.

    >>> some_between((1, 1), "step"), some_between((1, 10), "step")
    ('1 step', '1 to 10 steps')
    """
    low, high = numbers
    return some(low, noun) if low == high else f"{span(numbers)} {noun}s"


def listed(items: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
