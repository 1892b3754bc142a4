"""Close blocks: all calls traced into one program, or made in one eager step, share one op.

On JAX a *place* is a trace: the body of a jitted function, a loop or a branch. A call whose parent
is in the same place passes its sites to it, and so does a step in a branch of another one, as in a
loss scale: whether the branch ran shows in the optimizer's iterations, if the step has only one.
Other calls inside a step are not counted. An outermost call closes a block and adds one op to the
program (`primitive`). Its operands are the optimizer's iterations before and after the block, the
outcome of updates that may be discarded or skipped, and what effects compare, if recorded
(`values`).

In eager mode, Python counts a step. JAX computes values asynchronously, and reading one waits: so
do steps once the optimizer is in a program too, so that steps stay in order, or if part of a step
is conditional.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tracer.backends.jax import compat, primitive
from tracer.backends.jax.late_wrap import forget, functions_with
from tracer.backends.jax.programs import DISCARDED, KEPT, SKIPPED, ProgramBlock, ProgramCounters
from tracer.backends.jax.values import (
    NO_RATE,
    JaxEffects,
    answers_about,
    bits_of_rate,
    value_after,
    value_before,
)
from tracer.core import backend
from tracer.core.calls import EAGER, Call, CallsUnderWay, Place, outermost, start_call
from tracer.core.tracings import Definition, Part
from tracer.errors import suppress_faults
from tracer.model.evidence import Evidence, Iterations, SharedByMembers, StateRenewed
from tracer.words import some

AGAIN = 5
"""If fewer steps begin again, they may be the first steps of that many models."""

_NOT_COMPILED = (
    "a step in a shard_map outside jax.jit is not counted: put the shard_map inside jax.jit"
)

_UNKNOWN = (
    "it is unknown which updates of a step were kept, as with several optimizers inside one that "
    "accumulate gradients, or two updates of a variable of which one is in a branch: all that it "
    "computed are counted"
)
_INSIDE = (
    "an update in a branch, a loop or a jitted function of the optimizer's own, inside a step, is "
    "not counted"
)


class StepStart(NamedTuple):
    """The state of an optimizer when its step begins."""

    clock: object
    """The variable that holds the optimizer's iterations."""
    value: jax.Array
    """Its value, or the value that `stateless_apply` gets for it."""


def current_place() -> Place:
    """The place of calls that this thread makes now."""
    trace = compat.current_trace()
    return EAGER if trace is None else Place(trace, None, trace)


def eager_replica(replica: int) -> int | None:
    """The replica of a step if its calls run now, in eager mode; else None."""
    return replica if compat.current_trace() is None else None


def locate(call: Call, stack: list[Call], calls_under_way: CallsUnderWay) -> bool:
    """Set the place and the parent of a new call: the call below it on this thread's stack.

    Returns the result of `start_call`, or True for a group whose result may be discarded.
    """
    parent = stack[-1] if stack else None
    is_own = start_call(call, current_place(), 0, parent, distributed=is_distributed())
    if call.role == "step":
        call.extra = _step_start(call)
    elif call.role == "group":
        call.extra = _whether_kept(call)
    return is_own or call.extra is not None


def is_distributed() -> bool:
    """True if Keras distributes the program over devices, or several processes run it."""
    return jax.process_count() > 1 or distribution() is not None


def distribution() -> Any:
    """The current distribution of `keras.distribution`; None without one."""
    module = getattr(sys.modules.get("keras"), "distribution", None)
    return None if module is None else module.distribution()


def _step_start(call: Any) -> StepStart | None:
    """The iterations of the optimizer when its step method `call` begins; None without any."""
    clock = clock_of(getattr(call.original, "__self__", None))
    before = value_before(call, clock)
    return None if before is None else StepStart(clock, before)


def clock_of(optimizer: object) -> object:
    """The variable with an optimizer's iterations; None without one."""
    return getattr(innermost(optimizer), "_iterations", None)


def innermost(optimizer: object) -> Any:
    """The optimizer in a loss scale; any other optimizer itself."""
    inner = getattr(optimizer, "inner_optimizer", None)
    return optimizer if inner is None else innermost(inner)


