"""The name of what made a schedule, without calling anything of it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tracer.core.reachable import maker_of


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
        (object, "object"),
        (lambda: Slots().schedule, "Slots.schedule"),
        (lambda: partial(decay(0.1), 3), "decay"),
        (lambda: lambda step: 0.1, "a lambda"),
        (lambda: decay(0.5), "decay"),
        (lambda: max, "builtin_function_or_method"),
    ],
)
def test_the_name_of_a_schedule(make: Callable[[], Any], text: str) -> None:
    assert maker_of(make()) == text
