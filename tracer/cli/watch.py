"""Follows the trace file of a run that goes on in another process. No TensorFlow."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain, repeat
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tracer.errors import TraceFileError
from tracer.layout import shown
from tracer.model import measures
from tracer.model.labels import replica_names
from tracer.model.programs import endings
from tracer.model.summary import Summary, summaries_of
from tracer.model.trace import Trace
from tracer.model.tracefile import load
from tracer.model.wording import some

_POLL = 0.25  # seconds


@dataclass(frozen=True)
class Progress:
    """What is known of one optimizer of the run."""

    name: str
    steps: int
    rate: float | None
    """Steps in a second between the last two files; None as long as there is one."""
    a_step: str
    """Updates in a step, on one replica: `4`, or `0-4`."""
    skipped: int
    """Steps in which nothing was updated, on the replica with most of them."""
    graphs: int
    """Graph tracings; one that never ran so far may do so yet, so that is not told."""
    replicas: tuple[tuple[str, int], ...]
    """The steps of each replica."""


def progress(trace: Trace, before: Trace | None, seconds: float) -> list[Progress]:
    """How far each optimizer is, `seconds` after it was as in the trace `before`."""
    earlier = summaries_of(before) if before is not None and seconds > 0 else []
    steps = chain((each.steps for each in earlier), repeat(None))
    return [
        _progress(summary, None if past is None else max(0, summary.steps - past) / seconds)
        for summary, past in zip(summaries_of(trace), steps, strict=False)
    ]


def _progress(summary: Summary, rate: float | None) -> Progress:
    spreads = [summary.spread(measures.updates, replica=replica) for replica in summary.replicas]
    counts = {count for spread in spreads for (count,) in spread} or {0}
    graphs, _ = summary.graphs(lambda block: 1)
    names = replica_names(summary.trace)
    return Progress(
        shown(summary.optimizers[0].name),
        summary.steps,
        rate,
        "-".join(f"{count:,}" for count in sorted({min(counts), max(counts)})),
        max((spread[(0,)] for spread in spreads), default=0),
        graphs,
        tuple((shown(names[index]), summary.steps_on[index]) for index in summary.replicas),
    )


def watch(path: Path, console: Console, patience: float) -> bool:
    """Show how far the run is until it ends; in a pipe with a line for each new file.

    Returns False if there is no news for `patience` seconds: then the run was killed, or there is
    none. Raises `tracer.TraceFileError` for a file that is no trace.
    """
    finished = False
    with ExitStack() as stack:
        live = Live(console=console, auto_refresh=False)
        if console.is_terminal:
            stack.enter_context(live)
        for trace, progresses in _news(path, patience):
            finished = trace.finished
            if console.is_terminal:
                live.update(_table(path, progresses, _state(trace)), refresh=True)
            else:
                for optimizer in progresses:
                    print(_line(optimizer), file=console.file, flush=True)
    return finished


def _news(path: Path, patience: float) -> Iterator[tuple[Trace, list[Progress]]]:
    """Each new trace in the file, until it is finished or nothing new came for a while."""
    trace: Trace | None = None
    written = 0.0
    news = time.monotonic()
    while not (trace is not None and trace.finished) and time.monotonic() - news <= patience:
        at = _written(path)
        if at > written:
            before, trace = trace, load(path)
            progresses = progress(trace, before, at - written)
            written, news = at, time.monotonic()
            yield trace, progresses
        else:
            time.sleep(_POLL)


def _state(trace: Trace) -> str:
    if not trace.finished:
        return "running"
    return " ".join(endings(trace)) or "finished"


def _written(path: Path) -> float:
    """When the file, or the last one of a folder, was written; 0 if there is none yet."""
    try:
        files = list(path.glob("*.json")) if path.is_dir() else [path]
        return max((each.stat().st_mtime for each in files), default=0.0)
    except FileNotFoundError:
        return 0.0
    except OSError as error:
        raise TraceFileError(f"{path}: cannot be read: {error.strerror or error}") from error


def _line(optimizer: Progress) -> str:
    parts = [
        f"{optimizer.name}: {some(optimizer.steps, 'step')}",
        *([] if optimizer.rate is None else [f"{optimizer.rate:,.1f} steps/s"]),
        f"{optimizer.a_step} update{'' if optimizer.a_step == '1' else 's'} {_per([optimizer])}",
        f"{optimizer.skipped:,} without updates",
        some(optimizer.graphs, "graph"),
    ]
    if len(optimizer.replicas) > 1:
        parts.append(", ".join(f"{replica}: {steps:,}" for replica, steps in optimizer.replicas))
    return "; ".join(parts)


def _per(progresses: Sequence[Progress]) -> str:
    """What updates are counted by."""
    several = any(len(each.replicas) > 1 for each in progresses)
    return "per step and replica" if several else "per step"


def _table(path: Path, progresses: list[Progress], state: str) -> Table:
    table = Table(box=None, pad_edge=False, title=Text(f"{shown(str(path))}: {state}"))
    table.title_justify = "left"
    table.add_column("optimizer")
    for header in ("steps", "steps/s", f"updates {_per(progresses)}", "without updates", "graphs"):
        table.add_column(header, justify="right")
    for optimizer in progresses:
        rate = "" if optimizer.rate is None else f"{optimizer.rate:,.1f}"
        counts = (f"{optimizer.skipped:,}", f"{optimizer.graphs:,}")
        name = Text(optimizer.name, style="bold")
        table.add_row(name, f"{optimizer.steps:,}", rate, optimizer.a_step, *counts)
        if len(optimizer.replicas) > 1:
            for replica, steps in optimizer.replicas:
                table.add_row(Text(f"  {replica}"), f"{steps:,}")
    return table
