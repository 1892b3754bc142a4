"""What one root optimizer did: its calls, its blocks and where they are counted.

A `Recorder` belongs to a root optimizer and the optimizers nested in it. `wrap` tells it of every
call; a *frame* is a call under way. A frame whose parent is in the same graph hands its sites to
the parent; a frame whose parent is in another graph, or that has none, closes a block: all that was
traced into this graph since executes as a whole, so it gets one counter. That one rule covers
`tf.function`, loops, branches, XLA and eager mode, where a step is the block.

A frame's parent is in the same **region**: in eager mode, or in the graph of one function with its
branches and loops. What a function is part of is not decided when it is traced, for it may be
called from anywhere later: each call of it asks (`Recorder.company`), and the graph counts by the
answer. See `tracer.ledger`.
"""

import sys
import threading
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, repeat
from typing import Any, Literal, NamedTuple
from weakref import ref

from tracer import compat, snapshot
from tracer.inspection import OWN_STEP
from tracer.kinds import ApplyMethod
from tracer.ledger import HostLog, Ledger
from tracer.model.records import (
    Graph,
    Kind,
    Method,
    Replica,
    Role,
    TraceData,
)
from tracer.model.trace import Trace
from tracer.older import Older
from tracer.optimizers import Optimizers
from tracer.sessions import PartsOfSteps
from tracer.snapshot import BlockKey, Reading, Site
from tracer.stamps import APPLYING, UNIT, WITHIN
from tracer.tracings import Figures, Key, Tracings
from tracer.variables import VariableTable, device_of, finder

FrameRole = Literal["step", "group", "apply"]
"""What is called: a step method, a group method or an apply method: see `tracer.kinds`."""


class _Place(NamedTuple):
    """Where a frame's ops go: None for eager mode; v1 branches share a graph, not a context."""

    graph: Any
    branch: Any
    region: Any
    """The graph of the function around it that is called: see `compat.called_graph`."""


class _Block(NamedTuple):
    """What a block is; blocks that are equal do the same each time they execute."""

    replica: int
    function: str
    """The name of the function whose graph it is; empty in eager mode."""
    step: bool
    """Whether it is a step where it is not part of one."""
    sites: tuple[int, ...]


_EAGER = _Place(None, None, None)

_PAIR = (tuple, list)

_Requested = tuple[type, Callable[[], Any], int]
"""The type of a gradient, its variable, held weakly, and their site."""

_NOT_REQUESTED: _Requested = (Any, lambda: None, -1)


class _Read(NamedTuple):
    """What was counted on a replica: see `snapshot.Begun`."""

    steps: int
    blocks: dict[Hashable, tuple[_Block, Reading]]
    under_way: frozenset[int]
    empty: frozenset[int]
    calm: bool

    @property
    def past(self) -> int:
        """The last step before all that are under way."""
        return min(self.under_way, default=self.steps + 1) - 1


_NOTHING_READ = _Read(0, {}, frozenset(), frozenset(), True)

_Readings = dict[int, _Read]


class Moment(NamedTuple):
    """What had been counted at some moment."""

    readings: _Readings
    calls: Sequence[Sequence[int]]
    graphs: dict[Key, Figures]
    older: dict[Older, int]
    iterations: dict[int, int]
    notes: frozenset[str] = frozenset()


def _key_of(block: _Block, sites: Sequence[Site]) -> BlockKey:
    return BlockKey(
        "graph" if block.function else "eager",
        block.function,
        block.step,
        tuple(sites[number] for number in block.sites),
    )


