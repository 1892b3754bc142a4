"""Close blocks: all calls traced into one graph, or made in one eager step, share one counter.

Each `Recorder` has one `GraphBlocks`, which creates the counters and gets each call that closes a
block, on the thread that made the call. A block in eager mode has already run, so it goes into a
log at once. A block in a function's graph gets a counter in that graph (see `ledger`), a block in a
Session's graph a host callback.

The enclosing step of a function is not known while it is traced, as it may be called from anywhere
later. So each call of it asks (`GraphBlocks._enclosing_step`), and the graph counts by the answer.
TensorFlow asks on the thread that calls the function, which may be any thread.

Here, sites (numbers in the lists of calls) become `CountedBlock`s, and a step gets its number,
once. In eager mode the step's call keeps the number (`Call.numbers`); in a graph it is a tensor
(`places.Extra.stamps`). A strategy may ask for either on another thread than the step's, but it
runs one of its threads at a time (TensorFlow 2.21, `mirrored_run.py`).

The lock of the counters is held while a block enters a log, while a step in eager mode takes its
number and while a graph tracing is listed. A reader holds it too, so it finds all of a step or
nothing. Nobody takes it while holding another lock of the recorder.
"""

import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import perf_counter
from typing import Any
from weakref import ref

import tensorflow as tf

from tracer.backends.tensorflow import compat
from tracer.backends.tensorflow.effects import Effects
from tracer.backends.tensorflow.functions import (
    any_is_inside,
    author_of,
    forget_functions_of,
    handles_of,
    may_write,
    origins,
    writes_to,
)
from tracer.backends.tensorflow.ledger import Ledger
from tracer.backends.tensorflow.places import (
    Callers,
    Extra,
    current_place,
    frames_around,
    parent_of,
    step_around,
)
from tracer.core import backend
from tracer.core.calls import EAGER, Apply, Call, Place, Step, outermost
from tracer.core.counters import APPLYING, UNIT, WITHIN, CountedBlock, Counters, Reading
from tracer.core.tracings import Part
from tracer.errors import suppress_faults
from tracer.model.evidence import Evidence, NeverAssigned
from tracer.words import times

_DTENSORS = (
    "a tf.function updates variables of DTensor: TensorFlow cannot run the counters on their mesh, "
    "so what this function runs is not counted; DTensor steps in eager mode are"
)

_NO_OP = (
    "a method returned no operation in a v1 graph that runs after its updates: the optimizer is of "
    "Keras 2.11 or later, or the result is None, or that of tf.cond, tf.case, tf.while_loop or a "
    "function; its steps are not counted, and updates that run count outside any step; return "
    "tf.group(result) to count both, from tf.compat.v1.train or tf_keras.optimizers.legacy"
)


_FULL = 1 / 8
"""A journal fuller than this is drained: it must have room until the next look."""
CALLS = 512
"""After how many calls of functions without loops to look: each writes one row to a journal."""


class LedgerCounters(Counters):
    """The counters of one root optimizer, with a ledger for each replica that runs graphs."""

    def __init__(self, devices: Mapping[int, str]) -> None:
        super().__init__()
        self._devices = devices
        self.ledgers: dict[int, Ledger] = {}
        self.calls = 0
        """The calls of functions since the last look."""
        self.repeats = False
        """Whether one call of a function may write several rows to a journal."""

    def ledger(self, replica: int) -> Ledger:
        """The ledger of a replica; created on the device of its variables if there is none."""
        with self.lock:
            if replica not in self.ledgers:
                device, begun = self._devices.get(replica, ""), self.clocks[replica].begun()
                ledger = self.ledgers[replica] = Ledger(device, begun)
                self.clocks[replica] = ledger.clock
                self.in_programs = True
            return self.ledgers[replica]

    def _read_programs(
        self, last: Mapping[int, int]
    ) -> Mapping[int, Sequence[tuple[CountedBlock, Reading]]]:
        return {replica: ledger.read(last[replica]) for replica, ledger in self.ledgers.items()}


