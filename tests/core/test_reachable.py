"""How a function or an object was made, as far as that shows without calling anything of it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest

from tracer.core.reachable import as_call


def fails(*given: Any) -> NoReturn:
    raise AssertionError("something of the program was called")


class Strange:
    """An object that answers nothing."""

    def __init__(self, rate: float, other: Any, name: str) -> None:
        self.rate, self.other, self.name, self.calls = rate, other, name, 7

    __bool__ = __len__ = __call__ = __float__ = __eq__ = __str__ = __repr__ = fails
    __getattr__ = __iter__ = __index__ = fails
    __hash__ = None  # type: ignore[assignment]


class Slots:
    __slots__ = ("rate",)

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def schedule(self, step: int) -> float:
        return self.rate / step


def recursive(rate: float) -> Callable[[int], float]:
    def schedule(step: int) -> float:
        return rate if step < 1 else schedule(step - 1)

    return schedule


def plain(step: int) -> float:
    return 0.1


def none_yet() -> Any:
    """Its function uses a name that has no value any more."""
    rate = 1.0

    def schedule(step: int) -> float:
        return rate * step  # noqa: F821 (that is the point)

    del rate
    return schedule


DEEP = "schedule=recursive(rate=0.5, schedule=recursive(rate=0.5))"


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Strange(0.5, None, "mine"), "Strange(rate=0.5)"),
        (lambda: Strange(0.5, Strange(1, 2, ""), "mine"), "Strange(rate=0.5)"),
        (lambda: Strange(0.0, True, "mine"), "Strange(other=True)"),
        (lambda: Strange(1e-05, [1, 0.5, 0], "mine"), "Strange(rate=1e-05, other=[1, 0.5, 0])"),
        (lambda: Strange(2, [*range(6)], "mine"), "Strange(rate=2)"),
        (lambda: Strange(2, [1, Strange], "mine"), "Strange(rate=2)"),
        (lambda: Slots(0.5), "Slots"),
        (lambda: Slots(0.5).schedule, "Slots.schedule"),
        (lambda: partial(plain, 3), "plain"),
        (lambda: plain, "plain"),
        (lambda: lambda step: 0.1, "a lambda"),
        (lambda: recursive(0.5), f"recursive(rate=0.5, {DEEP})"),
        (lambda: none_yet(), "none_yet"),
        (lambda: max, "builtin_function_or_method"),
    ],
)
def test_what_shows_of_how_it_was_made(make: Callable[[], Any], text: str) -> None:
    assert as_call(make()) == text
