"""What steps and things of one name are called, the same in every report. No TensorFlow."""

from collections.abc import Iterable, Iterator

from tracer.model.stretches import Part, Stretch


def labelled(stretch: Stretch, first_step: int = 1) -> Iterator[tuple[str, Part]]:
    """The parts of a stretch, each with its steps: `1-32`, or `4, 8 … 64` in a cycle."""
    begin = stretch.first + first_step - 1
    for length, values in stretch.cycle:
        turns = [begin + stretch.period * turn for turn in (0, 1, stretch.turns - 1)]
        spans = [f"{at:,}" if length == 1 else f"{at:,}-{at + length - 1:,}" for at in turns]
        label = f"{spans[0]}, {spans[1]} … {spans[2]}" if stretch.turns > 1 else spans[0]
        yield label, (length, values)
        begin += length


def distinct(names: Iterable[str]) -> list[str]:
    """The names, a repeated one with its number: `["a", "a#2"]`."""
    taken: set[str] = set()
    return [free_name(name, taken) for name in names]


def free_name(name: str, taken: set[str]) -> str:
    """`name`, or `name#2` and so on if it is among `taken`, to which what is found is added."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    taken.add(free)
    return free
