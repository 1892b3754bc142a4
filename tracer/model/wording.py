"""Numbers as a sentence has them."""


def times(count: int) -> str:
    """`once`, `twice`, `3 times`.

    >>> times(1), times(2), times(1000)
    ('once', 'twice', '1,000 times')
    """
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count:,} times")


def some(count: int, noun: str) -> str:
    """`1 step`, `1,000 steps`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
