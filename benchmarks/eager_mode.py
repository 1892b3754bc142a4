"""What tracing and its peers add in eager mode, to a call of an apply method and to a step.

    python benchmarks/eager_mode.py            # about 2 minutes
    python benchmarks/eager_mode.py --quick    # only what each sees

A step of 1 variable and one of 50 are taken in turn, watched and not. What the second adds more is
divided by 49: that is for an apply call. The rest of what the first adds is for `apply_gradients`.
The time is that of the thread that trains, which does all the work of a small eager step.
"""

import argparse
import inspect
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import bench
import steps
import tensorflow as tf
import tf_keras
from peers import PEERS, Peer
from steps import Case

import tracer

MANY = 50
ROUNDS = 60
TURNS = {1: 40, MANY: 3}
SEEN_STEPS = 20

NOT_TRACED = "not traced"


class Idle(tf_keras.optimizers.legacy.Optimizer):  # type: ignore[misc]
    """An optimizer whose apply method does nothing: what is left is Python."""

    def __init__(self) -> None:
        super().__init__("Idle")

    def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> None:
        return None

    def get_config(self) -> dict[str, Any]:
        return dict(super().get_config())


class Cost(NamedTuple):
    """Microseconds: of an untraced step of one variable, and what is added."""

    step: float
    each_step: bench.Spread
    each_apply: bench.Spread


def sample_of(peer: Peer, variables: Sequence[Any]) -> bench.Sample:
    """A sample of eager steps; to start and stop the peer is not timed."""
    peer.ready(variables)
    pairs = [(tf.zeros(each.shape), each) for each in variables]
    count = len(variables)
    inner = bench.timed(
        lambda: peer.optimizer.apply_gradients(pairs), TURNS[count], time.thread_time
    )

    def sample() -> float:
        with peer.active():
            return inner()

    sample()
    return sample


def both(make: Callable[[int], bench.Sample]) -> dict[int, bench.Sample]:
    """A sample of 1 variable and one of many."""
    return {count: make(count) for count in TURNS}


def costs(
    arms: Mapping[str, Mapping[int, bench.Sample]], base: str, rounds: int
) -> dict[str, Cost]:
    """What each arm adds to `base`."""
    flat = {f"{name} {n}": each for name, arm in arms.items() for n, each in arm.items()}
    taken = bench.interleaved(flat, rounds)
    return {name: cost(taken, name, base) for name in arms if name != base}


def cost(taken: Mapping[str, Sequence[float]], name: str, base: str) -> Cost:
    """What an arm adds to `base`, round by round."""
    columns = [taken[f"{arm} {count}"] for count in TURNS for arm in (name, base)]
    steps_, applies = [], []
    for one, plain_one, many, plain_many in zip(*columns, strict=True):
        each = ((many - plain_many) - (one - plain_one)) / (MANY - 1)
        applies.append(1e6 * each)
        steps_.append(1e6 * (one - plain_one - each))
    plain = 1e6 * median(taken[f"{base} 1"])
    return Cost(plain, bench.spread(steps_), bench.spread(applies))


# The tracer on each kind.


class Watched(Peer):
    """An optimizer that `make` makes, after `watch`."""

    def __init__(self, make: Callable[[], Any], watch: Callable[[Any], Any]) -> None:
        self.optimizer = watch(make())


def untouched(optimizer: Any) -> Any:
    """The optimizer as it is."""
    return optimizer


def counting(optimizer: Any) -> Any:
    """The optimizer with a class that counts calls for each variable: the least a tool can do."""
    base, counts = type(optimizer), Counter[int]()
    names = {"update_step", "_resource_apply_dense"} & set(vars(base))

    def method_of(name: str) -> Callable[..., Any]:
        def method(self: Any, gradient: Any, variable: Any, *more: Any, **named: Any) -> Any:
            counts[id(variable)] += 1
            return getattr(super(cls, self), name)(gradient, variable, *more, **named)

        # A legacy optimizer passes what it finds here.
        vars(method)["__signature__"] = inspect.signature(getattr(base, name))
        return method

    cls = type(base.__name__, (base,), {name: method_of(name) for name in names})
    object.__setattr__(optimizer, "__class__", cls)
    return optimizer


