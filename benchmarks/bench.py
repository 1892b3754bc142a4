"""What the benchmarks share: the machine, figures from interleaved rounds, and Markdown tables.

No TensorFlow in here: what needs it imports `steps`.
"""

import argparse
import gc
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]

Sample = Callable[[], float]
"""Runs what is measured for a while and returns the seconds that one turn of it took."""


class Spread(NamedTuple):
    """The median of some figures, with their quartiles."""

    low: float
    median: float
    high: float

    def text(self, digits: int) -> str:
        """As `1.002 (0.998 to 1.005)`."""
        low, median, high = (f"{value:.{digits}f}" for value in self)
        return f"{median} ({low} to {high})"


def spread(values: Iterable[float]) -> Spread:
    """The median and the quartiles of two or more `values`."""
    return Spread(*statistics.quantiles(values, n=4, method="inclusive"))


def interleaved(arms: Mapping[str, Sample], rounds: int) -> dict[str, list[float]]:
    """What each arm took in each round.

    A round takes one sample of each arm, right after one another, so that what is compared ran on
    the same machine in the same state. Each arm comes first, second ... and last equally often.
    """
    names = list(arms)
    taken: dict[str, list[float]] = {name: [] for name in names}
    gc.collect()
    gc.freeze()  # what was built before is no work for the collections that follow
    for number in range(rounds):
        turn = number // 2 % len(names)
        order = names[turn:] + names[:turn]
        for name in order if number % 2 else reversed(order):
            taken[name].append(arms[name]())
    gc.unfreeze()
    return taken


def ratios(taken: Mapping[str, Sequence[float]], arm: str, base: str) -> Spread:
    """How many times as long as `base` an arm took, round by round."""
    return spread(a / b for a, b in zip(taken[arm], taken[base], strict=True))


def timed(
    work: Callable[[], object], turns: int, clock: Callable[[], float] = time.perf_counter
) -> Sample:
    """A sample of `turns` turns of `work`."""

    def sample() -> float:
        start = clock()
        for _ in range(turns):
            work()
        return (clock() - start) / turns

    return sample


def table(header: Sequence[str], rows: Iterable[Sequence[object]], left: int = 1) -> str:
    """A Markdown table; the first `left` columns hold words, the others figures."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    rule = [
        "-" * width if place < left else "-" * (width - 1) + ":"
        for place, width in enumerate(widths)
    ]
    lines = []
    for row in [cells[0], rule, *cells[1:]]:
        padded = (
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        lines.append(f"| {' | '.join(padded)} |")
    return "\n".join(lines)


def machine() -> str:
    """The processor, its cores, and the versions."""
    names = ("tensorflow", "jax", "keras", "optax", "torch")
    versions = {each.name.lower(): each.version for each in metadata.distributions()}
    parts = [f"Python {platform.python_version()}"]
    parts += [f"{name} {versions[name]}" for name in names if name in versions]
    return f"{_processor()}, {os.cpu_count()} cores; {', '.join(parts)}."


def _processor() -> str:
    path = Path("/proc/cpuinfo")
    if path.exists():
        for line in path.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def run(
    description: str | None,
    tables: Callable[[argparse.Namespace], Iterable[str]],
    options: Callable[[argparse.ArgumentParser], object] = lambda parser: None,
) -> None:
    """The command of a benchmark: prints its tables, and with what they were made.

    `tables` yields them as Markdown, given the arguments: `quick` asks for no more than the figures
    that are the same each time. `options` may add arguments to the parser.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="no times, only what is exact")
    options(parser)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    for each in tables(arguments):
        print(each, end="\n\n", flush=True)
    command = f"python benchmarks/{Path(sys.argv[0]).name}{' --quick' * arguments.quick}"
    print(f"Printed by `{command}` at a load average of {load:.1f}.\n\n{machine()}")