class Frame:
    """A call of an intercepted method that is under way. Nothing in it may refer to itself."""

    __slots__ = (
        "applying",
        "distributed",
        "gathers",
        "gradient",
        "numbers",
        "parent",
        "pending",
        "place",
        "python",
        "recorder",
        "replica",
        "result",
        "role",
        "run",
        "site",
        "sites",
        "stamps",
        "start",
        "thread",
        "updates",
        "variable",
    )

    recorder: "Recorder"
    role: FrameRole
    place: _Place
    replica: int
    distributed: bool
    parent: "Frame | None"
    applying: bool
    """Whether an apply method is under way here: what it calls is no update of its own."""
    pending: int
    """The site of that apply method, if it has no frame of its own: see `Recorder.enter_apply`."""
    gathers: bool
    """Whether it is a group in the graph of its step: calls made from here are its parent's."""
    site: int | None
    sites: list[int]
    result: Any
    python: Any
    """Python's frame of the method, while it runs."""
    start: int
    """How many operations the graph had before."""
    numbers: dict[int, int] | None
    """The numbers, by replica, of the step that it is in eager mode, as far as they were asked
    for; a step in a cross-replica context is one of each replica."""
    stamps: dict[int, tuple[Any, Any]] | None
    """The same in a graph: for each replica its stamp and that of what is part of it, tensors."""
    updates: list[tuple[list[Any], int]]
    """In a graph of a Session: the ops of each update in it, with its site."""
    variable: Any
    """In such a graph: what an apply method updates."""
    gradient: Any
    """The first gradient that it was handed in a graph, None if there was none yet. A step begins
    when this one is there: it is that of the first layer, as a rule, which needs all data and comes
    last. A gradient that needs no data (of the last bias, for a loss that is a mean) is there even
    if the data are not."""
    thread: int
    run: int
    """The thread and the call of `strategy.run` in which it began: see `compat.runs_under_way`."""