def kinds(rounds: int) -> Iterator[list[str]]:
    """The rows of the tracer, and of a subclass that counts."""
    watches = {"traced": tracer.wrap, "counted by a subclass": counting}
    for kind, make in steps.SGD.items():
        for how, cost in costs_of(kind, make, watches, rounds).items():
            yield [f"{kind} SGD, {how}", *texts(cost)]
    (cost,) = costs_of("legacy", Idle, {"traced": tracer.wrap}, rounds).values()
    yield ["legacy, an apply method that does nothing, traced", *texts(cost)]


def costs_of(
    kind: str, make: Callable[[], Any], watches: Mapping[str, Callable[[Any], Any]], rounds: int
) -> dict[str, Cost]:
    """What each way to watch it adds to an optimizer that `make` makes."""

    def arm(watch: Callable[[Any], Any]) -> dict[int, bench.Sample]:
        return both(lambda count: sample_of(Watched(make, watch), some_variables(kind, count)))

    arms = {NOT_TRACED: arm(untouched)} | {how: arm(watch) for how, watch in watches.items()}
    return costs(arms, NOT_TRACED, rounds)


def some_variables(kind: str, count: int) -> list[Any]:
    """So many variables of the kind's class."""
    return steps.variables_of(Case(kind, count + count % 2))[:count]


def texts(found: Cost) -> list[str]:
    """The columns of a row."""
    return [f"{found.step:.0f}", found.each_apply.text(1), found.each_step.text(1)]


# The peers.


def arm_of(name: str) -> dict[int, bench.Sample]:
    """A peer's samples, or with an empty name those of nothing."""
    make = PEERS.get(name, Peer)
    return both(lambda count: sample_of(make(), some_variables("legacy", count)))


def here(name: str, what: str) -> Any:
    """What a peer `saw` or `took`, in a process of its own: untraced steps first, then the peer."""
    if what == "saw":
        return seen(name)
    plain = {f"{NOT_TRACED} {n}": sample for n, sample in arm_of("").items()}
    taken = bench.interleaved(plain, ROUNDS)
    base = {arm: [median(values)] * (ROUNDS // 2) for arm, values in taken.items()}
    with PEERS[name]().active():
        watched = {f"{name} {n}": sample for n, sample in arm_of("").items()}
        return base | bench.interleaved(watched, ROUNDS // 2)


def alone(name: str, what: str) -> Any:
    """What `here` prints in a process of its own."""
    command = [sys.executable, __file__, "--alone", name, what]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def seen(name: str) -> int | None:
    """How many of the updates of some eager steps of `MANY` variables a peer saw."""
    peer = PEERS[name]()
    variables = some_variables("legacy", MANY)
    peer.ready(variables)
    pairs = [(tf.zeros(each.shape), each) for each in variables]
    with peer.active():
        for _ in range(SEEN_STEPS):
            peer.optimizer.apply_gradients(pairs)
    return peer.seen()


def tables(arguments: argparse.Namespace) -> Iterator[str]:
    """The tables of the tracer and of the peers; with `quick` only what those here see."""
    steps.prepare()
    if arguments.alone:
        print(json.dumps(here(*arguments.alone)))
        sys.exit()
    last = (f"updates seen in {SEEN_STEPS} steps", "of")
    expected = MANY * SEEN_STEPS
    inside = [name for name, peer in PEERS.items() if not peer.alone]
    if arguments.quick:
        yield bench.table(("", *last), ([name, seen(name), expected] for name in inside))
        return
    header = (
        "us a step of 1 variable",
        "us added to an apply call",
        "us added to `apply_gradients`",
    )
    yield bench.table(("", *header), kinds(ROUNDS))
    found = costs(
        {NOT_TRACED: arm_of("")} | {name: arm_of(name) for name in inside}, NOT_TRACED, ROUNDS
    )
    rows = [[name, *texts(found[name]), seen(name), expected] for name in inside]
    for name in PEERS:
        if name not in inside:
            alone_cost = cost(alone(name, "took"), name, NOT_TRACED)
            rows.append([name, *texts(alone_cost), alone(name, "saw"), expected])
    yield bench.table(("legacy, SGD", *header, *last), rows)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--alone", nargs=2, help=argparse.SUPPRESS)


if __name__ == "__main__":
    bench.run(__doc__, tables, _options)
