"""Random programs of `torch.optim`: `python -m fuzz.torch_optim --seconds 900`, run in `tests`.

Each update adds exactly 1 to each element of a parameter, whatever class makes it: the gradients
are -1, and the arguments of PyTorch's own classes are chosen so.
"""

import copy
import gc
import pickle
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import torch
from fuzz.batch import Updates, counted, differ, main, require
from hypothesis import strategies as st
from support.torch_odometers import Odometer as PlainOdometer

import tracer
from tracer.model.trace import Trace

torch.set_num_threads(1)
POOL = 4
"""How many parameters the optimizers of a program share."""
Log = list[Updates]
"""Of each step, how often it updated each parameter, by its place in the pool."""


class OnPurpose(Exception):
    """What programs raise."""


class Odometer(PlainOdometer):
    """Adds 1; raises after its first update if that is asked for."""

    fails = False

    def step(self, closure: Any = None) -> Any:
        if Odometer.fails:
            add_one(_with_gradient(self)[:1])
            raise OnPurpose
        return super().step(closure)


EXACT = {"betas": (0.0, 0.0), "eps": 0.0}
BASES: dict[str, Callable[[Any], Any]] = {
    "odometer": Odometer,
    "sgd": partial(torch.optim.SGD, lr=1.0),
    "sgd foreach": partial(torch.optim.SGD, lr=1.0, foreach=True),
    "sgd fused": partial(torch.optim.SGD, lr=1.0, fused=True),
    "adam": partial(torch.optim.Adam, lr=1.0, **EXACT),
    "adam foreach": partial(torch.optim.Adam, lr=1.0, foreach=True, **EXACT),
    "adamw fused": partial(torch.optim.AdamW, lr=1.0, weight_decay=0.0, fused=True, **EXACT),
    "rmsprop": partial(torch.optim.RMSprop, lr=1.0, alpha=0.0, eps=0.0),
    "lbfgs": partial(torch.optim.LBFGS, lr=0.1, max_iter=2),
}


def _parameters(optimizer: Any) -> list[Any]:
    return [each for group in optimizer.param_groups for each in group["params"]]


def _with_gradient(optimizer: Any) -> list[Any]:
    return [each for each in _parameters(optimizer) if each.grad is not None]


def add_one(parameters: Sequence[Any]) -> None:
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(1)


def shared(one: Any, other: Any) -> set[int]:
    """The parameters of both optimizers, by `id`."""
    return set(map(id, _parameters(one))) & set(map(id, _parameters(other)))


# What the `step` of a class of the program does, with that of the class behind it; `turn` counts.


def sometimes(own: Any, step: Callable[[], Any]) -> Any:
    return step() if own.turn % 2 else None


def twice(own: Any, step: Callable[[], Any]) -> Any:
    step()
    return step()


def catches(own: Any, step: Callable[[], Any]) -> Any:
    with suppress(OnPurpose):
        return step()


def first(own: Any, step: Callable[[], Any]) -> Any:
    """Updates its first parameter by itself."""
    parameter = _parameters(own)[0]
    if parameter.grad is not None:
        add_one([parameter])
        parameter.grad = None
    return step()


def data(own: Any, step: Callable[[], Any]) -> Any:
    """Writes to `.data` each second time."""
    if own.turn % 2:
        return step()
    return add_one([parameter.data for parameter in _with_gradient(own)])


def numpy(own: Any, step: Callable[[], Any]) -> Any:
    """Writes through NumPy what has a gradient, and calls no other step."""
    for parameter in _with_gradient(own):
        parameter.detach().numpy()[...] += 1


def blind(own: Any, step: Callable[[], Any]) -> Any:
    """Needs no gradients."""
    add_one(_parameters(own))


def around(own: Any, step: Callable[[], Any]) -> Any:
    """Another optimizer is in it, which it leaves out each third time."""
    return step() if own.turn % 3 else None


