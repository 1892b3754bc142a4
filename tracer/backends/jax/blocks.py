"""Closes blocks: what was traced into one program, or ran in one eager step, is counted by one op.

On JAX a *place* is a trace: the body of a jitted function, of a loop or of a branch. A call
whose parent is in the same place passes its sites to it. One whose parent is in another place, or
that has none, closes a block, and adds one op to the program (`primitive`). Its operands are the
optimizer's own count of steps before and after; of each group under a condition whether it was
kept; and what was seen of the variables, if effects are asked for (`effects`). What that op reports
is put together in `programs`.

In eager mode Python counts a step as long as it may: the values of JAX are computed behind its
back, and to ask for one is to wait. As soon as the optimizer is in a program too, or part of a step
is under a condition, an eager step is counted by an op of its own, which runs when its values are
there: so the steps keep their order.
"""

import sys
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakSet

import jax

from tracer.backends.jax import compat, primitive
from tracer.backends.jax.arrays import values_given, values_returned
from tracer.backends.jax.effects import Compared, JaxEffects, bits_of
from tracer.backends.jax.late_wrap import forget, functions_with
from tracer.backends.jax.programs import ProgramBlock, ProgramCounters, Work
from tracer.backends.jax.tracings import Definitions
from tracer.core import backend
from tracer.core.backend import Stepped
from tracer.core.call_paths import UNKNOWN
from tracer.core.calls import EAGER, Call, CallRole, CallsUnderWay, Place, outermost, start_call
from tracer.core.interrupts import suppress_faults
from tracer.core.tracings import Definition, Part
from tracer.model.records import Remark
from tracer.model.words import listed, some

_AGAIN = 5
"""Fewer steps that start again may be the first ones of so many models."""

_NOT_COMPILED = (
    "a step ran in a shard_map outside of jax.jit: it is not counted there; jit the shard_map"
)


class StepStart(NamedTuple):
    """What is noted of a step as it starts."""

    optimizer: Any
    clock: Any
    """The variable in which the optimizer counts its steps."""
    value: Any
    """What it holds, or what `stateless_apply` is given for it."""
    parts: tuple[ProgramBlock, ...] = ()
    """The blocks that were traced as parts of it, in branches and loops."""


def current_place() -> Place:
    """Where this thread's calls are made now."""
    trace = compat.current_trace()
    return EAGER if trace is None else Place(trace, None, trace)


def eager_replica(replica: int) -> int | None:
    """The replica of a step in eager mode, if what it calls is executed now; else None."""
    return replica if compat.current_trace() is None else None


