"""What one root optimizer did: each of its calls is reported here, and is a frame meanwhile.

A `Recorder` belongs to a root optimizer and the optimizers nested in it. `hooks.wrapping` makes it
when the first of them is wrapped, and it lives as long as one of them, or a graph that it counts
in. Each traced method calls it on the thread that trains: `enter` and `leave` around a step or a
group, `enter_apply` and `leave_apply` around an apply method, `requests` with the gradients that
are handed over. A *frame* is a call under way.

A frame whose parent is in the same graph hands its sites to the parent; a frame whose parent is in
another graph, or that has none, closes a block: all that was traced into this graph since executes
as a whole, so it gets one counter (`tensorflow.blocks`). That one rule covers `tf.function`, loops,
branches, XLA and eager mode, where a step is the block. `tensorflow.places` finds the parent.

Any number of threads may train. A frame and the stack it is on belong to the thread that made the
call (but see `calls`). What threads share is `CallsUnderWay.steps`, a list whose changes are
atomic; the table of sites and that of variables, each with a lock of its own, under which nothing
else is asked for; and the counters, whose lock comes before all others. A call of a known variable
in eager mode takes no lock. What has been counted is read by `snapshot`, from any thread.

What fails in here is the tracer's fault: the traced methods hand it to `fault`, from which on they
call the recorder no more, and training goes on.
"""

import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

from tracer.core.backend import Backend, Root
from tracer.core.calls import EAGER, Frame, FrameRole, applying, outermost
from tracer.core.collectors import Collectors
from tracer.core.interrupts import interrupt_in
from tracer.core.optimizers import Optimizers
from tracer.core.snapshot import Reader
from tracer.kinds import ApplyMethod
from tracer.model.records import Kind, Role

_latest: object = None
"""The table of sites of the recorder that stepped last: each has one, which is small."""


