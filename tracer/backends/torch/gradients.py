"""Find out which backward passes the steps use: one may be lost, or serve two steps.

During a recording, `torch.autograd.backward` is replaced. Before and after each pass, and after
each step, one small parameter of each optimizer is checked, as a sample. A gradient has an identity
and a version that each write increments: if both are unchanged since a step when a pass begins, the
gradients were not cleared, and the pass adds to them. If the gradient is None, no step used the
passes before.

Nothing is reported for an optimizer whose steps call `backward` or run inside it. Passes are not
lost if another optimizer stepped meanwhile, or if the program changed weights or gradients between
them.
"""

import functools
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from threading import get_ident
from typing import Any, ClassVar
from weakref import WeakSet, ref

from tracer.backends.torch import compat
from tracer.backends.torch.parameters import parameters_of
from tracer.backends.torch.steps import STEP
from tracer.core.backend import Root
from tracer.core.call_paths import Paths
from tracer.core.collectors import Collector
from tracer.core.patches import Patch, patches
from tracer.errors import suppress_faults
from tracer.model.evidence import BackwardPasses, Evidence, GradientsAdded, GradientsLeft, NoStep

READ_STEPS = 10
"""In how many steps to read the values of a gradient, which waits for the device."""


class GradientMonitor(Collector):
    """The gradients of one optimizer, by the sample of one parameter."""

    monitors: ClassVar["WeakSet[GradientMonitor]"] = WeakSet()
    passes = steps = 0
    """The passes since the recording began, and the steps of all optimizers."""
    under_way: ClassVar[set[int]] = set()
    """The threads that run a pass."""
    paths = Paths()

    def __init__(self, root: Root) -> None:
        super().__init__(root)
        self.monitors.add(self)
        self.begin()

    def begin(self) -> None:
        """Forget everything, as a recording begins.

        `_waiting` has the passes whose gradients no step has used yet, by the paths to them; it is
        None from a step until its gradients are cleared. Those of `_cleared` were cleared since the
        last step, `_lost` has earlier ones. `_groups` has by number of passes how many steps used
        that many, and `_seen` the passes and steps of all optimizers as of the last step.
        """
        self.thread, self.rests = get_ident(), False
        """The thread that steps: passes on others belong to other optimizers; nothing to report."""
        self._sample: Callable[[], compat.Tensor | None] = lambda: None
        self._gradient: compat.Tensor | None = None
        self._version = self._weights = 0
        """The versions of gradient and parameter as last seen."""
        self._came: int | None = None
        """The version of the parameter when a pass first reached it."""
        self._seen = 0, self.steps
        self._waiting: list[int] | None = []
        self._cleared, self._lost = list[list[int]](), list[list[int]]()
        self._groups: Counter[int] = Counter()
        self._path = self._added = 0
        """The path to the last pass that a step used; how many steps used gradients again."""
        self._adds = self._is_unknown = False
        """Whether a pass added to used gradients since the last step; whether the passes of a step
        are unknown."""

    def pass_begins(self) -> None:
        """Check the gradient before a backward pass."""
        gradient, is_kept = self._look()
        if self.root.calls_under_way.stack():
            self.rests = True  # a closure: only the optimizer knows how it uses the gradients
        elif gradient is None or not is_kept:
            self._cleared += [self._waiting] if self._waiting and gradient is None else []
            self._waiting, self._adds = [], False
        elif self._waiting is None and self._groups.total() <= READ_STEPS:
            # A hook of the step may set the gradients to 0.
            self.rests = compat.is_capturing() or not gradient.any()
        weights = getattr(self._sample(), "_version", self._weights)
        if weights != self._weights:  # the program computed each pass for other weights, on purpose
            self._weights, self._cleared = weights, []

    def pass_ends(self, path: int) -> None:
        """Check the gradient after a backward pass."""
        gradient, is_kept = self._look()
        if not (gradient is None or is_kept):
            self._adds |= self._waiting is None
            self._waiting = [*(self._waiting or ()), path]
            self._came = self._weights if self._came is None else self._came

    def step_ends(self, call: Any) -> None:
        """Check the gradient after a step, or after a step that a scaler skipped."""
        if _BACKWARD not in patches:
            return
        if self.thread != get_ident():
            self.begin()
        GradientMonitor.steps += 1
        self.rests |= get_ident() in self.under_way  # the hook of a gradient calls `step`
        # A custom step may keep the gradients for a later one.
        requests = call.asked.requests if call.asked is not None else ()
        skips = call.method is STEP and len(call.sites) == len(requests) + len(call.own)
        waiting, is_new = self._waiting or [], self._sample() is None
        number = self.passes if is_new else len(waiting)
        gradient, is_kept = self._look()
        self.rests |= skips and gradient is not None
        if is_new:  # the optimizer was made before the recording, or no pass came
            self._is_unknown = self.steps > 1 or (gradient is not None and not number)
        if gradient is not None or not self.passes:
            self._groups[number] += 1
            self._is_unknown |= not number and (self.passes != self._seen[0] or not is_kept)
            self._added += self._adds
            self._path = waiting[-1] if waiting else self._path
            groups = number > 1 < self._groups.total()  # a pass before the first may be a test
            if self.steps == self._seen[1] + 1 and number and (is_kept or groups):
                self._lost += self._cleared
        self._waiting, self._cleared, self._adds = None, [], False
        self._seen = self.passes, self.steps

    def evidence(self) -> Iterator[Evidence]:
        """Evidence of the passes that steps used, and of gradients added to used ones or lost."""
        if self.rests:
            return
        steps, used = self._groups.total(), sum(n * of for n, of in self._groups.items())
        if not steps and self._came == getattr(self._sample(), "_version", self._weights):
            yield NoStep("gradients came")
        if not self._is_unknown and used != steps:
            yield BackwardPasses(used)
        if self._added:
            yield GradientsAdded(self._added, steps - self._groups[0])
        every = max(filter(None, self._groups), key=self._groups.__getitem__, default=0)
        groups = self._lost
        if every > 1 and _BACKWARD not in patches and self.steps == self._seen[1]:
            groups = [*groups, *self._cleared, self._waiting or []]
        lost = [len(group) for group in groups if self._path in group[:1]]
        lost = [size for size in lost if every == 1 or size < every]
        of = sum(lost) + self._groups[1] if every == 1 else self.passes
        if len({*lost}) == 1 and (every > 1 or sum(lost) >= self._groups[1] > 1):
            yield GradientsLeft(sum(lost), of, every, self.paths.line(self._path))

    def _look(self) -> tuple[compat.Tensor | None, bool]:
        """The gradient, and whether it is the one last seen, and nobody wrote to it.

        Without a sample, choose a small parameter, one with a gradient if any has one.
        """
        if self._sample() is None:
            groups = [own for each in self.root.optimizers.alive() for own in each.param_groups]
            plain = filter(compat.is_plain, parameters_of(groups))
            found = min(plain, key=lambda own: (own.grad is None, own.numel()), default=None)
            if found is not None:
                self._sample, self._weights = ref(found), found._version
        gradient = getattr(self._sample(), "grad", None)
        before = self._gradient, self._version
        self._gradient, self._version = gradient, getattr(gradient, "_version", 0)
        return gradient, gradient is before[0] and self._version == before[1]


