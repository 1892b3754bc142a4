"""What others cost on the same steps in graph mode, and how many of the updates they see.

    python benchmarks/graph_peers.py            # about 3 minutes
    python benchmarks/graph_peers.py --quick    # only what each sees

Peers that change the whole process run in one of their own, with untraced steps beside them.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

import bench
import steps
import tensorflow as tf
from peers import PEERS, Peer
from steps import Case

LONG = Case("legacy", 20)
MILLISECONDS = 5
"""The step whose ratio is given."""
CASES: dict[Case, tuple[float, ...]] = {
    Case("legacy", 2): (0,),
    LONG: (0, MILLISECONDS),
    Case("legacy", 400): (0,),
}
"""The steps that are measured, with their lengths in ms; 0 is a step without work beside it, where
what is added shows best."""
CELLS = [(case, length) for case, lengths in CASES.items() for length in lengths]

SEEN_IN = LONG
SEEN_STEPS = 20

ROUNDS = 24
NOT_TRACED = "nothing"


class Arm:
    """A train function under the eyes of a peer."""

    def __init__(self, case: Case, peer: Peer) -> None:
        self.peer = peer
        variables = steps.variables_of(case)
        peer.ready(variables)
        self.step = steps.train_function(case, peer.optimizer, variables)
        with peer.active():
            self.step(tf.constant(0))

    def sample(self, turns: int) -> bench.Sample:
        """A sample of steps, with the peer at work; to start and stop it is not timed."""
        inner = steps.sample_of(self.step, turns)

        def sample() -> float:
            with self.peer.active():
                return inner()

        return sample


Taken = dict[str, list[float]]
"""The seconds of a step in each round, by peer."""


def measured(names: Sequence[str]) -> Iterator[Taken]:
    """What each peer takes, for each of `CASES` and each length."""
    for case, lengths in CASES.items():
        plain = Arm(case, Peer())
        arms = {NOT_TRACED: plain} | {name: Arm(case, PEERS[name]()) for name in names}
        for length in lengths:
            turns = steps.turns_for(plain.step, length)
            samples = {name: arm.sample(turns) for name, arm in arms.items()}
            yield bench.interleaved(samples, ROUNDS)


def row(name: str, cells: Sequence[Taken]) -> list[str]:
    """What a peer costs, in the order of the table, from what it took in `CELLS`."""
    taken = dict(zip(CELLS, cells, strict=True))
    texts = [bench.added(taken[case, 0], name, NOT_TRACED).text(0) for case in CASES]
    return [*texts, bench.ratios(taken[LONG, MILLISECONDS], name, NOT_TRACED).text(3)]


def seen(name: str, case: Case = SEEN_IN, number: int = SEEN_STEPS) -> int | None:
    """How many updates a peer saw in that many steps, the first of which traces the graphs."""
    peer = PEERS[name]()
    variables = steps.variables_of(case)
    peer.ready(variables)
    step = steps.train_function(case, peer.optimizer, variables)
    with peer.active():
        for _ in range(number):
            step(tf.constant(0))
    return peer.seen()


# The peers that need a process of their own.


def alone(name: str, what: str) -> Any:
    """What `here` prints in a process of its own."""
    command = [sys.executable, __file__, "--alone", name, what]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def here(name: str, what: str) -> Any:
    """What `alone` asks for: the updates that a peer `saw`, or what it `took`, as `measured`.

    Once such a peer is at work nothing is untraced, so there are no rounds: all untraced steps come
    first, and the others are compared with their median.
    """
    if what == "saw":
        return seen(name)
    bases: list[tuple[int, float]] = []
    for case, lengths in CASES.items():
        step = steps.step_of(case)
        for length in lengths:
            turns = steps.turns_for(step, length)
            sample = steps.sample_of(step, turns)
            bases.append((turns, median(sample() for _ in range(ROUNDS))))
    found: list[Taken] = []
    with PEERS[name]().active():
        for case, lengths in CASES.items():
            step = steps.step_of(case)
            for _ in lengths:
                turns, base = bases[len(found)]
                sample = steps.sample_of(step, turns)
                found.append({NOT_TRACED: [base] * ROUNDS, name: [sample() for _ in range(ROUNDS)]})
    return found


# The table.


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """The table of all peers; with `quick` only what those that fit in this process see."""
    steps.prepare()
    if arguments.alone:
        print(json.dumps(here(*arguments.alone)))
        sys.exit()
    expected = SEEN_IN.variables * SEEN_STEPS
    last = (f"updates seen in {SEEN_STEPS} steps", "of")
    inside = [name for name, peer in PEERS.items() if not peer.alone]
    if arguments.quick:
        yield bench.table(("", *last), ([name, seen(name), expected] for name in inside))
        return
    cells = list(measured(inside))
    rows = [[name, *row(name, cells), seen(name), expected] for name in inside]
    for name in PEERS:
        if name not in inside:
            cells = alone(name, "took")
            rows.append([name, *row(name, cells), alone(name, "saw"), expected])
    header = (f"us added, {case.variables} variables" for case in CASES)
    yield bench.table(("", *header, f"ratio at {MILLISECONDS} ms", *last), rows)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)


if __name__ == "__main__":
    bench.run(__doc__, tables, _options)
