"""The name of what made a schedule, without calling anything of it."""

from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import pytest

from tracer.core.reachable import maker_of


def fails(*given: Any) -> NoReturn:
    raise AssertionError("something of the program was called")


class Strange:
    """An object that answers nothing."""

    __bool__ = __len__ = __call__ = __float__ = __eq__ = __str__ = __repr__ = fails
    __getattr__ = __iter__ = __index__ = fails
    __hash__ = None  # type: ignore[assignment]


class Slots:
    def schedule(self, step: int) -> float:
        return 0.1 / step


def decay(rate: float) -> Callable[[int], float]:
    def schedule(step: int) -> float:
        return rate / step

    return schedule


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (Strange, "Strange"),
        (lambda: Slots().schedule, "Slots.schedule"),
        (lambda: partial(decay(0.1), 3), "decay"),
        (lambda: lambda step: 0.1, "a lambda"),
        (lambda: decay(0.5), "decay"),
        (lambda: max, "builtin_function_or_method"),
    ],
)
def test_the_name_of_a_schedule(make: Callable[[], Any], text: str) -> None:
    assert maker_of(make()) == text