class Recorder(Root):
    """Everything that is known of one root optimizer; thread-safe."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.optimizers: Optimizers = Optimizers(backend)
        self.variables = backend.new_variables(self)
        self.blocks = backend.new_blocks(self)
        self.collectors = Collectors(self)
        self.blocks.counters.stepped = self._take_turn
        self.broken = False
        self.compares_for_program = False
        """Whether the program asked for effects, not only a block of `record`."""
        self.reader = Reader(self)
        # Asked at each call of an apply method.
        self._in_eager = backend.in_eager
        self._update_replica_id = backend.update_replica_id
        self._kind_of = backend.kind_of_gradient

    @property
    def used(self) -> bool:
        """Whether any call was seen."""
        return bool(self.sites.calls)

    def end(self, optimizer: int) -> None:
        """Tracing of an optimizer ends; what was counted stays, and functions keep their graphs."""
        self.optimizers.end(optimizer)
        self.blocks.end()

    def compare(self, wanted: bool, *, retrace: bool = True) -> None:
        """Compare the variables before and after each step from now on, or no more.

        If `retrace`, functions that were traced before are traced anew at their next call.
        """
        if self.blocks.compare(wanted) and retrace and self.blocks.counters.in_programs:
            self.blocks.forget_graphs()

    @property
    def effects(self) -> Any:
        """What compares the variables of each step now: see `counters.Effects`; None if nothing."""
        return self.blocks.counters.effects

    # Calls.

    def enter(
        self, frame: Frame, optimizer: int, method: str, role: FrameRole, caller: Any = None
    ) -> None:
        """A call of a step or group method begins.

        `caller` is Python's frame that makes it, if it is not that which called the method.
        """
        stack = self.calls_under_way.stack()
        if stack and role == "step":
            self.drop_interrupted(sys._getframe())
        self.backend.locate(frame, role, stack, self.calls_under_way)
        if role == "step":
            if optimizer not in self.optimizers.stepping:
                self.optimizers.first_step(optimizer)
            site = self.sites.number(optimizer, method, "step", None, None, frame.replica)
            frame.own = (site,)
            if frame.place is not EAGER:
                self.sites.traced(site)
            elif frame.parent is None:
                if _latest is not self.sites:
                    self._take_turn()
                self.blocks.find_path(frame, caller or sys._getframe(2))
            self.calls_under_way.steps.append(frame)
            if frame.distributed and not self.where.strategy:
                self.where = self.backend.surroundings()
        frame.recorder = self
        stack.append(frame)

    def enter_apply(
        self, optimizer: int, apply: ApplyMethod, gradient: Any, variable: Any
    ) -> Frame | None:
        """A call of an apply method begins, with this gradient on this variable, or with many.

        Returns the frame to leave it by; None if that is no variable, which the framework will
        refuse.

        Training in eager mode waits for each of these calls, so one of a known variable, as all are
        after the first step, has no frame of its own. Its site is left in the frame of its step, as
        `pending`, and that frame is what is returned; `leave_apply` knows it by its role.
        """
        stack = self.calls_under_way.stack()
        top = stack[-1] if stack else None
        fast = top is not None and top.place is EAGER and not (top.distributed or apply.many)
        if top is not None and fast and self._in_eager():
            step = top.parent if top.gathers and top.parent is not None else top
            if not step.applying:
                number = self._update_replica_id()
                kind = apply.kind or self._kind_of(gradient)
                replica = top.replica if number is None else number
                key = id(variable), apply.name, "update", kind, replica, optimizer
                known = self.sites.of_objects.get(key)
                if known is not None and known[0]() is variable:
                    step.applying = True
                    step.pending = known[1]
                    return step
        if apply.many and not (isinstance(gradient, Sequence) and isinstance(variable, Sequence)):
            return None
        frame = Frame()
        self.backend.locate(frame, "apply", stack, self.calls_under_way)
        frame.python = self.backend.caller_of(sys._getframe(1))
        parent = frame.parent
        role: Role = "apply" if parent is not None and applying(parent) else "update"
        pairs = zip(gradient, variable, strict=False) if apply.many else ((gradient, variable),)
        frame.own = self._sites_of(frame, optimizer, apply, role, pairs)
        if not apply.many:
            if not frame.own:
                return None
            if frame.place is not EAGER or role == "update":
                frame.variable = variable
            if frame.place is EAGER and role == "update":
                frame.before = self.blocks.write_checks.look(frame.own[0], variable)
        frame.recorder = self
        stack.append(frame)
        return frame

    def updated(
        self, frame: Frame, optimizer: int, apply: ApplyMethod, pairs: Iterable[Any]
    ) -> list[int]:
        """The step `frame` made updates by itself: with these gradients, of these variables.

        Returns the sites of them, which are those of the frame from now on.
        """
        sites = self._sites_of(frame, optimizer, apply, "update", pairs)
        frame.sites += sites
        return sites

    def _sites_of(
        self, frame: Frame, optimizer: int, apply: ApplyMethod, role: Role, pairs: Iterable[Any]
    ) -> list[int]:
        """The sites of calls of an apply method with these gradients, on these variables."""
        sites = []
        for gradient, variable in pairs:
            kind = apply.kind or self._kind_of(gradient)
            site = self._site_of(frame, optimizer, apply.name, role, kind, variable)
            if site is not None:
                sites.append(site)
                if frame.place is not EAGER:
                    self.sites.traced(site)
        return sites

    def leave_apply(self, frame: Frame, result: Any, failed: bool) -> None:
        """A call of an apply method ends; `frame` is what `enter_apply` returned."""
        if failed:  # its step, which may be on another thread, will raise next
            step = outermost(frame)
            own = frame.own if frame.role == "apply" else (frame.pending,)
            if frame.place is EAGER:
                for site in own:
                    self._note_raised_in_apply(site)
            if len(own) == 1 and step.failing is None:
                step.failing = self.sites.sites[own[0]].variable
        if frame.role == "apply":
            frame.result, frame.python = result, None
            if not failed and frame.variable is not None:
                self._note_writing(frame, frame.own[0])
            self.leave(frame, failed)
            return
        frame.applying = False
        if failed:
            self.sites.failed(frame.pending)
        else:
            frame.sites.append(frame.pending)

    def _note_raised_in_apply(self, number: int) -> None:
        """Say that nobody knows what the call had written; once for each variable."""
        site = self.sites.sites[number]
        name = "a variable" if site.variable is None else self.variables.plain[site.variable].name
        first = f"{site.method} raised on {name}, first in step "
        if not any(each.startswith(first) for each in self.notes):
            self.note(
                f"{first}{self._step_count() + 1}: whether it had updated the variable is not "
                "known, and such calls are not counted"
            )

    def _raised(self, frame: Frame, error: BaseException) -> None:
        """A step or group method was ended by an exception.

        A replica that waits for what another thread does may only be told to stop, and not why.
        """
        around = outermost(frame)
        if around is not frame:
            if around.error is None:
                around.error = error
            return
        if self.backend.is_told_to_stop(error):
            if frame.error is None:
                return  # that replica says it for which the other thread worked
            error = frame.error
        frame.error = None  # it refers to Python's frames
        if frame.role != "step":
            return
        self.collectors.call("step_raised", frame, error)

    def called(self) -> None:
        """A function with a step in it is called."""
        if _latest is not self.sites:
            self._take_turn()
        self.collectors.call("function_called")

    def _take_turn(self) -> None:
        """A step begins, or a program with one runs: tell it, if another recorder had the last."""
        global _latest
        # Threads that step at once may both take a turn, or none.
        if _latest is not self.sites:
            _latest = self.sites
            self.optimizers.take_turn()

    def _note_writing(self, frame: Frame, number: int) -> None:
        """Find out whether an apply method has written to its variable; in a graph, by and by."""
        site = self.sites.sites[number]
        if site.role != "update":
            return
        checks = self.blocks.write_checks
        if frame.before is not None:
            if not checks.look_again(number, frame.variable, frame.before):
                self.sites.forget_object(frame.variable, site)  # so that it comes here again
        elif frame.place.graph is not None:
            in_function = checks.traced(number, frame)
            if in_function and frame.result is None:
                self.optimizers.returned_nothing(site.optimizer, site.method)

    def drop_interrupted(self, at: Any) -> None:
        """Forget calls that an exception ended before they could leave: `at` is no part of them."""
        for frame in self.calls_under_way.abandoned(at):
            self.abandon(frame)

    def abandon(self, frame: Frame) -> None:
        """An exception ended a call before it could leave; whoever finds that first notes it."""
        if frame.role == "step":
            try:
                self.calls_under_way.steps.remove(frame)
            except ValueError:
                return
        if frame.interrupted:
            self.note(frame.interrupted)
        for site in frame.own if frame.place is EAGER else ():
            self.sites.failed(site)
        if frame.numbers:
            self.blocks.counters.give_up(frame.numbers)

    def _ended(self, frame: Frame, ran: bool) -> None:
        """A step is under way no more. Threads share the list: each change to it is atomic."""
        if not ran and frame.numbers:
            self.blocks.counters.give_up(frame.numbers)
        if frame in self.calls_under_way.steps:
            self.calls_under_way.steps.remove(frame)

    def _site_of(
        self, frame: Frame, optimizer: int, method: str, role: Role, kind: Kind, variable: Any
    ) -> int | None:
        """The site of a variable, None if it is none; known ones are found by its id, fast."""
        replica = frame.replica
        eager = frame.place is EAGER
        if eager:
            key = id(variable), method, role, kind, replica, optimizer
            known = self.sites.of_objects.get(key)
            if known is not None and known[0]() is variable:
                return known[1]
        if not (hasattr(variable, "name") and hasattr(variable, "dtype")):
            return None
        index = self.variables.index(variable, frame.place.graph)
        if replica not in self.devices:
            self.devices[replica] = self.backend.device_of(variable)
        site = self.sites.number(optimizer, method, role, kind, index, replica)
        if eager:
            self.sites.of_objects[key] = (ref(variable), site)
        return site

    def requests(
        self,
        frame: Frame,
        optimizer: int,
        method: str,
        pairs: Iterable[Any],
        *,
        compared: bool = True,
    ) -> Iterator[Any]:
        """`pairs`, gradients with their variables, which reached the outermost step method `frame`.

        A pair is noted when it is taken, and if effects are asked for its variable is `compared`.
        """
        effects = self.effects if compared else None
        known_ones = self.sites.of_objects if frame.place is EAGER else {}
        replica, sites, kind_of = frame.replica, frame.sites, self._kind_of
        for pair in pairs:
            before = len(sites)
            try:
                known = None
                if type(pair) is tuple and len(pair) == 2:
                    gradient, variable = pair
                    key = id(variable), method, "request", kind_of(gradient), replica, optimizer
                    known = known_ones.get(key)
                if known is not None and known[0]() is variable:
                    sites.append(known[1])
                else:
                    self._request(frame, optimizer, method, pair)
                if effects is not None and len(sites) > before:
                    effects.hold(frame, self.sites.sites[sites[-1]].variable, pair[1])
            except BaseException as error:
                self.fault(error)
            yield pair

    def look_before(self, frame: Frame) -> None:
        """Note what the variables hold that the first step is handed, which begins now."""
        if frame.place is EAGER:
            variables = [own for _, own in self.handed(frame.sites) if own is not None]
            self.collectors.call("first_step_begins", variables)

    def _request(self, frame: Frame, optimizer: int, method: str, pair: Any) -> None:
        """Note one pair, unless the framework will refuse it."""
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            return
        gradient, variable = pair
        if getattr(variable, "overwrite_with_gradient", False):
            return  # Keras assigns the gradient to it, as to the scales of float8
        kind = self._kind_of(gradient)
        site = self._site_of(frame, optimizer, method, "request", kind, variable)
        if site is not None:
            frame.sites.append(site)
            if frame.place is not EAGER and frame.gradient is None:
                frame.gradient = self.backend.tensor_of(gradient)

    # Of a step that is counted at once, when it has ended.

    def site_of(
        self, optimizer: int, method: str, role: Role, kind: Kind | None, variable: Any
    ) -> int:
        """The number of the site of a variable, in eager mode."""
        index = self.variables.index(variable, None)
        if 0 not in self.devices:
            self.devices[0] = self.backend.device_of(variable)
        return self.sites.number(optimizer, method, role, kind, index, 0)

    def step_site(self, optimizer: int, method: str) -> int:
        """The number of the site of a step method, in eager mode."""
        return self.sites.number(optimizer, method, "step", None, None, 0)

    def variables_of(self, sites: Iterable[int], role: Role = "update") -> dict[int, Any]:
        """The variables of those of these sites that have this role: the index of each, and it.

        None stands for one that is gone.
        """
        found = {}
        for number in sites:
            site = self.sites.sites[number]
            if site.role == role and site.variable is not None:
                variable = self.variables.objects[site.variable]
                found[site.variable] = None if variable is None else variable()
        return found

    def step_traced(self, optimizer: int, method: str, updates: Iterable[int]) -> None:
        """A step method was called to build a program, with the sites of its updates."""
        frame = Frame()
        frame.own = (self.step_site(optimizer, method),)
        self.blocks.find_path(frame, sys._getframe(1))
        for site in (*frame.own, *updates):
            self.sites.traced(site)
            self.blocks.callers.traced[site, frame.path] += 1

    def step_raised(self, optimizer: int, method: str) -> None:
        """A call of a step method was ended by an exception."""
        self.sites.failed(self.step_site(optimizer, method))

    def leave(self, frame: Frame, failed: bool, error: BaseException | None = None) -> None:
        """A call ends; a block that it closes is counted: now in eager mode, else in its graph.

        It `failed` if an exception ended it: `error`, of a step or group method.
        """
        stack = self.calls_under_way.stack()
        if stack and stack[-1] is frame:
            stack.pop()
        else:  # something between entered and left out of order
            stack[:] = [other for other in stack if other is not frame]
        sites, own, parent, eager = frame.sites, frame.own, frame.parent, frame.place is EAGER
        is_step = frame.role == "step"
        called = failed and frame.numbers is not None  # what ran in there the counters tell
        ran = not failed or any(self.sites.sites[number].role != "request" for number in sites)
        if error is not None:
            numbers = outermost(frame).numbers
            if numbers and self.backend.may_have_run(error):
                self.blocks.counters.tear(numbers)
        if (ran or called) and not (failed and len(own) > 1):
            sites += own  # what raises after a part of its work ran was executed, so far
        elif eager:
            for site in own:  # which of many updates ran, none knows
                self.sites.failed(site)
        if (ran or called) and sites:
            self.blocks.note(frame)
            if parent is not None and (parent.place is frame.place or parent.place == frame.place):
                parent.sites += sites
                parent.site_notes += frame.site_notes
            else:
                self.blocks.close(frame, failed)
        if is_step:  # until now, for who reads meanwhile
            self._ended(frame, ran)
            if self.optimizers.stateless and parent is None and not failed:
                self.optimizers.first_step_ended()
                self.collectors.call("first_step_ends", frame)
            if not eager:
                if parent is None and not failed:
                    self.collectors.call("step_traced", frame)
            elif self.collectors.watch_steps and not failed:
                self.collectors.call("step_ends", frame)
        if error is not None:
            self._raised(frame, error)
        frame.gradient = frame.variable = frame.before = frame.extra = None

    def handed(self, sites: Iterable[int]) -> Iterable[tuple[int, Any]]:
        """The variables of which a step got a gradient: the index of each, and it or None."""
        return self.variables_of(sites, "request").items()

    # Faults and notes.

    def fault(self, error: BaseException) -> None:
        """Something failed in the tracer itself: say so once, and let training go on untraced.

        An exception of the program is raised again.
        """
        interrupt = interrupt_in(error)
        if interrupt is not None:
            self.note(
                f"{type(interrupt).__name__} interrupted the tracer: what the program did just "
                "then may not be counted"
            )
            raise interrupt
        if self.broken:
            return
        self.broken = True
        step = self._step_count() + 1
        self.note(
            f"the tracer failed with {type(error).__name__}: {error}; nothing is counted from step "
            f"{step} on"
        )
        text = (
            f"tracer: {type(error).__name__}: {error}. Training goes on, untraced from step {step} "
            "on. This is a bug in tracer: please report it."
        )
        try:
            warnings.warn(text, RuntimeWarning, stacklevel=4)
        except RuntimeWarning:  # warnings are errors here, but this one must not stop training
            print(text, file=sys.stderr)

    def _step_count(self) -> int:
        try:
            return self.blocks.counters.steps()
        except Exception:
            return 0  # asked after a fault too, and the ledger may be what is broken
