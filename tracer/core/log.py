"""When a block ran of which Python knows each execution, as runs of stamps. No framework."""

from tracer.core.settle import Reading, reading_of
from tracer.model.runs import Run, join


class HostLog:
    """When a block ran that Python counts, as the same runs of stamps."""

    __slots__ = ("runs", "total")

    def __init__(self) -> None:
        self.total = 0
        self.runs: list[list[int]] = []  # [first, stride, count, times], open at the end

    def add(self, stamp: int) -> None:
        """The block ran once more."""
        self.total += 1
        if self.runs:
            run = self.runs[-1]
            first, stride, count, times = run
            last = first + (count - 1) * stride
            if stamp == last and count == 1:
                run[3] += 1
                return
            if stamp == last:  # again in the same step, which becomes a run of its own
                run[2] -= 1
                self.runs.append([stamp, 1, 1, times + 1])
                return
            if times == 1 and stamp > last and (count == 1 or stamp == last + stride):
                run[1], run[2] = stamp - last, count + 1
                return
            if len(self.runs) > 1:  # a step that ran it several times may continue a run of such
                tail = join(Run(*run) for run in self.runs[-2:])
                self.runs[-2:] = [[r.first, r.stride, r.count, r.times] for r in tail]
        self.runs.append([stamp, 1, 1, 1])

    def reading(self, graphs: int) -> Reading:
        """What was added so far; `graphs` of a Session hold the block."""
        runs = join(Run(*run) for run in self.runs)
        return reading_of(runs, self.total, graphs, graphs if not self.total else 0)