def locate(call: Call, role: CallRole, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
    """Write into a new call where it is made, and what it is part of.

    What calls it is below it on the stack of this thread, also while a program is traced. Returns
    as `start_call`, and True of a group whose result may be thrown away.
    """
    parent = stack[-1] if stack else None
    is_own = start_call(call, role, current_place(), 0, parent, distributed=is_distributed())
    if role == "step":
        call.extra = _step_start(call)
    elif role == "group":
        call.extra = _whether_kept(call)
    return is_own or call.extra is not None


def is_distributed() -> bool:
    """Whether Keras spreads the program over devices, or several processes run it."""
    return jax.process_count() > 1 or distribution() is not None


def distribution() -> Any:
    """That of `keras.distribution` that is set; None if there is none."""
    module = getattr(sys.modules.get("keras"), "distribution", None)
    return None if module is None else module.distribution()


def _step_start(call: Any) -> StepStart | None:
    """The count of steps of the optimizer whose step method `call` is."""
    optimizer: Any = getattr(call.original, "__self__", None)
    clock = clock_of(optimizer)
    if clock is None:
        return None
    if call.method != "stateless_apply":
        return StepStart(optimizer, clock, clock.value)
    before = values_given(call).get(id(clock))
    return None if before is None else StepStart(optimizer, clock, before)


def clock_of(optimizer: Any) -> Any:
    """The variable in which an optimizer counts its steps: a loss scale has that of what it holds.

    None if it has none.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    while inner is not None:
        optimizer, inner = inner, getattr(inner, "inner_optimizer", None)
    return getattr(optimizer, "_iterations", None)


def _whether_kept(call: Any) -> Any:
    """Whether what a group computes is kept: Keras on JAX updates in each step that accumulates.

    As `JaxOptimizer._backend_apply_gradients` has it; None if it is always kept. A bool is what
    `programs.DISCARDED` and `programs.KEPT` say.
    """
    optimizer: Any = getattr(call.original, "__self__", None)
    every = getattr(optimizer, "gradient_accumulation_steps", None)
    if not every:
        return None
    return (optimizer._iterations.value + 1) % every == 0


class JaxBlocks(backend.Blocks):
    """The blocks of one root optimizer, and where they are counted; thread-safe."""

    counters: ProgramCounters
    new_effects: type[JaxEffects] | None = JaxEffects

    def __init__(self, root: backend.Root) -> None:
        super().__init__(root)
        self.counters = ProgramCounters(root.sites, root.note, root.fault)
        self._definitions = Definitions()
        self._latest: Any = None
        self._stepping: WeakSet[Any] = WeakSet()

    def note(self, call: Call) -> None:
        """A group ends whose result may be thrown away: note what was done in it."""
        if call.role == "group" and call.extra is not None:
            call.site_notes += [(call.extra, number) for number in call.sites]

    def close(self, call: Call, failed: bool) -> None:
        """All that was called from `call` executes as a whole: count it."""
        effects = self.counters.effects if call.parent is None and call.role == "step" else None
        compared = {} if effects is None else effects.before_and_after(call)
        eager, once = call.place is EAGER, compat.is_plain()  # else a `vmap` may be around
        in_program = self.counters.all or call.site_notes or compared
        if eager and once and not in_program:
            super().close(call, failed)
            return
        self._note_missing_pairs(call)
        work, numbers = self._work(call, compared)
        if not eager:
            program = self._count_in_program(work, numbers, call)
            if outermost(call).place is not EAGER:  # else it is a branch, which each step traces
                self._note_tracing(call, program, failed)
            return
        program = self.counters.eager(work)
        if not once:
            primitive.count(program, *numbers, auxiliary=self.auxiliary(call))
            return
        program.alone = program.alone or primitive.counting_alone(program)
        self._latest = program.alone(*numbers)

    def _work(self, call: Call, compared: Compared) -> tuple[Work, list[Any]]:
        """What the block of a call is, and the numbers that its op reports."""
        alone = "step" if call.role == "step" else "alone"
        role = alone if call.parent is None else "part"
        groups, outcomes = _groups(call)
        before, after, clock = self.steps_so_far(call)
        function = "" if call.place is EAGER else compat.function_name(call.place.graph)
        key = self._path_to(call), id(clock), tuple(compared)
        work = Work(function, role, tuple(call.sites), groups, *key)
        return work, [before, after, *outcomes, *bits_of(compared)]

    def _count_in_program(self, work: Work, numbers: list[Any], call: Call) -> ProgramBlock:
        """Add the op of a block to the program that is traced."""
        for number in call.sites:
            if self._sites.sites[number].role != "request":
                self.callers.traced[number, work.path] += 1
        axes = compat.axis_names()  # the program says what each device does: each is a replica
        replicas = compat.axis_size(axes) // jax.process_count() if axes else 0
        program = self.counters.new(work, replicas=replicas)
        step = outermost(call)
        if isinstance(step.extra, StepStart) and step.place is not EAGER:
            self._stepping.add(step.extra.optimizer)
            program.parts = frozenset(step.extra.parts)
            program.once = compat.is_in_branch_of(call.place.graph, step.place.graph)
            step.extra = step.extra._replace(parts=(*step.extra.parts, program))
        if compat.is_mapped_eagerly():
            program.doubt(_NOT_COMPILED)
        which = [jax.lax.axis_index(axes)] if axes else []
        primitive.count(program, *which, *numbers, auxiliary=self.auxiliary(call))
        return program

    def _note_tracing(self, call: Any, program: ProgramBlock, failed: bool) -> None:
        """Say for what arguments, and by whom, the program is traced that the block is in."""
        root, runs = compat.outermost(call.place.graph), program.runs
        caller = compat.caller_of_jax(sys._getframe(1))

        def define() -> tuple[Definition, int]:
            path = UNKNOWN if caller is None else self.callers.paths.above(caller)
            return self._definitions.of(root), path

        step = program.work.role == "step"
        part = Part(
            0, step, None, lambda _: runs[0] or max([*runs.values()], default=0), lambda: False
        )
        with self.counters.lock:
            self.note_traced(call, program.work.sites, root, part, define, failed)

    def steps_so_far(self, call: Call) -> tuple[Any, Any, Any]:
        """The optimizer's own count of steps before and after a block, and what has it."""
        around = _stepping_around(call)
        if around is None:
            return 0, 0, None
        _, clock, before, _ = around.extra
        if around is not call:  # in a branch of its own
            with suppress(TypeError):  # in a scope of the program's own without this variable
                before = clock.value
            return before, before, clock
        if call.method != "stateless_apply":
            return before, clock.value, clock
        after = values_returned(call).get(id(clock))
        return (0, 0, None) if after is None else (before, after, clock)

    def auxiliary(self, call: Any) -> Sequence[Any]:
        """Arrays that make a `vmap` visible to the op when none of its numbers is batched.

        What a block made of the variables that it updates, as far as JAX is tracing it: each member
        that has its own has updated them.
        """
        if call.role == "apply":
            values = [call.variable.value]
        elif call.role == "step" and call.method == "stateless_apply":
            values = call.result
        else:
            values = [each.value for each in call.original.__self__._trainable_variables]
        return [each for each in jax.tree.leaves(values) if isinstance(each, jax.core.Tracer)]

    def forget_graphs(self) -> None:
        """Let each function with an op of this recorder be traced again."""
        for optimizer in list(self._stepping):
            forget(functions_with(optimizer))

    def end(self) -> None:
        """Tracing of one ends: steps that run from now on may not be counted."""
        self.counters.progress.clear()

    def wait(self) -> None:
        """Wait until all that the program has started is counted: its results are there.

        Not if a program waits for who asks.
        """
        nothing_runs = not self.counters.all and self._latest is None
        if nothing_runs or compat.is_called_by_program():
            return
        for array in (self._latest, *jax.live_arrays()):
            with suppress_faults():  # one that is gone, or that failed
                array.block_until_ready()
        self.counters.wait_for_replicas()

    def missed(self, optimizers: Iterable[Stepped]) -> Iterator[str]:
        """Notes on steps of programs that hold no op, and on those that may not be counted.

        The optimizer's own count is compared with what the last step reported of it. In a loop of
        the program's own that count is in the state, and the variable may never get it.
        """
        self.counters.empty_queue()  # of steps that reported meanwhile that they moved the count
        for name, optimizer, started in optimizers:
            clock = getattr(optimizer, "_iterations", None)
            now, known = self._root.backend.number_in(clock), self.counters.progress_of(clock)
            missed, last = 0, max((each.last for each in known), default=None)
            if started is not None:
                missed = max([0, *(each.last - each.first - each.moved for each in known)])
                last = started + self.counters.steps() if last is None else last
            if now is not None and last is not None:
                missed += max(0, int(now) - last)
            if missed:
                yield (
                    f"{name}: its own count of steps is {some(missed, 'step')} further than what "
                    "was counted: they ran in programs compiled before the tracer came, unless the "
                    "count was set, as by a checkpoint; wrap the optimizer before its steps are "
                    "compiled"
                )
        if any(self.counters.waiting.values()):
            yield (
                "parts of steps ran, as in a branch, and in which steps is not known, or not yet: "
                "they are not counted"
            )
        numbers = sorted(self.counters.numbers_of_replicas())
        if len(numbers) > 1:
            yield (
                f"some steps ran on {listed([str(each) for each in numbers])} replicas (a jax.jit "
                "over sharded arrays is one): the totals are exact, but steps on fewer are counted "
                "for the first replicas, so the replicas cannot be compared"
            )
        if self.counters.all and compat.is_called_by_program():
            yield "it was read in a callback of a program: what runs there may not be counted yet"

    def is_behind(self, optimizer: Any) -> bool:
        """Whether programs reported more steps than it counts.

        A loop of the program's own has its state: what becomes of that the variable never hears,
        nor do those of the optimizers inside of it.
        """
        for clock in map(clock_of, [*self._stepping, optimizer]):
            now, known = self._root.backend.number_in(clock), self.counters.progress_of(clock)
            if now is not None and any(now < each.last for each in known):
                return True
            if now == 0 and not known:  # steps in eager mode, of a state that only they know
                return any(each.method == "stateless_apply" for each in self._sites.sites)
        return False

    def remarks(self) -> tuple[Remark, ...]:
        """That members of a `vmap` update each variable in a step; that each step begins again."""
        members, again = self.counters.members, self.counters.started_again()
        twice = [Remark("updated-twice", "vmap", some(members, "member"))] if members > 1 else []
        renewed = [Remark("optimizer-renewed", "", some(again, "step"))] if again >= _AGAIN else []
        return (*twice, *renewed)


def _groups(call: Call) -> tuple[tuple[int | None, ...], list[Any]]:
    """For each site of a call the group that may be thrown away, and what comes of each group."""
    noted: dict[int, deque[Any]] = defaultdict(deque)
    for outcome, site in call.site_notes:
        noted[site].append(outcome)
    of_sites = [noted[site].popleft() if noted[site] else None for site in call.sites]
    outcomes = list({id(each): each for each in of_sites if each is not None}.values())
    groups = {id(outcome): group for group, outcome in enumerate(outcomes)}
    return tuple(groups.get(id(each)) for each in of_sites), outcomes


def _stepping_around(call: Any) -> Any:
    """The call of a step method that knows its count of steps: `call`, or what it is part of."""
    while call is not None and call.extra.__class__ is not StepStart:
        call = call.parent
    return call