class Recorder:
    """Everything that is known of one root optimizer; thread-safe."""

    def __init__(self) -> None:
        self.optimizers = Optimizers()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._variables = VariableTable(self.note)
        self._sites: list[Site] = []
        self._numbers: dict[tuple[Any, ...], int] = {}  # the place of each site in `_sites`
        self._applies: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}
        self._orders: dict[tuple[int, str, int], tuple[_Requested, ...]] = {}
        self._calls: list[list[int]] = []  # for each site [failed in eager mode, tracing]
        self._devices: dict[int, str] = {}
        self._steps: Counter[int] = Counter()
        self._ledgers: dict[int, Ledger] = {}
        self._logs: dict[_Block, HostLog] = {}
        self._graphs: Counter[_Block] = Counter()  # tracings into v1 graphs
        self._tracings = Tracings()
        self._active: list[Frame] = []
        self._empty: dict[int, set[int]] = defaultdict(set)
        self._callers: set[int] = set()
        self._parts = PartsOfSteps(self._ran_without_step)
        self._where = compat.Surroundings("", "", ())
        self._notes: dict[str, None] = {}
        self.broken = False

    @property
    def used(self) -> bool:
        """Whether any call was seen."""
        return bool(self._calls)

    def begin(self, optimizer: int) -> None:
        """Tracing begins, or goes on, with an optimizer that may have been used before."""
        counters = [handle for ledger in self._ledgers.values() for handle in ledger.handles()]
        self.optimizers.begin(optimizer, counters)

    def end(self, optimizer: int) -> None:
        """Tracing of an optimizer ends; what was counted stays."""
        self.optimizers.end(optimizer)
        self._parts.stop()

    # Calls.

    def enter(self, frame: Frame, optimizer: int, method: str, role: FrameRole) -> None:
        """A call of a step or group method begins."""
        stack = self._stack()
        if stack and role == "step":
            self._drop_interrupted(stack)
        self._place(frame, role, stack)
        if role == "step":
            frame.site = self._site(optimizer, method, "step", None, None, frame.replica)
            if frame.place is not _EAGER:
                self._called(frame.site)
            self._active.append(frame)
            if frame.distributed and not self._where.strategy:
                self._where = compat.surroundings()
        stack.append(frame)

    def enter_apply(
        self, optimizer: int, apply: ApplyMethod, gradient: Any, variable: Any
    ) -> Frame | None:
        """A call of an apply method begins, with this gradient on this variable.

        Returns the frame to leave it by; None if that is no variable, which the framework will
        refuse. In eager mode it is the frame of the step: training waits for each of these calls,
        and one that is of a known variable, as all are after the first step, needs no more.
        """
        stack = self._stack()
        top = stack[-1] if stack else None
        if top is not None and top.place is _EAGER and not top.distributed and compat.in_eager():
            step = top.parent if top.gathers and top.parent is not None else top
            if not step.applying:
                number = compat.update_replica_id()
                kind = apply.kind or kind_of_gradient(gradient)
                replica = top.replica if number is None else number
                key = id(variable), apply.name, "update", kind, replica, optimizer
                known = self._applies.get(key)
                if known is not None and known[0]() is variable:
                    step.applying = True
                    step.pending = known[1]
                    return step
        frame = Frame()
        frame.recorder = self
        frame.python = _python_frame()
        frame.result = None
        self._place(frame, "apply", stack)
        parent = frame.parent
        kind = apply.kind or kind_of_gradient(gradient)
        role: Role = "apply" if parent is not None and _applying(parent) else "update"
        site = self._site_of(frame, optimizer, apply.name, role, kind, variable)
        if site is None:
            return None
        frame.site = site
        if frame.place is not _EAGER:
            self._called(site)
            frame.variable = variable
        stack.append(frame)
        return frame

    def leave_apply(self, frame: Frame, result: Any, failed: bool) -> None:
        """A call of an apply method ends; `frame` is what `enter_apply` returned."""
        if frame.role == "apply":
            frame.result, frame.python = result, None
            self.leave(frame, failed)
            return
        frame.applying = False
        if failed:
            self._failed(frame.pending)
        else:
            frame.sites.append(frame.pending)

    def _place(self, frame: Frame, role: FrameRole, stack: list[Frame]) -> None:
        """Find out where a call is made, and what it is part of."""
        top = stack[-1] if stack else None
        place = _EAGER if compat.in_eager() else _place_of(compat.current_graph())
        parent: Frame | None
        if top is not None and not top.distributed and top.place == place:
            distributed, replica = False, top.replica
            parent = top.parent if top.gathers else top
            if role == "apply":
                number = compat.update_replica_id()
                replica = replica if number is None else number
        else:
            distributed = compat.has_strategy()
            replica, parent = 0, None
            if distributed or top is not None or place is not _EAGER:
                replica = self._replica(role, top, distributed)
                parent = self._parent(role, place, replica, stack, distributed)
        frame.role = role
        frame.place = place
        frame.replica = replica
        frame.distributed = distributed
        frame.parent = parent
        frame.applying = role == "apply" or (parent is not None and _applying(parent))
        frame.gathers = role == "group" and parent is not None and parent.place == place
        frame.site = None
        frame.sites, frame.updates = [], []
        frame.start = 0 if place is _EAGER else place.graph.num_operations()
        frame.numbers = frame.stamps = frame.gradient = frame.variable = None
        frame.thread, frame.run = threading.get_ident(), 0
        if distributed:
            frame.run = id(compat.replica_run())

    def _called(self, site: int) -> None:
        """Count a call while tracing; one in eager mode is counted by its block, or failed."""
        with self._lock:
            self._calls[site][1] += 1

    def _failed(self, site: int) -> None:
        """Count a call in eager mode that was no execution."""
        with self._lock:
            self._calls[site][0] += 1

    def _drop_interrupted(self, stack: list[Frame]) -> None:
        """Forget calls that an interrupt (Ctrl-C) ended before they could leave."""
        running = set()
        python: Any = sys._getframe()
        while python is not None:
            if python is stack[-1].python:
                return  # and so are those below, as they were when it began
            running.add(id(python))
            python = python.f_back
        ended = [frame for frame in stack if id(frame.python) not in running]
        if ended:
            self.note("a call was interrupted, and what it had run until then is not counted")
            for frame in ended:
                self._ended(frame, ran=False)
            stack[:] = [frame for frame in stack if frame not in ended]

    def _ended(self, frame: Frame, ran: bool) -> None:
        """A step is under way no more. Threads share the list: each change to it is atomic."""
        if not ran and frame.numbers:
            for replica, number in frame.numbers.items():
                self._empty[replica].add(number)
        if frame in self._active:
            self._active.remove(frame)

    def _site_of(
        self, frame: Frame, optimizer: int, method: str, role: Role, kind: Kind, variable: Any
    ) -> int | None:
        """The site of a variable, None if it is none; known ones are found by its id, fast."""
        replica = frame.replica
        eager = frame.place is _EAGER
        if eager:
            key = (id(variable), method, role, kind, replica, optimizer)
            known = self._applies.get(key)
            if known is not None and known[0]() is variable:
                return known[1]
        if not (hasattr(variable, "name") and hasattr(variable, "dtype")):
            return None
        index = self._variables.index(variable, frame.place.graph)
        if replica not in self._devices:
            self._devices[replica] = device_of(variable)
        site = self._site(optimizer, method, role, kind, index, replica)
        if eager:
            self._applies[key] = (ref(variable), site)
        return site

    def _site(
        self,
        optimizer: int,
        method: str,
        role: Role,
        kind: Kind | None,
        variable: int | None,
        replica: int,
    ) -> int:
        """The number of a site."""
        fields = (optimizer, method, role, kind, variable, replica)
        number = self._numbers.get(fields)
        if number is None:
            with self._lock:
                number = self._numbers.setdefault(fields, len(self._sites))
                if number == len(self._sites):
                    self._sites.append(Site(*fields))
                    self._calls.append([0, 0])
        return number

    def requests(
        self, frame: Frame, optimizer: int, method: str, pairs: Iterable[Any]
    ) -> Iterator[Any]:
        """`pairs`, gradients with their variables, which reached the outermost step method `frame`.

        A pair is noted when it is taken. In eager mode each step usually has those of the one
        before, in their order.
        """
        key = optimizer, method, frame.replica
        order = self._orders.get(key, ()) if frame.place is _EAGER else ()
        changed: list[_Requested] | None = None
        for place, pair in enumerate(pairs):
            known = order[place] if place < len(order) else _NOT_REQUESTED
            if (
                type(pair) is tuple
                and len(pair) == 2
                and type(pair[0]) is known[0]
                and known[1]() is pair[1]
            ):
                frame.sites.append(known[2])
            else:
                known = _NOT_REQUESTED
                try:
                    known = self._request(frame, optimizer, method, pair)
                except Exception as error:
                    self.fault(error)
                if changed is None and frame.place is _EAGER:
                    changed = list(order[:place])
            if changed is not None:
                changed.append(known)
            yield pair
        if changed is not None:
            self._orders[key] = tuple(changed)

    def _request(self, frame: Frame, optimizer: int, method: str, pair: Any) -> _Requested:
        """Note one pair that is not what the step before had in its place."""
        if not isinstance(pair, _PAIR) or len(pair) != 2:
            return _NOT_REQUESTED  # the framework will refuse it
        gradient, variable = pair
        kind = kind_of_gradient(gradient)
        site = self._site_of(frame, optimizer, method, "request", kind, variable)
        if site is None:
            return _NOT_REQUESTED
        frame.sites.append(site)
        if frame.place is _EAGER:
            return type(gradient), ref(variable), site
        if frame.gradient is None:
            frame.gradient = compat.tensor_of(gradient)
        return _NOT_REQUESTED

    def leave(self, frame: Frame, failed: bool) -> None:
        """A call ends; a block that it closes is counted: now in eager mode, else in its graph."""
        stack = self._stack()
        if stack and stack[-1] is frame:
            stack.pop()
        else:  # something between entered and left out of order
            stack[:] = [each for each in stack if each is not frame]
        sites, site, parent = frame.sites, frame.site, frame.parent
        ran = not failed or any(self._sites[number].role != "request" for number in sites)
        if site is not None:
            if ran:  # what raises after a part of its work ran was executed, as far as it came
                sites.append(site)
            elif frame.place is _EAGER:
                self._failed(site)
        if frame.role == "step":
            self._ended(frame, ran)
        if ran and sites:
            if frame.variable is not None and not compat.eager_outside_functions():
                self._note_update(frame)
            if parent is not None and (parent.place is frame.place or parent.place == frame.place):
                parent.sites += sites
                parent.updates += frame.updates
            else:
                self._close(frame)
        frame.gradient = frame.stamps = frame.variable = None

    def _stack(self) -> list[Frame]:
        try:
            stack: list[Frame] = self._local.stack
        except AttributeError:
            stack = self._local.stack = []
        return stack

    def _replica(self, role: FrameRole, top: Frame | None, distributed: bool) -> int:
        number = None
        if distributed:
            number = compat.update_replica_id() if role == "apply" else None
            number = compat.replica_id() if number is None else number
        if number is None:  # no strategy, or a call for all replicas
            number = top.replica if top is not None else 0
        return number

    def _parent(
        self,
        role: FrameRole,
        place: _Place,
        replica: int,
        stack: list[Frame],
        distributed: bool,
    ) -> Frame | None:
        """The frame that a call is part of: that of its replica in its region, if there is one.

        It may be on another thread. A strategy runs the update, and the inner optimizer of a loss
        scale, on other threads than the `apply_gradients` that asked for it. In a graph that step
        is the one whose graph is this one or around it: no other thread traces into it. In eager
        mode it is one on whose behalf this thread works.
        """
        region = place.region
        own = next((each for each in reversed(stack) if each.place.region is region), None)
        if own is not None and own.role != "group":
            return own
        steps: list[Frame] = []
        active = list(self._active)
        if active and place.graph is not None:
            around = {id(graph) for graph in compat.graphs_around(place.graph)}
            steps = [
                step
                for step in active
                if step.place.region is region and id(step.place.graph) in around
            ]
        elif active and distributed:
            runs, threads = compat.runs_under_way()
            steps = [
                step
                for step in active
                if step.place is _EAGER and (step.run in runs or step.thread in threads)
            ]
        mine = [step for step in steps if step.replica == replica]
        if own is not None:
            return next((step for step in reversed(mine) if step.place == place), own)
        if role == "step":
            return mine[-1] if mine else None
        candidates = mine or steps
        return candidates[-1] if candidates else None

    # What a block is part of.

    def _company(self, replica: int) -> Any:
        """The stamp of what calls a function with a block of `replica`: asked at each call.

        In eager mode an eager tensor; while another function is traced a tensor in its graph.
        """
        ledger = self._ledgers[replica]
        try:
            stack = self._stack()
            if compat.in_eager():
                place = _EAGER
                self._callers.add(threading.get_ident())
            else:
                place = _place_of(compat.current_graph())
            frame = self._parent("apply", place, replica, stack, compat.has_strategy())
            if place is not _EAGER:
                return self._stamp_inside(frame, place, replica, calling=True)
            if frame is None:
                return ledger.alone
            step = self._step_around(frame, replica)
            stamp = 0 if step is None else UNIT * self._number_of(step, replica) | WITHIN
            if _applying(frame):
                stamp |= APPLYING
            return compat.constant(stamp) if stamp else ledger.alone
        except Exception as error:
            self.fault(error)
            return ledger.alone

    def _step_around(self, frame: Frame, replica: int) -> Frame | None:
        """The step that what is called from `frame` for `replica` is part of, in its region."""
        while frame.parent is not None:
            frame = frame.parent
        if frame.role != "step":
            return None
        if frame.replica != replica:  # each replica has a step of its own, or one serves all
            for step in list(self._active):
                alone = step.parent is None and step.replica == replica
                if alone and step.place.region is frame.place.region and step.run == frame.run:
                    return step
        return frame

    def _number_of(self, step: Frame, replica: int) -> int:
        """The number of a step in eager mode, which it takes when it is asked for first."""
        if step.numbers is None:
            step.numbers = {}
        number = step.numbers.get(replica)
        if number is None:
            number = step.numbers[replica] = self._take_number(replica)
        return number

    def _take_number(self, replica: int) -> int:
        with self._lock:
            ledger = self._ledgers.get(replica)
            if ledger is None:
                self._steps[replica] += 1
                return self._steps[replica]
        return ledger.take_number()

    def _stamps_of(self, step: Frame, replica: int) -> tuple[Any, Any]:
        """The stamp of a step in a graph, and that of what is part of it."""
        if step.stamps is None:
            step.stamps = {}
        stamps = step.stamps.get(replica)
        if stamps is None:
            ledger, graph = self._ledger(replica), step.place.graph
            after = [] if step.gradient is None else [step.gradient]
            with graph.as_default():
                company = self._asked(step.place.region, replica)
                stamps = step.stamps[replica] = ledger.begin_step(company, after)
        return stamps

    def _stamp_inside(
        self, frame: Frame | None, place: _Place, replica: int, calling: bool = False
    ) -> Any:
        """The stamp of what is part of `frame`, or of nothing in its region, in a graph.

        `calling` if it is for a function that is called, which cannot know what calls it.
        """
        step = None if frame is None else self._step_around(frame, replica)
        if step is None:
            stamp = self._asked(place.region, replica)
        else:
            stamp = self._stamps_of(step, replica)[1]
        if calling and frame is not None and _applying(frame):
            stamp = compat.with_flags(stamp, APPLYING)
        return stamp

    def _asked(self, region: Any, replica: int) -> Any:
        """The company of the function whose graph is `region`, a tensor of that graph."""
        return self._ledger(replica).company(region, partial(self._company, replica))

    def _ledger(self, replica: int) -> Ledger:
        with self._lock:
            ledger = self._ledgers.get(replica)
            if ledger is None:
                ledger = Ledger(self._devices.get(replica, ""), self._steps[replica])
                self._ledgers[replica] = ledger
            return ledger

    # Blocks.

    def _close(self, frame: Frame) -> None:
        alone = frame.parent is None and frame.role == "step"
        graph = frame.place.graph
        if graph is None and not frame.distributed:
            self._ran(_Block(frame.replica, "", alone, tuple(frame.sites)), frame)
            return
        by_replica: dict[int, list[int]] = defaultdict(list)
        for number in frame.sites:
            by_replica[self._sites[number].replica].append(number)
        name = "" if graph is None else compat.function_name(graph)
        for replica, numbers in by_replica.items():
            block = _Block(replica, name, alone, tuple(numbers))
            if graph is None:
                self._ran(block, frame)
            elif compat.eager_outside_functions():
                self._count_in_graph(block, frame)
            else:
                self._count_in_session(block, frame)

    def _ran(self, block: _Block, frame: Frame) -> None:
        """A block in eager mode has just been executed, a step or a call outside of every step."""
        stamp = UNIT * self._number_of(frame, block.replica) if block.step else 0
        self._log(block, stamp)

    def _log(self, block: _Block, stamp: int) -> None:
        with self._lock:
            log = self._logs.get(block)
            if log is None:
                log = self._logs[block] = HostLog()
            log.add(stamp)

    def _count_in_graph(self, block: _Block, frame: Frame) -> None:
        """Count a block in its graph, once its work is done: a step that fails is none.

        The counter waits for the stateful ops that were added since the call began, the updates;
        without that TensorFlow may run it although the gradients, or the data for them, never came.
        """
        graph = frame.place.graph
        if block.step:
            stamp = self._stamps_of(frame, block.replica)[0]
        else:
            stamp = self._stamp_inside(frame.parent, frame.place, block.replica)
        lifetime = compat.graphs_around(graph)[-1]
        work = compat.updates_since(graph, frame.start)
        use = self._ledger(block.replica).count(block, lifetime, stamp, work)
        with self._lock:
            self._tracings.add(graph, block.replica, block.step, use, self._steps_so_far)

    def _count_in_session(self, block: _Block, frame: Frame) -> None:
        """Count a block of a v1 graph on the host: it has no variable that needs no initializer.

        The callback becomes a control input of the op that the method returned, so that this op,
        which the user's program runs, and its name stay what they were.
        """
        self._graphs[block] += 1
        inside = frame.parent is not None
        if self.optimizers.kinds() & {"keras2", "keras3"}:
            self.note(
                "an optimizer of Keras 2.11 or later was applied in a v1 graph: what it returns "
                "does not run its updates, so a Session that runs it updates nothing, and nothing "
                "is counted; use tf_keras.optimizers.legacy or tf.compat.v1.train"
            )
            return
        result = getattr(frame.result, "op", frame.result)
        if not hasattr(result, "_add_control_input"):
            self.note(
                "a method returned no operation in a v1 graph, so its executions could not be "
                "counted: return the operation that applies the gradients"
            )
            return
        before = [*result.control_inputs, *(tensor.op for tensor in result.inputs)]
        with compat.control_dependencies(before):
            callback = compat.host_callback(partial(self._ran_in_session, block, inside))
        result._add_control_input(getattr(callback, "op", callback))
        if block.step and frame.updates:
            self._parts.add(frame.place.region, result, frame.updates)

    def _note_update(self, frame: Frame) -> None:
        """Remember which ops an update is in the graph of a Session, which may run them alone."""
        result = getattr(frame.result, "op", frame.result)
        ops = compat.updates_of(frame.place.graph, frame.start, frame.variable)
        if frame.site is not None and self._sites[frame.site].role == "update":
            if hasattr(result, "_add_control_input"):
                ops.append(result)
            frame.updates.append((ops, frame.site))

    def _ran_without_step(self, site: int) -> None:
        """A Session has run an update of a step, but not the step."""
        replica = self._sites[site].replica
        self._log(_Block(replica, compat.SESSION_GRAPH, False, (site,)), 0)

    def _ran_in_session(self, block: _Block, inside: bool) -> None:
        """A block of a v1 graph is about to end; `inside` if it is part of a step."""
        if block.step:
            stamp = UNIT * self._take_number(block.replica)
        else:  # its step ends, and takes its number, after it
            stamp = UNIT * (self._steps[block.replica] + 1) | WITHIN if inside else 0
        self._log(block, stamp)

    # Faults and notes.

    def note(self, text: str) -> None:
        """Say in the trace that something was not seen."""
        self._notes.setdefault(text)

    def fault(self, error: BaseException) -> None:
        """Something failed in the tracer itself: say so once, and let training go on untraced."""
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
            return self._steps_so_far()
        except Exception:
            return 0  # asked after a fault too, and the ledger may be what is broken

    def _steps_so_far(self) -> int:
        return max(
            *self._steps.values(),
            *(ledger.next_number() - 1 for ledger in self._ledgers.values()),
            0,
            0,
        )

    # Reading.

    def children(self) -> dict[str, Any]:
        """The counters' variables, for an exported function that captures them."""
        with self._lock:
            return {
                f"replica_{replica}_{name}": variable
                for replica, ledger in self._ledgers.items()
                for name, variable in ledger.children().items()
            }

    def _read(self) -> _Readings:
        """For each replica its steps and its blocks; a block keeps its key for good."""
        calm = self._callers <= {threading.get_ident()}
        under_way = [frame.numbers for frame in list(self._active) if frame.numbers]
        readings: _Readings = {}
        for replica in sorted({block.replica for block in self._logs} | set(self._ledgers)):
            ledger = self._ledgers.get(replica)
            steps, counted = (self._steps[replica], []) if ledger is None else ledger.read()
            blocks: dict[Hashable, tuple[_Block, Reading]] = dict(enumerate(counted))
            for block, log in self._logs.items():
                if block.replica == replica:
                    blocks[block] = (block, log.reading(self._graphs[block]))
            running = frozenset(numbers[replica] for numbers in under_way if replica in numbers)
            empty = frozenset(self._empty[replica])
            readings[replica] = _Read(steps, blocks, running, empty, calm)
        return readings

    def _called_so_far(self) -> list[list[int]]:
        """For each site how often it was called [in eager mode, while tracing]."""
        found = [list(calls) for calls in self._calls]
        for block, log in self._logs.items():
            if not block.function:
                for number in block.sites:
                    found[number][0] += log.total
        return found

    def now(self) -> Moment:
        """What has been counted so far, for a trace that counts from here."""
        with self._lock:
            readings = self._read()
            calls = self._called_so_far()
            graphs = self._tracings.figures(_totals(readings))
            said = frozenset(self._part(readings, Moment({}, [], {}, {}, {})).notes)
            moved = self.optimizers.moved()
            older = dict(self.optimizers.older.calls)
            return Moment(readings, calls, graphs, older, moved, said)

    def trace(self) -> Trace:
        """A frozen trace of everything up to the last complete step of each replica."""
        data, objects = self.part(None)
        return Trace(data, identify=finder(objects))

    def part(self, since: Moment | None) -> tuple[TraceData, list[ref[Any] | None]]:
        """The trace of what came after the moment `since`, its steps numbered from 1 again.

        With it, for each variable of the trace the object, if there is one.
        """
        with self._lock:
            before = Moment({}, [], {}, {}, {}) if since is None else since
            return self._part(self._read(), before), list(self._variables.objects)

    def _part(self, absolute: _Readings, before: Moment) -> TraceData:
        sites = list(self._sites)
        ended: dict[int, snapshot.Ended] = {}
        for replica, read in absolute.items():
            old = before.readings.get(replica, _NOTHING_READ)
            past, blocks = old.past, []
            for key, (block, reading) in read.blocks.items():
                known = old.blocks[key][1] if key in old.blocks else Reading()
                blocks.append((_key_of(block, sites), snapshot.since(reading, known, past)))
            ended[replica] = snapshot.settle(
                snapshot.Begun(
                    read.steps - past,
                    blocks,
                    {number - past for number in read.under_way if number > past},
                    {number - past for number in read.empty if number > past},
                    read.calm,
                )
            )
        calls = {
            site: (eager - old_eager, tracing - old_tracing)
            for site, (eager, tracing), (old_eager, old_tracing) in zip(
                sites, self._called_so_far(), chain(before.calls, repeat((0, 0))), strict=False
            )
        }
        optimizers, step_methods = self.optimizers, self.optimizers.step_methods()
        names = optimizers.names()
        methods = {
            name: index for index, name in enumerate(dict.fromkeys(site.method for site in sites))
        }
        ids = sorted({site.replica for site in sites} | set(ended))
        replicas = {id: index for index, id in enumerate(ids)}
        found, lost = snapshot.blocks_of(optimizers.root, ended, methods, replicas)
        missed = optimizers.missed(names, before.older)
        notes = [*self._notes, *lost, *missed]
        roles = {e.role for block in found for e in block.entries if e.kind != "none"}
        if "request" in roles and "update" not in roles and optimizers.remarked([OWN_STEP]):
            notes.append(_BYPASSED)
        where = self._where
        return TraceData(
            optimizers=tuple(optimizers.records(names, before.iterations)),
            variables=tuple(self._variables.rows),
            methods=tuple(Method(n, "step" if n in step_methods else "apply") for n in methods),
            replicas=tuple(Replica(where.worker, id, self._devices.get(id, "")) for id in ids),
            blocks=tuple(found),
            calls=tuple(snapshot.calls_of(calls, methods, replicas)),
            graphs=self._graph_records(absolute, before, replicas),
            complete=not notes,
            notes=(*_remarks(where), *notes),
            environment=compat.versions()
            | {"strategy": where.strategy, "cluster": ", ".join(where.cluster)},
        )

    def _graph_records(
        self, absolute: _Readings, before: Moment, replicas: dict[int, int]
    ) -> tuple[Graph, ...]:
        records = []
        for key, now in self._tracings.figures(_totals(absolute)).items():
            old = before.graphs.get(key, Figures())
            past = before.readings.get(key.replica, _NOTHING_READ).past
            new = Figures(
                now.tracings - old.tracings,
                max(0, now.idle - old.idle),
                now.steps - old.steps,
                max(0, now.after - past),
                now.step_calls,
            )
            if new.tracings or new.steps:
                records.append(new.record(self.optimizers.root, key, replicas))
        return tuple(records)