def _whether_kept(call: Any) -> jax.Array | None:
    """Whether a group's updates are kept; None if always. Keras on JAX computes them in each step.

    As in `JaxOptimizer._backend_apply_gradients`. The bool equals `programs.DISCARDED` or
    `programs.KEPT`.
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

    def note(self, call: Call, failed: bool) -> None:
        """Note the sites of a group whose result may be discarded."""
        if call.role == "group" and call.extra is not None:
            call.site_notes += [(call.extra, number) for number in call.sites]

    def close(self, call: Call, failed: bool) -> None:
        """Count `call` and all calls inside it as one block."""
        if call.parent is not None:
            self._pass_on(call, call.parent)
            return
        effects = self.counters.effects if call.role == "step" else None
        compared = {} if effects is None else effects.before_and_after(call)
        eager, once = call.place is EAGER, compat.is_plain()  # else a `vmap` may be around
        rate = self.rate_of(call)
        reports = call.site_notes or compared or isinstance(rate, jax.Array)
        if eager and once and not (self.counters.in_programs or reports):
            super().close(call, failed)
            return
        program, numbers = self._program_of(call, tuple(compared))
        numbers.append(rate)
        answers = [answers_about([*compared.values()])] if compared else []
        if program.function:
            self._note_calls(call, program)
        if not eager:
            self._count_in_program(program, [*numbers, *answers], call)
            self._note_tracing(call, program, failed)
        else:
            primitive.count(program, 0, *numbers, *answers, auxiliary=self.auxiliary(call))

    def _pass_on(self, call: Call, parent: Call) -> None:
        """Pass the sites of a call in a branch to its parent, if the step shows whether it ran."""
        step = outermost(parent)
        if isinstance(call.extra, StepStart) and isinstance(step.extra, StepStart):
            clock, before = call.extra
            if clock is step.extra.clock and value_after(call, clock) is not before:
                parent.sites += call.sites
                parent.site_notes += [(None, site) for site in call.sites]
                return
        self._note(_INSIDE)

    def _program_of(
        self, call: Any, compared: tuple[int, ...]
    ) -> tuple[ProgramBlock, list[jax.Array | int]]:
        """The block of a call, and the first numbers of its `Report`."""
        before, after, clock = self.steps_so_far(call)
        outcomes = list({id(outcome): outcome for outcome, _ in call.site_notes}.values())
        decided = frozenset(site for _, site in call.site_notes)
        in_branch = any(outcome is None for outcome in outcomes)
        sites = [self._sites.sites[number] for number in call.sites]
        updated = [site.variable for site in sites if site.role == "update"]
        is_one = clock is not None and len(updated) == len({*updated})
        if len(outcomes) > 1 or (in_branch and not is_one):
            self._note(_UNKNOWN)
            outcomes, decided = [], frozenset()
        elif in_branch:
            every = innermost(call.original.__self__).gradient_accumulation_steps or 1
            kept = jnp.where(after % every == 0, KEPT, DISCARDED)
            outcomes = [jnp.where(after == before, SKIPPED, kept)]
        function = "a branch" if in_branch else ""
        if call.place is not EAGER:
            function = compat.function_name(compat.outermost(call.place.graph))
        is_step, path, numbers = call.role == "step", self._path_to(call), tuple(call.sites)
        program = ProgramBlock(
            self.counters, function, is_step, numbers, decided, path, clock, compared
        )
        return program, [before, after, *(outcomes or [KEPT])]

    def rate_of(self, call: Any) -> jax.Array | int:
        """The bits of the learning rate of a step in a program, if it is a variable."""
        if call.place is EAGER or call.role != "step":
            return NO_RATE
        rate = getattr(innermost(call.original.__self__), "_learning_rate", None)
        value = value_before(call, rate)
        return NO_RATE if value is None else bits_of_rate(value)

    def _note_calls(self, call: Call, program: ProgramBlock) -> None:
        """Note what led to calls while tracing; of an eager step with a branch, to all calls."""
        for number in call.sites:
            if self._sites.sites[number].role != "request":
                self.callers.traced[number, program.path] += 1
            if call.place is EAGER and number not in program.decided:
                self._sites.called(number, tracing=True)

    def _count_in_program(
        self, program: ProgramBlock, numbers: list[jax.Array | int], call: Call
    ) -> None:
        """Add the op of a block to the program that is being traced."""
        axes = compat.axis_names()  # per-device programs: each device is a replica
        if axes:
            program.replicas = min(jax.lax.axis_size(axes), jax.local_device_count())
        self.counters.add(program)
        if compat.is_mapped_eagerly():
            program.doubt(_NOT_COMPILED)
        which = jax.lax.axis_index(axes) if axes else 0
        primitive.count(program, which, *numbers, auxiliary=self.auxiliary(call))

    def _note_tracing(self, call: Any, program: ProgramBlock, failed: bool) -> None:
        """List the tracing of the block's program: for what arguments, and from which line."""
        root, runs = compat.outermost(call.place.graph), program.runs
        caller = compat.caller_of_jax(sys._getframe(1))

        def define() -> Definition:
            path = self.callers.above(caller)
            return Definition(compat.function_name(root), compat.arguments_of(root), path)

        part = Part(0, program.step, None, lambda _: runs[0] or max([*runs.values()], default=0))
        with self.counters.lock:
            self.tracings.add(root, part, define, self.counters.steps, failed)

    def steps_so_far(self, call: Call) -> tuple[jax.Array | int, jax.Array | int, object]:
        """The iterations before and after a block, and the variable that holds them."""
        if not isinstance(call.extra, StepStart):
            return 0, 0, None
        clock, before = call.extra
        after = value_after(call, clock)
        return (0, 0, None) if after is None else (before, after, clock)

    def auxiliary(self, call: Any) -> Sequence[jax.Array]:
        """Arrays that make a `vmap` visible to the op when none of its numbers is batched.

        They are the results of the block for the variables that it updates, as far as JAX is
        tracing them.
        """
        if call.role == "apply":
            values = [call.variable.value]
        elif call.role == "step" and call.method == "stateless_apply":
            values = call.result
        else:
            values = [each.value for each in call.original.__self__._trainable_variables]
        return [each for each in jax.tree.leaves(values) if isinstance(each, jax.core.Tracer)]

    def forget_graphs(self) -> None:
        """Drop the traces of each function with an op of this recorder."""
        for optimizer in self._root.optimizers.alive():
            forget(functions_with(optimizer))

    def end(self) -> None:
        """Reset the progress when tracing of an optimizer ends: later steps may not be counted."""
        self.counters.progress.clear()

    def wait(self) -> None:
        """Wait until all work that the program has started is counted.

        Return at once if a running program made this call: waiting would deadlock.
        """
        if not self.counters.in_programs or compat.is_called_by_program():
            return
        for array in jax.live_arrays():
            with suppress_faults():  # a deleted array, or a failed computation
                array.block_until_ready()

    def missed(self, names: Sequence[str], before: Mapping[int, int], past: int) -> Iterator[str]:
        """Notes on steps in programs without an op, and on steps that may not be counted.

        The optimizer's iterations are compared with the last report. In a custom loop the
        iterations are in the state, and may never be stored in the variable.
        """
        with self.counters.lock:
            self.counters.empty_queue()  # reports that came meanwhile
            numbers = self.counters.last_numbers().values()
        for index, (name, traced) in enumerate(zip(names, self._root.optimizers.all, strict=True)):
            started = before[index] - past if index in before else traced.started
            clock = getattr(traced.readable(), "_iterations", None)
            now, known = self._root.backend.number_in(clock), self.counters.progress_of(clock)
            missed, last = 0, max((each.last for each in known), default=None)
            if started is not None:
                missed = max([0, *(each.last - each.first - each.moved for each in known)])
                last = started + self.counters.steps() if last is None else last
            if now is not None and last is not None:
                missed += max(0, int(now) - last)
            if missed:
                yield (
                    f"{name}: its step count is {some(missed, 'step')} ahead of what was counted: "
                    "either programs that were compiled before the optimizer was wrapped made "
                    "these steps, or the step count was set, for example by a checkpoint; wrap "
                    "the optimizer before its steps are compiled"
                )
        if len(numbers) < self.counters.replicas or len({*numbers}) > 1:
            yield (
                "some replicas of this process reported fewer steps than others: steps of a pmap "
                "or a shard_map that still run, or that a device leaves out, are not counted; "
                "steps outside of them (a jax.jit over sharded arrays is one replica) are counted "
                "for the first replica"
            )
        if self.counters.in_programs and compat.is_called_by_program():
            yield (
                "the trace was read in a callback of a compiled program, and may not contain "
                "what runs there"
            )

    def is_behind(self, optimizer: object) -> bool:
        """True if programs reported more steps than the optimizer's variable counts.

        A custom loop keeps the iterations in its state, and never stores them in the variable, nor
        in those of inner optimizers.
        """
        for clock in map(clock_of, [*self._root.optimizers.alive(), optimizer]):
            now, known = self._root.backend.number_in(clock), self.counters.progress_of(clock)
            if now is not None and any(now < each.last for each in known):
                return True
            if now == 0 and not known:  # eager steps, with the iterations in their state
                return any(each.method == "stateless_apply" for each in self._sites.sites)
        return False

    def evidence(self, optimizer: int) -> tuple[Evidence, ...]:
        """Evidence of `vmap` members that share variables, and on steps that begin again."""
        members, known = self.counters.members, [*self.counters.progress.values()]
        found: list[Evidence] = [SharedByMembers(members)] if members > 1 else []
        moved = [each.moved for each in known if each.last - each.first == 1]
        if len(moved) == len(known) and max(moved, default=0) >= AGAIN:
            found += [StateRenewed(max(moved)), Iterations(known[0].first, known[0].last)]
        return tuple(found)