def watch(wanted: bool) -> None:
    """Count the passes from now on, or stop."""
    if wanted and _BACKWARD not in patches:
        GradientMonitor.passes = GradientMonitor.steps = 0
        for monitor in list(GradientMonitor.monitors):
            monitor.begin()
    _BACKWARD.put(wanted)


@compat.left_alone
def _notify(callback: str, *given: int | None) -> None:
    """Call a method of the monitors of this thread; one that raises is dropped."""
    for monitor in list(GradientMonitor.monitors):
        if monitor.thread == get_ident() and not monitor.rests:
            with suppress_faults():
                getattr(monitor, callback)(*given)
                continue
            monitor.rests = True


@compat.without_dynamo
def _backward(*given: object, **named: object) -> object:
    thread, under_way = get_ident(), GradientMonitor.under_way
    # A pass in another pass, as in checkpointing, is part of it.
    if _BACKWARD not in patches or thread in under_way:
        return _BACKWARD.original(*given, **named)
    GradientMonitor.passes += 1
    under_way.add(thread)
    try:
        _notify("pass_begins")
        result = _BACKWARD.original(*given, **named)
        _notify("pass_ends", GradientMonitor.paths.above(sys._getframe(1)))
        return result
    finally:
        under_way.discard(thread)


_BACKWARD = Patch(compat.autograd, "backward", _backward, "to count passes", "recorded")
functools.update_wrapper(_backward, _BACKWARD.original)
"""`Tensor.backward` looks up `torch.autograd.backward` at each call."""
