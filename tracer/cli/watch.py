"""Follow the trace file of a run in another process. No TensorFlow."""

import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain, repeat
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from tracer.errors import MergeError
from tracer.layout import Column, Row, Table, shown
from tracer.model import measures
from tracer.model.phrases import endings, replica_names
from tracer.model.redaction import message
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
    Raises `tracer.TraceFileError` for a file that is not a trace, or that could not be read.
    """
    finished = seen = None
    live = Live(console=console, auto_refresh=False)
    with live if console.is_terminal else nullcontext():
        for trace, rows in _news(path, patience):
            finished = trace.finished
            state = (" ".join(endings(trace)) or "finished") if finished else "running"
            table = Table("optimizer", [Column(header) for header in _HEADERS], rows)
            name = shown(message(str(path)))
            seen = Group(Text(f"{name}: {state}"), *table.lines(console.width))
            if console.is_terminal:
                live.update(seen, refresh=True)
            else:
                console.print(seen)
    if seen and not finished:  # a rank that was terminated is known by a file of its own
        console.print(Text(" ".join(endings(load(path)))))
    return bool(finished)


def when_written(path: Path) -> tuple[float, int] | None:
    """When a file, or the newest file of a folder, was written; None if there is none."""
    files = [*path.glob("*.json"), *path.glob("*/*.json")] if path.is_dir() else [path]
    times = [each.stat().st_mtime_ns for each in files]
    return (max(times) / 1e9, sum(times)) if times else None


def _news(path: Path, patience: float) -> Iterator[tuple[Trace, list[Row]]]:
    """Yield each new trace in the file, until it is finished or `patience` seconds have passed."""
    trace: Trace | None = None
    written: tuple[float, int] = (0.0, 0)
    news = time.monotonic()
    failed = False
    while not (trace is not None and trace.finished) and time.monotonic() - news <= patience:
        at = now = None
        try:
            at = when_written(path)
            if at is not None and at[0] >= written[0] and at != written:
                now = load(path)
            failed = False
        except Exception as error:  # the file was moved just now, or the server does not answer
            if isinstance(error, MergeError) or isinstance(error.__cause__, ValueError):
                raise  # it is not a trace
            failed = not isinstance(error, FileNotFoundError)
        if at and now is not None:
            yield now, progress(now, trace, at[0] - written[0])
            trace, written, news = now, at, time.monotonic()
        else:
            time.sleep(_POLL)
    if failed:
        load(path)  # raises the reason