class Around(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer with the groups of another one, which it steps with."""

    turn = 0

    def __init__(self, base: Any) -> None:
        self.base = base
        super().__init__(base.param_groups, base.defaults)
        self.param_groups = base.param_groups

    def step(self, closure: Any = None) -> Any:
        self.turn += 1
        return around(self, partial(self.base.step, closure))


for _base in BASES.values():
    # PyTorch gives a class hooks when an optimizer of it is made: without, `twice` counts once, as
    # `docs/limits.md` says.
    _base([torch.nn.Parameter(torch.zeros(1))])
BEHAVIOURS = [None, sometimes, twice, catches, first, data, numpy, blind, around]
UNSEEN = (sometimes, data, numpy, blind, around)
"""Of these not all that they do can be counted, or believed: a trace may be incomplete."""


def class_with(behaviour: Callable[[Any, Callable[[], Any]], Any], base: Any) -> Any:
    """A class that steps so, which `pickle` finds in this module."""

    class New(base):  # type: ignore[misc]
        turn = 0

        def step(self, closure: Any = None) -> Any:
            self.turn += 1
            return behaviour(self, partial(super().step, closure))

    New.__name__ = New.__qualname__ = f"{behaviour.__name__}_{base.__name__}"
    return globals().setdefault(New.__name__, New)


class Made(NamedTuple):
    """An optimizer of a program."""

    base: str
    behaviour: int
    groups: tuple[int, ...]
    """The group of each parameter of the pool; 0 if it is in none."""

    def make(self, pool: Sequence[Any]) -> Any:
        """A new optimizer for parameters of the pool."""
        numbers = [min(each, 1) for each in self.groups] if self.is_lbfgs else self.groups
        groups = [
            {"params": [p for p, number in zip(pool, numbers, strict=False) if number == n]}
            for n in (1, 2)
        ]
        groups = [group for group in groups if group["params"]]
        base, behaviour = BASES[self.base], BEHAVIOURS[self.behaviour]
        if behaviour is None or (self.is_lbfgs and behaviour in (twice, first)):
            return base(groups)
        if behaviour is around:
            return Around(base(groups))
        plain: Any = base
        options: dict[str, Any] = {}
        if isinstance(base, partial):
            plain, options = base.func, base.keywords
        return class_with(behaviour, plain)(groups, **options)

    @property
    def is_lbfgs(self) -> bool:
        return self.base == "lbfgs"


class Action(NamedTuple):
    """One line of a program; `flags` are the parameters that it is about, or options."""

    does: str
    slot: int
    flags: tuple[bool, ...]


class Program(NamedTuple):
    """Two optimizers and what is done with them."""

    made: tuple[Made, Made]
    actions: list[Action]
    raises: bool


STEPS = ["step", "closure", "scaler", "unscaled", "infinite", "thread", "nested"]
RAISES = ["raise", "raise in closure", "raise in hook", "raise in post hook", "raise in scaler"]
OTHERS = ["zero", "none", "freeze", "add", "wrap", "wrap", "unwrap", "record", "end", "remake"]
OTHERS += ["copies", "schedule", "hook gives", "hook takes", "hook after", "record", "read"]


@st.composite
def programs(draw: Any) -> Program:
    """A program; few raise, which hides others."""
    made = st.builds(
        Made,
        st.sampled_from(list(BASES)),
        st.just(0) | st.integers(0, len(BEHAVIOURS) - 1),
        st.tuples(*[st.integers(0, 2)] * POOL).filter(any),
    )
    raises = draw(st.integers(0, 3)) == 3
    does = st.sampled_from(["step", *STEPS, *(RAISES if raises else ())]) | st.sampled_from(OTHERS)
    slot, flags = st.sampled_from([0, 0, 0, 1]), st.tuples(*[st.booleans()] * POOL)
    actions = draw(st.lists(st.builds(Action, does, slot, flags), min_size=2, max_size=15))
    return Program((draw(made), draw(made)), actions, raises)


class Slot:
    """An optimizer of a program that runs, and what happened to it while it was wrapped."""

    def __init__(self, made: Made, optimizer: Any) -> None:
        self.made = made
        self.optimizer = optimizer
        self.wrapped = self.was_wrapped = False
        self.scheduler: Any = None
        own = BEHAVIOURS[made.behaviour]
        self.log: Log = []
        self.excused = own in UNSEEN or (own is not None and "fused" in made.base)
        """Whether its trace may be incomplete."""
        self.once = made.is_lbfgs or own is first  # in a step, whoever updates a parameter
        self.is_custom = made.base == "odometer" or own is not None
        self.stepped = self.clears = False
        self.loose = made.is_lbfgs and own is blind
        """Whether what its steps did cannot be seen, without a note: see `docs/limits.md`."""


@dataclass
class Block:
    """A block of `tracer.record`."""

    left: ExitStack
    recording: Any
    logs: dict[Slot, Log] = field(default_factory=dict)
    excused: bool = False
    """Whether something was unwrapped in it."""


class Run:
    """A program that runs, with the tracer or without."""

    def __init__(self, program: Program, traced: bool) -> None:
        self.traced = traced
        self.pool = [torch.nn.Parameter(torch.zeros(2)) for _ in range(POOL)]
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        self.scaler.scale(torch.ones(1))
        self.slots = [Slot(made, made.make(self.pool)) for made in program.made]
        self.blocks: list[Block] = []
        self.raised: list[str] = []
        self.inner = Counter[Any]()  # what steps inside of one under way added
        try:
            for action in program.actions:
                slot = self.slots[action.slot]
                if action.does in STEPS or action.does in RAISES:
                    self.step(slot, action)
                else:
                    getattr(self, action.does.replace(" ", "_"))(slot, action.flags)
            for slot in self.slots:
                self.read(slot)
            while self.blocks:
                self.end(self.slots[0])
        finally:  # also of a program that fails
            while self.blocks:
                self.blocks.pop().left.close()

    def step(self, slot: Slot, action: Action) -> None:
        """Step once, and note what that moved."""
        before, outer, self.inner = self.weights(), self.inner, Counter()
        failed = True
        try:
            hides = BEHAVIOURS[slot.made.behaviour] in (data, numpy) and "fused" in slot.made.base
            slot.loose |= hides and action.does == "infinite"  # it should have left all out
            Odometer.fails = action.does in ("raise", "raise in scaler")
            self.call(slot, action)
            failed = False
        except Exception as error:
            self.raised.append(type(error).__name__)
        finally:
            Odometer.fails = False
        moved = [now - then for now, then in zip(self.weights(), before, strict=True)]
        own = [by - self.inner[place] for place, by in enumerate(moved)]
        counts = [by != 0 if slot.once else round(by) for by in own]
        updates = Counter({(place,): int(count) for place, count in enumerate(counts) if count})
        self.inner = outer + Counter(dict(enumerate(moved)))
        is_held = slot.wrapped or (slot.was_wrapped and self.blocks)
        logs = [slot.log] if is_held else []
        logs += [block.logs.setdefault(slot, []) for block in self.blocks]
        slot.excused |= failed or "raise" in action.does
        # A hook may have given a gradient to what did not move, and another one removed it.
        still = {id(p) for p, by in zip(self.pool, own, strict=True) if p.requires_grad and not by}
        slot.excused |= slot.clears and not still.isdisjoint(map(id, _parameters(slot.optimizer)))
        if not failed or action.does == "raise in post hook":
            for log in logs:
                log.append(updates)
        slot.stepped = True
        if slot.scheduler is not None:
            slot.scheduler.step()

    def weights(self) -> list[float]:
        return [float(each.detach()[0]) for each in self.pool]

    def give(self, slot: Slot, flags: Sequence[bool], way: str = "") -> None:
        """Give gradients; those that were there get the value, too."""
        value = float("inf") if way == "infinite" else -1.0
        takes_sparse = slot.made.base in ("odometer", "sgd", "sgd foreach")
        is_sparse = takes_sparse and flags[-1] and way == "step"
        for place, parameter in enumerate(self.pool):
            if any(parameter is each for each in _parameters(slot.optimizer)):
                wanted = flags[place % POOL] and parameter.requires_grad
                if wanted or parameter.grad is not None:
                    gradient = torch.full_like(parameter, value)
                    parameter.grad = gradient.to_sparse() if is_sparse else gradient

    def call(self, slot: Slot, action: Action) -> None:
        """Make the call of `step`."""
        way, flags, optimizer = action.does, action.flags, slot.optimizer

        def closure() -> Any:
            optimizer.zero_grad()
            other = self.slots[self.slots[0] is slot]
            if way == "nested" and not shared(optimizer, other.optimizer):
                self.step(other, Action("step", 0, flags))
            self.give(slot, flags)
            if way == "raise in closure":
                raise OnPurpose
            return torch.zeros(())

        def fail(*given: Any) -> None:
            raise OnPurpose

        if slot.made.is_lbfgs or way in ("closure", "nested", "raise in closure"):
            optimizer.step(closure)
            return
        self.give(slot, flags, way)
        if way in ("scaler", "unscaled", "infinite", "raise in scaler"):
            try:
                if way == "unscaled":
                    self.scaler.unscale_(optimizer)
                self.scaler.step(optimizer)
            finally:
                self.scaler.update(1.0)
        elif way == "thread":
            worker = threading.Thread(target=optimizer.step)
            worker.start()
            worker.join()
        elif "hook" in way:
            when = "post" if "post" in way else "pre"
            hook = getattr(optimizer, f"register_step_{when}_hook")(fail)
            try:
                optimizer.step()
            finally:
                hook.remove()
        else:
            optimizer.step()

    # What programs do besides.

    def zero(self, slot: Slot, flags: Sequence[bool]) -> None:
        slot.optimizer.zero_grad(set_to_none=False)

    def none(self, slot: Slot, flags: Sequence[bool]) -> None:
        slot.optimizer.zero_grad()

    def freeze(self, slot: Slot, flags: Sequence[bool]) -> None:
        for parameter, flag in zip(self.pool, flags, strict=False):
            parameter.requires_grad_(not flag)

    def add(self, slot: Slot, flags: Sequence[bool]) -> None:
        known = set(map(id, _parameters(slot.optimizer)))
        new = [p for p, f in zip(self.pool, flags, strict=False) if f and id(p) not in known]
        if new and not slot.made.is_lbfgs and slot.scheduler is None:
            slot.optimizer.add_param_group({"params": new})

    def remake(self, slot: Slot, flags: Sequence[bool]) -> None:
        self.replace(slot, slot.made.make(self.pool))
        slot.optimizer = slot.scheduler = None
        if flags[0]:
            gc.collect()

    def copies(self, slot: Slot, flags: Sequence[bool]) -> None:
        """Go on with a copy, which has parameters of its own; some classes keep too little."""
        old = slot.optimizer
        if not slot.made.is_lbfgs and BEHAVIOURS[slot.made.behaviour] is not around:
            made = copy.deepcopy(old) if flags[0] else pickle.loads(pickle.dumps(old))
            self.pool += _parameters(made)
            self.replace(slot, made)

    def replace(self, slot: Slot, optimizer: Any) -> None:
        self.read(slot)
        self.slots[self.slots.index(slot)] = Slot(slot.made, optimizer)

    def schedule(self, slot: Slot, flags: Sequence[bool]) -> None:
        slot.scheduler = torch.optim.lr_scheduler.LambdaLR(slot.optimizer, lambda step: 1.0)

    def hook_gives(self, slot: Slot, flags: Sequence[bool]) -> None:
        slot.optimizer.register_step_pre_hook(lambda *given: self.give(slot, flags))

    def hook_takes(self, slot: Slot, flags: Sequence[bool]) -> None:
        def hook(optimizer: Any, *given: Any) -> None:
            _parameters(optimizer)[0].grad = None

        slot.optimizer.register_step_pre_hook(hook)

    def hook_after(self, slot: Slot, flags: Sequence[bool]) -> None:
        slot.optimizer.register_step_post_hook(lambda optimizer, *given: optimizer.zero_grad())
        # What it takes away cannot be seen any more, where the versions of tensors do not tell.
        slot.excused |= slot.made.is_lbfgs or "fused" in slot.made.base
        slot.excused |= BEHAVIOURS[slot.made.behaviour] is twice  # the second one may do nothing
        slot.clears = slot.is_custom
        slot.loose |= BEHAVIOURS[slot.made.behaviour] in UNSEEN

    # What they do with the tracer.

    def wrap(self, slot: Slot, flags: Sequence[bool]) -> None:
        if self.traced:
            slot.loose |= slot.made.is_lbfgs and slot.stepped and not slot.wrapped
            tracer.wrap(slot.optimizer, effects=flags[0])
            slot.wrapped = slot.was_wrapped = True

    def unwrap(self, slot: Slot, flags: Sequence[bool]) -> None:
        if slot.wrapped:
            tracer.unwrap(slot.optimizer)
            slot.wrapped = False
            for block in self.blocks:
                block.excused = True

    def record(self, slot: Slot, flags: Sequence[bool]) -> None:
        if self.traced:
            left = ExitStack()
            for each in self.slots:
                each.loose |= each.made.is_lbfgs and each.stepped
            self.blocks.append(Block(left, left.enter_context(tracer.record(effects=flags[0]))))

    def end(self, slot: Slot, flags: Sequence[bool] = ()) -> None:
        if self.blocks:
            block = self.blocks.pop()
            block.left.close()
            self.compare(block.recording.trace(), block.logs, block.excused)

    def read(self, slot: Slot, flags: Sequence[bool] = ()) -> None:
        if slot.was_wrapped:
            self.compare(tracer.trace_of(slot.optimizer), {slot: slot.log})
        if self.blocks:
            block = self.blocks[-1]
            self.compare(block.recording.trace(), block.logs, block.excused)

    def compare(self, trace: Trace, happened_to: dict[Slot, Log], excused: bool = False) -> None:
        """What is counted is what the weights say, or the trace says that it is not complete."""
        assert not any("bug in tracer" in each for each in trace.notes), trace.notes
        logs = [log for log in happened_to.values() if log]
        if not trace.complete:
            excused |= any(slot.excused for slot in happened_to)
            # Own code of which no update was ever seen may write past versions: that is noted.
            excused |= any(s.made.behaviour and not any(log) for s, log in happened_to.items())
            assert trace.notes and excused, trace.notes
            return
        steps = sorted(map(len, logs))
        found = sorted(filter(None, trace.steps_by_replica().values()))
        assert found == steps, f"{found} steps, {steps} happened"
        if any(slot.loose for slot in happened_to):
            return
        variables = dict(enumerate(self.pool))
        if len(logs) == 1:
            require([differ(trace, counted(trace, variables), logs[0])])
        else:  # a step is one of each optimizer
            whole, _ = counted(trace, variables)
            total = sum((updates for log in logs for updates in log), Counter())
            assert whole == total, f"{whole} updates, {total} happened"

    def bits(self) -> Any:
        """What is left of a program."""
        weights = [each.detach().numpy().tobytes() for each in self.pool]
        return weights, self.raised, [repr(slot.optimizer.state_dict()) for slot in self.slots]


def check(program: Program) -> Counter[str]:
    """The tracer counts what the weights say, and changes nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = Run(program, traced=False).bits()
        assert Run(program, traced=True).bits() == plain
    gc.freeze()  # nothing of it is found by the next one
    return Counter(action.does for action in program.actions)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(programs(), check, gc.collect)
