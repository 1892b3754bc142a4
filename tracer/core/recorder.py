"""Records the calls of one root optimizer: see `calls`.

A `Recorder` belongs to a root optimizer and its nested optimizers. `hooks.wrapping` makes it when
the first of them is wrapped; it lives as long as one of them, or a graph in which it counts. Each
traced method calls the recorder on the thread that trains: `open` and `close` around a step or
group method, `open_apply` and `close_apply` around an apply method, `requests` with the gradients
of a step. `abandon` handles a call that an exception ended before it was closed. PyTorch's steps
open and close themselves (`torch.steps`): each costs a few comparisons.

A call whose parent is in the same graph adds its sites to the parent. Any other call closes a
block: everything traced into its graph since the call began executes as a whole, so it gets one
counter (`tensorflow.blocks`). This one rule covers `tf.function`, loops, branches, XLA and eager
mode, where a step is the block. `tensorflow.places` finds the parent.

Any number of threads may train. A call and its stack belong to the thread that made the call (but
see `calls`). Threads share `CallsUnderWay.steps`, a list whose changes are atomic; the tables of
sites and variables, each with a lock under which no other lock is taken; and the counters, whose
lock is taken before all others. An eager call on a known variable takes no lock. `snapshot` reads
the counts, from any thread.

The traced methods pass an exception raised in here, a fault of the tracer, to `Root.fault`. Then
they call the recorder no more, and training goes on.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

from tracer.core.backend import Backend, Root
from tracer.core.call_paths import frames_from
from tracer.core.calls import EAGER, Apply, Call, Place, Step, Token, outermost
from tracer.core.collectors import Collectors
from tracer.core.optimizers import Optimizers
from tracer.core.snapshot import Reader
from tracer.kinds import ApplyMethod
from tracer.model.records import Kind, Role

_TORN = (
    "an eager step that called functions ended with an error: updates in a function before the "
    "error may not be counted"
)


class Recorder(Root):
    """All data of one root optimizer; thread-safe."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.optimizers: Optimizers = Optimizers(backend, self.note)
        self.variables = backend.new_variables(self)
        self.blocks = backend.new_blocks(self)
        self.collectors = Collectors(self)
        self.reader = Reader(self)
        # Called at each call of an apply method.
        self._eager_replica = backend.eager_replica
        self._kind_of = backend.kind_of_gradient

    @property
    def used(self) -> bool:
        """Whether any call was recorded."""
        return bool(self.sites.calls)

    def compare(self, *, retrace: bool = True) -> None:
        """Compare the variables before and after each step from now on.

        If `retrace`, functions that are already traced are traced again at their next call.
        """
        if self.blocks.compare() and retrace and self.blocks.counters.in_programs:
            self.blocks.forget_graphs()

    # Calls.

    def open(self, call: Call, optimizer: int, method: str, caller: object = None) -> None:
        """Begin a call of a step or group method.

        `caller` is the Python frame that makes the call, if not the caller of the traced method.
        """
        stack = self.calls_under_way.stack()
        if stack and call.role == "step":
            self.drop_interrupted(sys._getframe())
        if not self.backend.locate(call, stack, self.calls_under_way):
            return
        if isinstance(call, Step):
            call.path, call.numbers, call.before = None, {}, None
            if optimizer not in self.optimizers.stepping:
                self.optimizers.first_step(optimizer)
            site = self.sites.number(optimizer, method, "step", replica=call.replica)
            call.own = (site,)
            if call.place is not EAGER:
                self.sites.called(site, tracing=True)
            elif call.parent is None:
                call.path = self.blocks.path_of(caller or sys._getframe(2), call.distributed)
            self.calls_under_way.steps.append(call)
            if call.distributed and not self.where.strategy:
                self.where = self.backend.surroundings()
        elif call.parent is None and not stack:
            self._note_unseen_step(optimizer, call, sys._getframe(2))
        call.recorder = self
        stack.append(call)

    def open_apply(
        self, optimizer: int, apply: ApplyMethod, gradient: object, variable: object
    ) -> Token | None:
        """Begin a call of an apply method, with one gradient and variable or with many.

        Returns the argument for `close_apply`; None if the framework will refuse the variable.
        """
        stack = self.calls_under_way.stack()
        around = stack[-1] if stack else None
        if (
            around is not None
            and around.place is EAGER
            and around.applying is None
            and not (around.distributed or apply.many)
        ):
            replica = self._eager_replica(around.replica)
            if replica is not None:
                kind = apply.kind or self._kind_of(gradient)
                key = id(variable), apply.name, "update", kind, replica, optimizer
                known = self.sites.of_objects.get(key)
                if known is not None and known[0]() is variable:
                    around.applying = known[1]
                    return around, known[1]
        return self._open_apply_call(optimizer, apply, gradient, variable, stack)

    def _open_apply_call(
        self,
        optimizer: int,
        apply: ApplyMethod,
        gradient: object,
        variable: object,
        stack: list[Call],
    ) -> Apply | None:
        pairs: Iterable[Any] = ((gradient, variable),)
        if apply.many:
            if not (isinstance(gradient, Sequence) and isinstance(variable, Sequence)):
                return None
            pairs = zip(gradient, variable, strict=False)
        call = Apply()
        self.backend.locate(call, stack, self.calls_under_way)
        role: Role = "update" if call.applying is None else "apply"
        call.own = self.sites_of(call, optimizer, apply, role, pairs)
        call.applying = call.own[0] if call.own else -1
        if not (apply.many or call.own):
            return None
        call.variable = None if apply.many else variable
        if call.parent is None and not stack:
            self._note_unseen_step(optimizer, call, sys._getframe(2))
        call.recorder = self
        stack.append(call)
        return call

    def _note_unseen_step(self, optimizer: int, call: Call, python: object) -> None:
        """Note it if a group or apply method runs in a step that no traced method began.

        The Python frame `python` makes the call. Under a strategy, the step may be on a thread that
        waits for this one.
        """
        traced = self.optimizers.all[optimizer]
        own, step_methods = traced.optimizer(), traced.kind.step_methods
        stacks = sys._current_frames().values() if call.distributed else [python]
        for frame in (frame for innermost in stacks for frame in frames_from(innermost)):
            name = frame.f_code.co_name.removeprefix("tf__")  # AutoGraph's copy has this prefix
            if name in step_methods and frame.f_locals.get("self") is own:
                self.note(
                    f"{name} was called on the class, or as a method taken before the optimizer "
                    "was wrapped: its steps are not counted, and their updates count outside any "
                    f"step; call optimizer.{name}(...)"
                )

    def sites_of(
        self, call: Call, optimizer: int, apply: ApplyMethod, role: Role, pairs: Iterable[Any]
    ) -> list[int]:
        """Return the sites of an apply method for pairs of a gradient and a variable.

        `call` is the call of the method, or a step that updates the variables itself.
        """
        sites = []
        for gradient, variable in pairs:
            kind = apply.kind or self._kind_of(gradient)
            site = self._site_of(call, optimizer, apply.name, role, kind, variable)
            if site is not None:
                sites.append(site)
                if call.place is not EAGER:
                    self.sites.called(site, tracing=True)
        return sites

    def close_apply(self, token: Token, result: object, failed: bool) -> None:
        """End a call of an apply method; `token` is the result of `open_apply`."""
        if isinstance(token, Apply):
            token.result, token.python = result, None
            if failed:
                self._apply_raised(token, token.own)
            self.close(token, failed)
            return
        around, site = token
        around.applying = None
        if failed:
            self._apply_raised(around, (site,))
            self.sites.called(site, tracing=False)
        else:
            around.sites.append(site)

    def _apply_raised(self, call: Call, sites: Sequence[int]) -> None:
        """Note once for each variable that it is unknown whether it was updated."""
        for number in sites if call.place is EAGER else ():
            site: Any = self.sites.sites[number]
            name = self.variables.plain[site.variable].name
            self.note(
                f"{site.method} raised on {name}: such a call may have updated the variable, and "
                "is not counted"
            )

    def drop_interrupted(self, at: object) -> None:
        """Abandon the calls that an exception ended; frames from `at` outward still run."""
        for call in self.calls_under_way.abandoned(at):
            self.abandon(call)

    def abandon(self, call: Call) -> None:
        """Handle a call that an exception ended before it was closed, and the calls inside it.

        The first thread to find the call notes it.
        """
        for inside in self.calls_under_way.take_off(call):
            self.abandon(inside)
        if isinstance(call, Step) and not self._ended(call):
            return
        if call.interrupted:
            self.note(call.interrupted)
        self._note_failed(call)

    def _ended(self, step: Step) -> bool:
        """Remove a step that has ended; False if another thread has already done so."""
        try:
            self.calls_under_way.steps.remove(step)
        except ValueError:
            return False
        return True

    def _note_failed(self, call: Call) -> None:
        """Count a failed call, unless a graph is traced, where no call is an execution."""
        for site in call.own if call.place is EAGER else ():
            self.sites.called(site, tracing=False)

    def _site_of(
        self, call: Call, optimizer: int, method: str, role: Role, kind: Kind, variable: object
    ) -> int | None:
        """The site of a variable, found by its id if known; None if this is no variable."""
        replica = call.replica
        eager = call.place is EAGER
        if eager:
            key = id(variable), method, role, kind, replica, optimizer
            known = self.sites.of_objects.get(key)
            if known is not None and known[0]() is variable:
                return known[1]
        if not (hasattr(variable, "name") and hasattr(variable, "dtype")):
            return None
        if getattr(variable, "overwrite_with_gradient", False):
            return None  # Keras assigns the gradient: a scale of float8
        site = self.site_of(optimizer, method, role, kind, variable, call.place, replica)
        if eager:
            self.sites.of_objects[key] = (ref(variable), site)
        return site

    def requests(
        self, call: Step, optimizer: int, method: str, pairs: Iterable[Any]
    ) -> Iterator[Any]:
        """Yield the `pairs` of a gradient and a variable that the outermost step method `call` got.

        A pair is recorded when it is taken. If effects are on, its variable is compared.
        """
        effects, pair_types = self.blocks.counters.effects, (tuple, list)
        known_ones = self.sites.of_objects if call.place is EAGER else {}
        for pair in pairs:
            try:
                if isinstance(pair, pair_types) and len(pair) == 2:  # else it will be refused
                    gradient, variable = pair
                    kind = self._kind_of(gradient)
                    key = id(variable), method, "request", kind, call.replica, optimizer
                    known = known_ones.get(key)
                    site = known[1] if known is not None and known[0]() is variable else None
                    if site is None:  # a known variable needs no call: this runs for each
                        site = self._site_of(call, optimizer, method, "request", kind, variable)
                    if site is not None:
                        call.sites.append(site)
                        if call.place is not EAGER:
                            self.backend.requested(call, gradient)
                        if effects is not None:
                            effects.hold(call, self.sites.sites[site].variable, variable)
            except BaseException as error:
                self.fault(error)
            yield pair

    def site_of(
        self,
        optimizer: int,
        method: str,
        role: Role,
        kind: Kind | None,
        variable: object,
        place: Place = EAGER,
        replica: int = 0,
    ) -> int:
        """The number of the site of a variable; the first request assigns it."""
        index = self.variables.index(variable, place.graph)
        if replica not in self.devices:
            self.devices[replica] = self.backend.device_of(variable)
        return self.sites.number(optimizer, method, role, kind, index, replica)

    def variables_of(self, sites: Iterable[int], role: Role = "update") -> dict[int, Any]:
        """The variables, by index, of the sites with this role; None for one that is gone."""
        found = {}
        for number in sites:
            site = self.sites.sites[number]
            if site.role == role and site.variable is not None:
                found[site.variable] = self.variables.objects[site.variable]()
        return found

    def close(self, call: Call, failed: bool, error: BaseException | None = None) -> None:
        """End a call; if it closes a block, count it: in eager mode now, otherwise in its graph.

        Its sites go to its parent, unless the parent is in another place: then they are a block.

        `failed` if an exception ended the call: `error`, for a step or group method.
        """
        for inside in self.calls_under_way.take_off(call):
            self.abandon(inside)
        step = None if error is None else outermost(call)
        if isinstance(step, Step) and step.numbers:
            self.note(_TORN)
        # A call that raised after part of its work counts as executed.
        ran = not failed or any(self.sites.sites[each].role != "request" for each in call.sites)
        if ran and not (failed and len(call.own) > 1):
            call.sites += call.own
        else:  # which of many updates ran is unknown
            self._note_failed(call)
        if ran and call.sites:
            self.blocks.note(call, failed)
            parent = call.parent
            if parent is not None and parent.place == call.place:
                parent.sites += call.sites
                parent.site_notes += call.site_notes
            else:
                self.blocks.close(call, failed)
        if isinstance(call, Step):
            self.end_step(call, failed)
        if isinstance(step, Step):
            # A replica that waits for another thread may only get a request to stop, no reason.
            leaves = call.parent is None or call.parent.thread != call.thread
            if leaves and type(error).__name__ not in self.backend.raised_to_stop:
                self.collectors.call("step_raised", step, error)
        call.extra = None

    def end_step(self, step: Step, failed: bool = False) -> None:
        """Note that a step has ended, and tell the collectors if it is an outermost one."""
        self._ended(step)  # until now it was under way for readers
        if step.parent is None and not failed:
            if self.optimizers.stateless:
                self.optimizers.first_step_ended()
                self.collectors.call("first_step_ends", step)
            if step.place is EAGER:
                self.collectors.call("step_ends", step)
            else:
                self.collectors.call("step_traced", step)
        step.before = None
