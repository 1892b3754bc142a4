"""What steps are called in every report: `33`, `1-32`, or `4, 8 … 64`. No TensorFlow."""

from collections.abc import Iterator

from tracer.model.tally import Part, Stretch


def labelled(stretch: Stretch, first_step: int = 1) -> Iterator[tuple[str, Part]]:
    """The parts of a stretch, each with its steps: `1-32`, or `4, 8 … 64` in a cycle."""
    begin = stretch.first + first_step - 1
    for length, values in stretch.cycle:
        turns = [begin + stretch.period * turn for turn in (0, 1, stretch.turns - 1)]
        spans = [f"{at:,}" if length == 1 else f"{at:,}-{at + length - 1:,}" for at in turns]
        label = f"{spans[0]}, {spans[1]} … {spans[2]}" if stretch.turns > 1 else spans[0]
        yield label, (length, values)
        begin += length