class GraphBlocks(backend.Blocks):
    """The blocks of one root optimizer, and where they are counted; thread-safe."""

    new_effects = Effects
    counters: LedgerCounters
    callers: Callers

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self.counters = LedgerCounters(root.devices)
        self.threads: set[int] = set()
        """The threads that have ever called a function that contains a block."""
        self._assigned: dict[tuple[int, str, Any], bool] = {}
        """By optimizer, apply method and variable, whether any tracing of it may have written."""
        self.callers = Callers(author_of)
        self._begun_in_sessions = 0
        """How many steps began in Sessions and have not ended."""
        self._calls_under_way = root.calls_under_way

    def forget_graphs(self) -> None:
        """Clear the graphs of each function with a counter, so that its next call traces it."""
        forget_functions_of(self._graphs())

    def writes_to(self, variable: object) -> bool:
        """True if a function with a step, or one that calls it, may write to the variable."""
        return any(writes_to(graph, variable) for graph in self._graphs())

    def _graphs(self) -> set[tf.Graph]:
        """The graphs of functions with a counter, and of those that call them."""
        ledgers = list(self.counters.ledgers.values())
        return {graph for ledger in ledgers for graph in list(ledger.graphs)}

    def is_calm(self) -> bool:
        """True if no other thread is inside a call of a function."""
        others = self.threads - {threading.get_ident()}
        return not others or not any_is_inside(others)

    def missed(self, names: Sequence[str], before: Mapping[int, int], past: int) -> Iterator[str]:
        """A note if Sessions began steps that did not end."""
        if self._begun_in_sessions:
            yield (
                f"Sessions ran updates of a step {times(self._begun_in_sessions)} without the op "
                "that apply_gradients returned, or stopped with an error: these updates are not "
                "counted"
            )

    def close(self, call: Call, failed: bool) -> None:
        """Count `call` and all calls inside it as one block; `failed` if it raised."""
        graph = call.place.graph
        if graph is None:
            super().close(call, failed)
            return
        step = call.parent is None and call.role == "step"
        name = compat.function_name(graph)
        in_function = tf.compat.v1.executing_eagerly_outside_functions()
        if in_function:
            self._find_idle(call.site_notes, graph)
        path = self.callers.inside(call.sites, in_session=not in_function)
        for replica, sites in self._by_replica(call):
            block = CountedBlock(replica, name, step, tuple(sites), path)
            if in_function:
                self._count_in_graph(block, call, failed)
            else:
                self._count_in_session(block, call)

    def path_of(self, python: Any, distributed: bool) -> int | None:
        """The path to a call by the Python frame `python`, perhaps under a strategy."""
        return self.callers.of(frames_around(python)) if distributed else self.callers.above(python)

    def _count_in_graph(self, block: CountedBlock, call: Call, failed: bool) -> None:
        """Add the counter of a block to its graph, after its work: failed steps do not count.

        The counter waits for the stateful ops added since the call began, which are the updates.
        Otherwise TensorFlow could run it even if the gradients, or the data for them, never
        arrived.
        """
        graph = call.place.graph
        if "CUSTOM" in self._root.devices.get(block.replica, ""):
            self._note(_DTENSORS)
            return
        if block.step and isinstance(call, Step):
            stamp = self._stamp_of(call, block.replica)
        else:
            stamp = self._stamp_inside(call.parent, call.place, block.replica)
        root = compat.graphs_around(graph)[-1]
        self.counters.repeats |= compat.may_repeat(graph)
        work = compat.updates_since(graph, call.extra.start)
        effects = self.counters.effects if block.step else None
        if effects is not None:  # first: a reader that finds the block must find these
            effects.count(call, block.replica, self.counters.ledger(block.replica), stamp, work)
            work = compat.updates_since(graph, call.extra.start)
        use = self.counters.ledger(block.replica).count(block, root, stamp, work)
        replica = block.replica
        place = ref(call.place.region)
        hash(place)  # a weak reference must be hashed while its object is alive
        part = Part(
            replica, block.step, place, lambda total_of: use.ran(total_of(replica, use.number))
        )
        with self.counters.lock:
            define = partial(self.callers.definition, root)
            self.tracings.add(root, part, define, self.counters.steps, failed)

    def _count_in_session(self, block: CountedBlock, call: Call) -> None:
        """Count a block of a v1 graph on the host: the program does not initialize new variables.

        The callback becomes a control input of the op that the method returned. So that op, which
        the program runs, and its name stay the same.
        """
        around = None if call.parent is None else outermost(call).extra
        result = getattr(call.result, "op", call.result)
        runs = all(each.kind.name in ("legacy", "v1") for each in self._root.optimizers.all)
        is_op = runs and hasattr(result, "_add_control_input")
        ends = compat.ends_before(result) if is_op else None
        if ends is None:
            call.extra.counts = False
            self._note(_NO_OP)
            return
        begins = compat.call_before(partial(self._move_in_session, 1), call.site_notes)
        with tf.control_dependencies(ends):
            callback = compat.host_callback(partial(self._ran_in_session, block, around, begins))
        result._add_control_input(getattr(callback, "op", callback))

    def _find_idle(self, notes: Sequence[Any], graph: tf.Graph) -> None:
        """Find out which apply methods, noted by `note`, wrote to their variable."""
        ops, origin = (graph.get_operations(), origins(graph)) if notes else ((), {})
        for site, variable, added in notes:
            with suppress_faults():  # an unknown kind of op
                handles = handles_of(variable)
                wrote = not handles or any(may_write(op, handles, origin) for op in ops[added])
                key = site.optimizer, site.method, site.variable
                self._assigned[key] = wrote or self._assigned.get(key, False)

    def evidence(self, optimizer: int) -> tuple[Evidence, ...]:
        """The apply methods that assigned nothing in any tracing."""
        rows = self._root.variables.rows if self._assigned else []
        names = defaultdict[str, tuple[str, ...]](tuple)
        for (index, method, variable), assigned in list(self._assigned.items()):
            if index == optimizer and not assigned:
                names[method] += (rows[variable].name,)
        return tuple(NeverAssigned(method, variables) for method, variables in names.items())

    def note(self, call: Call, failed: bool) -> None:
        """Note the ops that a traced apply method added: `close` examines those of a block at once.

        In a Session's graph, the program may run the ops of an update alone.
        """
        graph = call.place.graph
        if not isinstance(call, Apply) or graph is None:
            return
        if not tf.compat.v1.executing_eagerly_outside_functions():
            result = getattr(call.result, "op", call.result)
            own = [result] if hasattr(result, "_add_control_input") else []
            call.site_notes += [*compat.updates_since(graph, call.extra.start), *own]
        elif call.variable is not None and not failed:
            site = self._sites.sites[call.own[0]]
            if site.role == "update":
                added = slice(call.extra.start, graph.num_operations())
                call.site_notes.append((site, call.variable, added))

    def _move_in_session(self, steps: int) -> None:
        """Note that this many steps begin in a Session; -1 if one ends."""
        with self.counters.lock:
            self._begun_in_sessions += steps

    def _ran_in_session(self, block: CountedBlock, around: Extra | None, begins: bool) -> None:
        """Count a block of a v1 graph that is about to end; `around` is of the step around it.

        `begins` tells that its start was counted, too.
        """
        if begins:
            self._move_in_session(-1)
        with self.counters.lock:
            clock, stamp = self.counters.clocks[block.replica], 0
            if block.step:
                stamp = UNIT * clock.take()
            elif around is not None and around.counts:  # its step takes its number later
                stamp = UNIT * (clock.begun() + 1) | WITHIN
            self.counters.logs[block].add(stamp)

    # The enclosing step of a block.

    def _enclosing_step(self, replica: int) -> tf.Tensor:
        """The stamp of the step that calls a function with a block of `replica`.

        TensorFlow asks for it at each call of the function, unless `_is_alone`. The answer is an
        eager tensor, or one in the graph of the function being traced.
        """
        ledger, calls = self.counters.ledgers[replica], self._calls_under_way
        try:
            place = current_place()
            call = parent_of(
                "apply", place, replica, calls.stack(), tf.distribute.has_strategy(), calls
            )
            flags = APPLYING if call is not None and call.applying is not None else 0
            if place is not EAGER:
                self.counters.repeats |= compat.may_repeat(place.graph)
                stamp = self._stamp_inside(call, place, replica)
                return compat.with_flags(stamp, flags) if flags else stamp
            self._function_called()
            step = step_around(call, replica, calls)
            if step is not None:
                with self.counters.lock:
                    flags |= UNIT * self.number_of(step, replica) | WITHIN
            return compat.constant(flags) if flags else ledger.alone
        except BaseException as error:
            self._root.fault(error)
            return ledger.alone

    def _is_alone(self) -> bool:
        """True if a function is called in eager mode, with no step or apply method under way.

        This runs at each call of a function and must be fast; it is nearly always True.
        """
        calls = self._calls_under_way
        if calls.steps or calls.stack() or not tf.executing_eagerly():
            return False
        self._function_called()
        return True

    def _function_called(self) -> None:
        """Note that a function with a counter is called in eager mode, and look now and then.

        No journal may overflow between two looks, and training must not wait. Without loops, some
        hundred calls are few rows. With loops, each call looks.
        """
        counters, collectors = self.counters, self._root.collectors
        try:
            self.threads.add(threading.get_ident())
            counters.calls += 1
            is_due = counters.repeats or counters.calls >= CALLS
            if is_due and counters.lock.acquire(blocking=False):
                try:
                    for ledger in list(counters.ledgers.values()):
                        ledger.look(_FULL)
                    counters.calls = 0
                finally:
                    counters.lock.release()
            if perf_counter() >= collectors.throttle.due:
                collectors.throttle.run(lambda: collectors.call("function_called"))
        except BaseException as error:
            self._root.fault(error)

    def _stamp_of(self, step: Step, replica: int, flags: int = 0) -> tf.Tensor:
        """The stamp of a step in a graph; with `flags`, the stamp of a block inside it."""
        stamps: dict[tuple[int, int], tf.Tensor] = step.extra.stamps
        if (replica, flags) not in stamps:
            with step.place.graph.as_default():
                if flags:
                    stamp = compat.with_flags(self._stamp_of(step, replica), flags)
                else:
                    gradient = step.extra.gradient
                    after = [] if gradient is None else compat.made_of(gradient)
                    enclosing = self._asked(step.place.region, replica)
                    stamp = self.counters.ledger(replica).begin_step(enclosing, after)
            stamps[replica, flags] = stamp
        return stamps[replica, flags]

    def _stamp_inside(self, call: Call | None, place: Place, replica: int) -> tf.Tensor:
        """The stamp of a block inside `call`, or outside all calls of its region, in a graph."""
        step = step_around(call, replica, self._calls_under_way)
        if step is None:
            return self._asked(place.region, replica)
        return self._stamp_of(step, replica, WITHIN)

    def _asked(self, region: tf.Graph, replica: int) -> tf.Tensor:
        """The stamp of the step that calls the function of the graph `region`, a tensor in it."""
        ask = partial(self._enclosing_step, replica)
        return self.counters.ledger(replica).enclosing_step(region, ask, self._is_alone)