_BYPASSED = (
    "gradients reached apply_gradients, but none of the optimizer's apply methods was ever called: "
    "it applies them by itself, or by an optimizer made later; such updates are not counted"
)


def _remarks(where: compat.Surroundings) -> list[str]:
    """What a reader should know of how the optimizer ran, though nothing was missed."""
    if not where.strategy.startswith("ParameterServerStrategy"):
        return []
    return [
        f"under {where.strategy} the coordinator gives each step to a worker that is free; the "
        "counters are on the parameter servers, so which worker ran an update is not known"
    ]


def _python_frame() -> Any:
    """Python's frame of the apply method that is about to run."""
    python: Any = sys._getframe(3)
    while python.f_globals.get("__name__", "").startswith("tensorflow.python.autograph."):
        python = python.f_back  # of AutoGraph, which makes the calls of a method that it converted
    return python


def _applying(frame: Frame) -> bool:
    """Whether what is called from this frame is called by an apply method."""
    return frame.applying or (frame.gathers and frame.parent is not None and frame.parent.applying)


def kind_of_gradient(gradient: Any) -> Kind:
    """`sparse` for `tf.IndexedSlices`, `none` for None, else `dense`."""
    if type(gradient) is compat.EagerTensor:
        return "dense"  # the others are slow to find out
    if gradient is None:
        return "none"
    return "sparse" if isinstance(gradient, compat.IndexedSlices) else "dense"


def _place_of(graph: Any) -> _Place:
    branch = None if isinstance(graph, compat.FuncGraph) else graph._get_control_flow_context()
    return _Place(graph, branch, compat.called_graph(graph))


def _totals(readings: _Readings) -> Callable[[int, int], int]:
    return lambda replica, number: readings[replica].blocks[number][1].total
