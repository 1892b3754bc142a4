"""Traces in one block after another, each saved and loaded again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import tracer
from tracer.model import tracefile


def assert_saved(trace: Any) -> None:
    """A file of the trace holds what the trace holds."""
    assert tracefile.decode(tracefile.encode(trace.data)) == trace.data


@contextmanager
def block_of(way: str, optimizer: Any) -> Iterator[Callable[[], Any]]:
    """A block that traces the optimizer; yields a function that returns its trace afterwards."""
    if way == "assertion":
        with tracer.assert_updates(optimizer, at_least=0) as seen:
            yield lambda: seen.trace
        return
    with tracer.record() as recording:
        yield recording.trace


def assert_each_block_is_saved(
    optimizer: Any, train: Callable[[], Any], updates: int, *, wrap: bool = False
) -> None:
    """Each of four blocks over one training has its updates, and its trace is saved."""
    if wrap:
        optimizer = tracer.wrap(optimizer)
    for way in ("record", "assertion") * 2:
        with block_of(way, optimizer) as trace:
            train()
        assert (trace().updates(), trace().complete) == (updates, True), trace().notes
        assert_saved(trace())
    if wrap:
        assert tracer.trace_of(optimizer).updates() == 4 * updates
        assert_saved(tracer.trace_of(optimizer))
