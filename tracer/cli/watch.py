"""Follow the trace file of a run in another process. No TensorFlow."""

import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from itertools import chain, repeat
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tracer.layout import Column, Row, Table, shown
from tracer.locations import when_written
from tracer.model import measures
from tracer.model.phrases import endings, replica_names
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.tracefile import load
from tracer.model.words import dash

_POLL = 0.25  # seconds
_HEADERS = ("steps", "steps/s", "updates per step\nand replica", "without\nupdates", "graphs")


def progress(trace: Trace, before: Trace | None, seconds: float) -> list[Row]:
    """A row for each optimizer, `seconds` after the trace `before`, and for each of its replicas.

    A single replica has no row.
    """
    earlier = [] if before is None else summaries_of(before)
    return [
        row
        for summary, past in zip(summaries_of(trace), chain(earlier, repeat(None)), strict=False)
        for row in _rows(summary, "" if past is None else _rate(summary, past, seconds))
    ]


def _rate(summary: Summary, past: Summary, seconds: float) -> str:
    """Of the fastest worker with a new file: each writes at a time of its own."""
    ran = {each.worker: each.seconds for each in past.trace.programs}
    took = {e.worker: e.seconds - ran[e.worker] for e in summary.trace.programs if e.worker in ran}
    now, then = _steps(summary), _steps(past)
    rates = [
        max(0, now[worker] - then[worker]) / passed
        for worker in now.keys() & then.keys()
        if (passed := took.get(worker, seconds)) > 0
    ]
    return f"{max(rates):,.1f}" if rates else ""


def _steps(summary: Summary) -> dict[str, int]:
    replicas = summary.trace.replicas
    return dict(
        sorted((replicas[each].worker, summary.steps_on[each]) for each in summary.replicas)
    )


def _rows(summary: Summary, rate: str) -> list[Row]:
    """The rows of an optimizer; graphs that have never run count, as they may run later."""
    spreads = [summary.spread(measures.updates, replica=replica) for replica in summary.replicas]
    counts = {count for spread in spreads for (count,) in spread} or {0}
    skipped = max((spread[(0,)] for spread in spreads), default=0)
    graphs, _ = summary.graphs(lambda block: 1)
    updates = dash(min(counts), max(counts))
    cells = (f"{summary.steps:,}", rate, updates, f"{skipped:,}", f"{graphs:,}")
    names = replica_names(summary.trace)
    replicas = [
        Row(f"  {shown(names[index])}", (f"{summary.steps_on[index]:,}", "", "", "", ""))
        for index in summary.replicas
    ]
    name = shown(summary.optimizers[0].name)
    return [Row(name, cells, style="bold"), *(replicas if len(replicas) > 1 else ())]


def watch(path: Path, console: Console, patience: float) -> bool:
    """Show the progress of a run until it ends; in a pipe, print it for each new save.

    Returns False if nothing was saved for `patience` seconds, after it has said which ranks ended
    or wrote last: the run was killed, or never started.
    Raises `tracer.TraceFileError` for a file that is not a trace.
    """
    finished = seen = None
    live = Live(console=console, auto_refresh=False)
    with live if console.is_terminal else nullcontext():
        for trace, rows in _news(path, patience):
            finished = trace.finished
            state = (" ".join(endings(trace)) or "finished") if finished else "running"
            table = Table("optimizer", [Column(header) for header in _HEADERS], rows)
            seen = Group(Text(f"{shown(str(path))}: {state}"), *table.lines(console.width))
            if console.is_terminal:
                live.update(seen, refresh=True)
            else:
                console.print(seen)
    if seen and not finished:  # a rank that was terminated is known by a file of its own
        console.print(Text(" ".join(endings(load(path)))))
    return bool(finished)


def _news(path: Path, patience: float) -> Iterator[tuple[Trace, list[Row]]]:
    """Yield each new trace in the file, until it is finished or `patience` seconds have passed."""
    trace: Trace | None = None
    written: tuple[float, object] = (0.0, None)
    news = time.monotonic()
    while not (trace is not None and trace.finished) and time.monotonic() - news <= patience:
        at = _written(path)
        if at is not None and at[0] >= written[0] and at != written:
            before, trace = trace, load(path)
            yield trace, progress(trace, before, at[0] - written[0])
            written, news = at, time.monotonic()
        else:
            time.sleep(_POLL)


def _written(path: Path) -> tuple[float, object] | None:
    with suppress(Exception):  # a file that is being replaced, or a server that does not answer
        return when_written(path)
    return None
