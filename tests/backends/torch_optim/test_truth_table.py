"""What the tracer counts for `torch.optim`, beside odometers and weights that changed.

Each row is a way to train; it returns how many parameters each step updated, as the weights say.
"""

import gc
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial, partialmethod, wraps
from typing import Any

import pytest
import torch
from support.ran import Ran, by_step, check
from support.saved import assert_each_block_is_saved
from support.torch_odometers import Around, Moves, Odometer, give, in_threads, readings, zeros
from torch.optim.optimizer import register_optimizer_step_pre_hook

import tracer
from tracer.backends.torch import compat
from tracer.backends.torch.freeze_monitor import FreezeMonitor
from tracer.core.snapshot import Reader

torch.set_num_threads(1)
INFINITE = float("inf")


Wrap = Callable[[Any], Any]
Row = Callable[[Wrap], Ran]
ROWS: dict[str, Row] = {}


def row(function: Row) -> Row:
    ROWS[function.__name__.replace("_", " ")] = function
    return function


Part = Callable[[int, Sequence[Any]], Sequence[Any]]
"""Of a step and the parameters those that have a gradient in it."""


def all_but_first(step: int, parameters: Sequence[Any]) -> Sequence[Any]:
    return parameters[1:]


def all_in_each_second(step: int, parameters: Sequence[Any]) -> Sequence[Any]:
    """The first one has none in the others."""
    return parameters[step % 2 :]


def none(step: int, parameters: Sequence[Any]) -> Sequence[Any]:
    return ()


def counted(
    optimizer: Any,
    by_step: Sequence[int],
    part: Part = lambda step, parameters: parameters,
    step: Callable[[], Any] | None = None,
    value: Callable[[int], float] = lambda step: 1.0,
    **known: Any,
) -> Ran:
    """Steps of an odometer, of which the weights must say that they updated `by_step`."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, updates in enumerate(by_step):
        before = sum(readings(parameters))
        optimizer.zero_grad()
        give(part(number, parameters), value(number))
        (step or optimizer.step)()
        assert sum(readings(parameters)) - before == updates
    return Ran(optimizer, by_step, **known)


@row
def eager(wrap: Wrap) -> Ran:
    return counted(wrap(Odometer(zeros())), [3] * 5)


@row
def a_gradient_that_is_none_in_each_second_step(wrap: Wrap) -> Ran:
    requests = {"dense": 15, "none": 3}
    return counted(wrap(Odometer(zeros())), [3, 2] * 3, all_in_each_second, requests=requests)


@row
def sparse_gradients(wrap: Wrap) -> Ran:
    table = torch.nn.Embedding(10, 2, sparse=True)
    torch.nn.init.zeros_(table.weight)
    dense = torch.nn.Parameter(torch.zeros(2))
    optimizer = wrap(Odometer([table.weight, dense]))
    for _ in range(4):
        optimizer.zero_grad()
        (table(torch.tensor([1, 2])).sum() + dense.sum()).backward()
        optimizer.step()
    assert readings([table.weight, dense]) == [4, 4]
    return Ran(optimizer, [2] * 4, requests={"dense": 4, "sparse": 4})


@row
def groups_of_which_one_comes_later(wrap: Wrap) -> Ran:
    parameters, late = zeros(), zeros(2)
    optimizer = wrap(Odometer([{"params": parameters[:1]}, {"params": parameters[1:]}]))
    for step in range(6):
        if step == 4:
            optimizer.add_param_group({"params": late})
        give([*parameters, *late])
        optimizer.step()
    assert readings([*parameters, *late]) == [6, 6, 6, 2, 2]
    return Ran(optimizer, [3] * 4 + [5] * 2)


@row
def a_scheduler_which_patches_step(wrap: Wrap) -> Ran:
    optimizer = Odometer(zeros())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    wrap(optimizer)
    return counted(optimizer, [3] * 4, step=lambda: (optimizer.step(), scheduler.step()))


@row
def a_closure(wrap: Wrap) -> Ran:
    parameters = zeros()
    optimizer = wrap(Odometer(parameters))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(parameter.sum() for parameter in parameters[:2])
        loss.backward()
        return loss

    with torch.no_grad():
        return counted(optimizer, [2] * 4, none, step=lambda: optimizer.step(closure))


@row
def frozen_parameters(wrap: Wrap) -> Ran:
    parameters = zeros()
    parameters[0].requires_grad_(False)
    optimizer = wrap(Odometer(parameters))
    return counted(optimizer, [2] * 3, all_but_first, requests={"dense": 6})


class Raising(Odometer):
    """Raises, if it is told to, before or after it updates."""

    raises = ""

    def step(self, closure: Any = None) -> Any:
        loss = None if self.raises == "before" else super().step(closure)
        if self.raises:
            raise RuntimeError("on purpose")
        return loss


class Twice(Odometer):
    """Calls the step above it twice."""

    def step(self, closure: Any = None) -> Any:
        super().step()
        return super().step()


@row
def a_step_that_calls_super_twice(wrap: Wrap) -> Ran:
    return counted(wrap(Twice(zeros())), [6] * 3)


@row
def an_optimizer_around_another(wrap: Wrap) -> Ran:
    class Lookahead(Around):
        """Steps with another optimizer, and each second time not at all."""

        def step(self, closure: Any = None) -> Any:
            self.steps += 1
            return self.base.step(closure) if self.steps % 2 else None

    return counted(wrap(Lookahead(Odometer(zeros()))), [3, 0, 3, 0], complete=False)


@row
def an_optimizer_around_another_that_updates_by_itself_too(wrap: Wrap) -> Ran:
    class Beside(torch.optim.Optimizer):  # type: ignore[misc]
        """Steps with some parameters itself, and has another optimizer for the others."""

        def __init__(self, own: Any, others: Any) -> None:
            super().__init__(own, {})
            self.others = Odometer(others)

        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                for parameter in self.param_groups[0]["params"]:
                    if parameter.grad is not None:
                        parameter.add_(1)
            return self.others.step(closure)

    own, others = zeros(2), zeros(3)
    optimizer = wrap(Beside(own, others))
    for _ in range(3):
        give([*own[1:], *others])
        optimizer.step()
    assert readings([*own, *others]) == [0, 3, 3, 3, 3]
    return Ran(optimizer, [4] * 3)


class Clearing(Odometer):
    """Takes the gradients away when it has used them, and calls no other step."""

    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
        with torch.no_grad():
            for parameter in self.param_groups[0]["params"]:
                if parameter.grad is not None:
                    parameter.add_(1)
                    parameter.grad = None


@row
def gradients_that_are_gone_after_the_step_and_a_hook_before_it(wrap: Wrap) -> Ran:
    optimizer = wrap(Clearing(zeros()))
    optimizer.register_step_pre_hook(lambda *given: None)
    return counted(optimizer, [2] * 3, all_but_first)


@row
def gradients_of_a_hook_of_all_optimizers(wrap: Wrap) -> Ran:
    """It comes after the tracer's own, as it was registered later."""
    optimizer = wrap(torch.optim.SGD(zeros(), lr=1.0, maximize=True))
    step = hooked(optimizer, lambda *given: give(optimizer.param_groups[0]["params"]))
    return counted(optimizer, [3] * 3, none, step)


def hooked(optimizer: Any, hook: Callable[..., None]) -> Callable[[], None]:
    """A step around which the hook is there before those of all optimizers."""

    def stepped() -> None:
        handle = register_optimizer_step_pre_hook(hook)
        try:
            optimizer.step()
        finally:
            handle.remove()

    return stepped


@row
def gradients_that_a_hook_takes_away_after_the_step(wrap: Wrap) -> Ran:
    optimizer = Odometer(zeros())
    optimizer.register_step_pre_hook(lambda *given: None)
    hook = optimizer.register_step_post_hook(lambda stepped, *given: stepped.zero_grad())
    wrap(optimizer)
    ran = counted(optimizer, [3] * 3)
    hook.remove()
    return ran


@row
def a_lazy_parameter_that_is_never_used(wrap: Wrap) -> Ran:
    parameters = [*zeros(), torch.nn.UninitializedParameter()]
    optimizer = wrap(Odometer(parameters))
    for _ in range(3):
        give(parameters[:3])
        optimizer.step()
    assert readings(parameters[:3]) == [3, 3, 3]
    return Ran(optimizer, [3] * 3, requests={"dense": 9, "none": 3})


@row
def steps_after_one_that_raised_with_frames_in_its_place(wrap: Wrap) -> Ran:
    parameters = zeros(1)
    optimizer = wrap(Raising(parameters))
    give(parameters)
    for size in range(40):  # some frame of a caller comes to lie where that of the step was
        optimizer.raises = "before"
        with suppress(RuntimeError):
            optimizer.step()
        optimizer.raises = ""
        names = " = ".join(f"v{each}" for each in range(size + 1))
        caller: dict[str, Any] = {}
        exec(f"import sys\ndef call(it):\n  {names} = sys._getframe()\n  it.step()", caller)
        caller["call"](optimizer)
    assert readings(parameters) == [40]
    return Ran(optimizer, [1] * 40, complete=False)


def scaled(
    wrap: Wrap, make: Any, infinite: Sequence[int] = (), without: Sequence[int] = (), **known: Any
) -> Ran:
    """Six steps with a `GradScaler`, some with infinite gradients or `without` any."""
    parameters = zeros()
    optimizer = wrap(make(parameters))
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    moves = Moves(parameters)
    for step in range(1, 7):
        scaler.scale(torch.ones(1))
        optimizer.zero_grad()
        give([] if step in without else parameters, INFINITE if step in infinite else 1.0)
        scaler.step(optimizer)
        scaler.update(4.0)
        moves.look()
    return Ran(optimizer, moves.by_step, **known)


class FusedBeside(torch.optim.SGD):  # type: ignore[misc]
    """A kernel leaves out its work, and the code of the class does not."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            self.param_groups[0]["params"][0].add_(1)
        return super().step(closure)


ASKED = "GradScaler.step"
ROWS["a scaler"] = partial(
    scaled,
    make=Odometer,
    infinite=(1, 2, 5),
    requests={"dense": 18},
    executions={ASKED: 6, "step": 3},
)
ROWS["a fused optimizer and a scaler"] = partial(
    scaled,
    make=partial(torch.optim.Adam, fused=True),
    infinite=(2, 4),
    requests={"dense": 18},
    executions={ASKED: 6, "step": 6},
)
ROWS["a fused optimizer and a scaler, without gradients"] = partial(
    scaled,
    make=partial(torch.optim.SGD, fused=True),
    without=(2, 4),
    requests={"dense": 12, "none": 6},
)
ROWS["a fused class with a step of its own and a scaler"] = partial(
    scaled,
    make=partial(FusedBeside, fused=True),
    infinite=(2, 4),
    requests={"dense": 18},
    complete=False,
)


@row
def a_step_that_raises(wrap: Wrap) -> Ran:
    parameters = zeros()
    optimizer = wrap(Raising(parameters))
    for step in range(5):
        give(parameters)
        optimizer.raises = "before" if step in (1, 4) else ""
        with suppress(RuntimeError):
            optimizer.step()
    assert readings(parameters) == [3, 3, 3]
    return Ran(optimizer, [3] * 3, executions={"step": 3 * 2}, complete=False)


@row
def lbfgs(wrap: Wrap) -> Ran:
    parameters = zeros(2)
    optimizer = wrap(torch.optim.LBFGS(parameters, line_search_fn="strong_wolfe"))

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(((parameter - 3) ** 2).sum() for parameter in parameters)
        loss.backward()
        return loss

    moves = Moves(parameters)
    for _ in range(4):
        optimizer.step(closure)
        moves.look()
    assert moves.by_step == [2, 0, 0, 0]  # it has converged in its first step
    return Ran(optimizer, moves.by_step)


@row
def lbfgs_that_has_converged_before(wrap: Wrap) -> Ran:
    """PyTorch's own code writes past no version: that it wrote nothing is believed."""
    optimizer = wrap(torch.optim.LBFGS(zeros()))
    return counted(
        optimizer,
        [0] * 3,
        step=partial(optimizer.step, lambda: torch.zeros(())),
        value=lambda step: 0.0,
    )


class Own(torch.optim.Optimizer):  # type: ignore[misc]
    """Adds 1 to each parameter by `add`, with or without a gradient, in each step of `every`."""

    every = 1

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {})
        self.steps = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.steps += 1
        if self.steps % self.every == 0:
            self.add(self.param_groups[0]["params"])

    def add(self, parameters: Any) -> None:
        for parameter in parameters:
            parameter.add_(1)


class ByData(Own):
    """Changes no version: counted by gradient."""

    def add(self, parameters: Any) -> None:
        for parameter in parameters:
            parameter.data.add_(1)


def stepped(wrap: Wrap, cls: Any, *, given: bool, steps: int = 8, complete: bool = True) -> Ran:
    """Steps of one of these classes, whose parameters have a gradient if it is `given`."""
    parameters = zeros()
    optimizer = wrap(cls(parameters))
    moves = Moves(parameters)
    for _ in range(steps):
        if given:
            give(parameters)
        optimizer.step()
        moves.look()
    kinds = {"dense": 3 * steps if given else sum(moves.by_step)}
    kinds |= {} if sum(kinds.values()) == 3 * steps else {"none": 3 * steps - kinds["dense"]}
    return Ran(optimizer, moves.by_step, requests=kinds, complete=complete)


ROWS["a step of its own"] = partial(stepped, cls=Own, given=True)
ROWS["a step of its own, by data"] = partial(stepped, cls=ByData, given=True, complete=False)
ROWS["a step that makes its gradients"] = partial(stepped, cls=Own, given=False)


@row
def a_step_that_skips_what_is_not_finite(wrap: Wrap) -> Ran:
    class Careful(Odometer):
        def step(self, closure: Any = None) -> Any:
            if all(p.grad.isfinite().all() for p in self.param_groups[0]["params"]):
                return super().step(closure)
            return None

    return counted(
        wrap(Careful(zeros())),
        [3, 0, 3] * 2,
        value=lambda step: INFINITE if step % 3 == 1 else 1.0,
        requests={"dense": 18},
        complete=False,
    )


@row
def a_fused_class_that_only_adds_a_method(wrap: Wrap) -> Ran:
    class Named(torch.optim.SGD):  # type: ignore[misc]
        def rate(self) -> Any:
            return self.param_groups[0]["lr"]

    return counted(wrap(Named(zeros(), lr=1.0, fused=True, maximize=True)), [3] * 3)


@row
def gradients_that_a_step_is_handed(wrap: Wrap) -> Ran:
    class Handed(torch.optim.Optimizer):  # type: ignore[misc]
        @torch.no_grad()
        def step(self, gradients: Any) -> None:
            for parameter, gradient in zip(self.param_groups[0]["params"], gradients, strict=True):
                if gradient is not None:
                    parameter += gradient

    optimizer = wrap(Handed(zeros(), {}))
    step = partial(optimizer.step, [None, torch.ones(2), torch.ones(2)])
    return counted(optimizer, [2] * 5, none, step, requests={"dense": 10, "none": 5})


class Fourth(Own):
    every = 4


class OneInPlace(Own):
    def add(self, parameters: Any) -> None:
        parameters[0].add_(1)
        parameters[1].data.add_(0)


class ByKernel(Own):
    """As a kernel that the program has built: nothing in its code tells what it does."""

    def add(self, parameters: Any) -> None:
        options = {"momentum": 0.0, "dampening": 0.0, "is_first_step": False, "lr": 1.0}
        options |= {"weight_decay": 0.0, "nesterov": False, "maximize": True}
        torch._fused_sgd_(parameters, [torch.ones(2) for _ in parameters], [], **options)


class FusedLater(torch.optim.SGD):  # type: ignore[misc]
    """As one that loads the state of a fused one."""

    steps = 0

    def step(self, closure: Any = None) -> Any:
        self.steps += 1
        self.param_groups[0]["fused"] = self.steps > 2
        return super().step(closure)


@pytest.mark.parametrize(
    ("cls", "counted"),
    [
        (Fourth, [3, 3, 3, 3, 0, 0, 0, 3]),
        (OneInPlace, [3] * 8),
        (ByKernel, [3] * 8),
        (partial(FusedLater, lr=1.0, foreach=False), [3] * 8),
    ],
)
def test_what_no_version_shows_is_said(cls: Any, counted: Sequence[int]) -> None:
    """It is counted by gradient until a version moves, and noted, also of what accumulates."""
    optimizer = stepped(tracer.wrap, cls, given=True, complete=False).optimizer
    trace = tracer.trace_of(optimizer)
    assert by_step(trace) == counted and not trace.complete
    assert f"{type(optimizer).__name__} has a custom step that did not change" in trace.notes[0]


@pytest.mark.parametrize("name", ROWS)
def test_counts(name: str) -> None:
    ran = ROWS[name](tracer.wrap)
    check(tracer.trace_of(ran.optimizer), ran)


@pytest.mark.parametrize("name", ROWS)
def test_recorded(name: str) -> None:
    """The same without `wrap`: each optimizer that is used is met when it steps."""
    with tracer.record() as recording:
        ran = ROWS[name](lambda optimizer: optimizer)
    check(recording.trace(), ran)
    gc.collect()  # what other tests wrapped
    assert not ran.optimizer._optimizer_step_post_hooks
    assert torch.amp.GradScaler.step.__module__ == "torch.amp.grad_scaler"


@pytest.mark.parametrize("wrap", [False, True], ids=["found", "wrapped"])
def test_each_block_over_a_step_of_an_earlier_block_is_saved(wrap: bool) -> None:
    optimizer = Odometer(zeros())
    parameters = optimizer.param_groups[0]["params"]

    def train() -> None:
        give(parameters)
        optimizer.step()

    assert_each_block_is_saved(optimizer, train, 3, wrap=wrap)
    assert readings(parameters) == [4, 4, 4]


def scaled_step(optimizer: Any) -> Callable[[], None]:
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    scaler.scale(torch.ones(1))

    def step() -> None:
        scaler.step(optimizer)
        scaler.update()

    return step


@pytest.mark.long
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.parametrize("when", ["in the block", "before the block", "while wrapped"])
@pytest.mark.parametrize(
    ("cls", "step_of", "options"),
    [
        (partial(torch.optim.SGD, lr=1.0, maximize=True), lambda each: each.step, {}),
        (Odometer, lambda each: each.step, {"fullgraph": True}),
        (Odometer, scaled_step, {}),
        (Clearing, lambda each: lambda: each.step(), {}),
        (Twice, lambda each: each.step, {}),
    ],
)
def test_a_compiled_step_is_not_counted(cls: Any, step_of: Any, options: Any, when: str) -> None:
    """A program that an earlier block compiled runs again without a call of Python."""
    parameters = zeros()
    optimizer = cls(parameters)
    if when == "while wrapped":
        tracer.wrap(optimizer)
    step = torch.compile(step_of(optimizer), backend="eager", **options)

    def train() -> None:
        for _ in range(2):
            give(parameters)
            step()

    if when == "before the block":
        train()
    for _ in range(3):
        with tracer.record() as recording:
            train()
        trace = recording.trace()
        assert trace.updates() == 0 and not trace.complete
        assert any("torch.compile compiled a step of" in note for note in trace.notes)
    if when == "while wrapped":
        assert not tracer.trace_of(optimizer).complete
    steps = 8 if when == "before the block" else 6
    assert readings(parameters) == [steps * (2 if cls is Twice else 1)] * 3


def test_no_thread_steps_before_a_block_has_noted_what_was_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    baseline = Reader.baseline

    def late(reader: Reader) -> Any:
        threading.Event().wait(0.05)
        return baseline(reader)

    monkeypatch.setattr(Reader, "baseline", late)
    parameters = zeros(1)
    optimizer = Odometer(parameters)
    give(parameters)

    def train(_: int) -> None:
        for _ in range(10):
            optimizer.step()

    with tracer.record() as recording, tracer.record() as inner:
        in_threads(train)
    assert readings(parameters) == [40]
    for each in (recording, inner):
        assert (each.trace().steps, each.trace().complete) == (40, True)


@pytest.mark.parametrize("register", ["register_step_pre_hook", "register_step_post_hook"])
def test_a_block_ends_while_a_thread_is_in_a_hook_of_the_program(register: str) -> None:
    parameters = zeros(1)
    give(parameters)
    optimizer = Odometer(parameters)
    reached, goes_on, called = threading.Event(), threading.Event(), []

    def wait(*given: Any) -> None:
        reached.set()
        assert goes_on.wait(60)

    handles = [getattr(optimizer, register)(each) for each in (wait, lambda *_: called.append(1))]
    raised = []

    def train() -> None:
        try:
            optimizer.step()
        except Exception as error:
            raised.append(error)

    worker = threading.Thread(target=train)
    with tracer.record():
        worker.start()
        assert reached.wait(60)
    goes_on.set()
    worker.join()
    assert (raised, called, readings(parameters)) == ([], [1], [1])
    for handle in handles:
        handle.remove()
    with tracer.record() as counted:
        optimizer.step()
    assert counted.trace().steps == 1
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks


def test_a_step_that_raises_in_a_thread_which_has_ended() -> None:
    optimizer = tracer.wrap(Raising(zeros()))
    optimizer.raises = "before"

    def train(_: int) -> None:
        with suppress(RuntimeError):
            optimizer.step()

    in_threads(train, 1)
    assert not tracer.trace_of(optimizer).complete


def trained(optimizer: Odometer, steps: int) -> int:
    """Make steps; how often the weights say that each parameter was updated."""
    parameters = optimizer.param_groups[0]["params"]
    before = readings(parameters)[0]
    for _ in range(steps):
        give(parameters)
        optimizer.step()
    return readings(parameters)[0] - before


def test_the_trace_has_all_that_is_counted_from_the_first_wrap_on() -> None:
    """With a block around, before and after it, and one in which it is not used."""
    optimizer = Odometer(zeros(1))
    with tracer.assert_updates(optimizer, dense=0):
        pass
    with tracer.record() as recording:
        trained(optimizer, 1)
        tracer.wrap(optimizer)
        wrapped = trained(optimizer, 1)
    wrapped += trained(optimizer, 2)  # the end of the block leaves it wrapped
    assert tracer.trace_of(optimizer).steps == wrapped == 3
    tracer.unwrap(optimizer)
    trained(optimizer, 1)
    with tracer.record() as later:
        trained(optimizer, 4)
    trained(tracer.wrap(optimizer), 1)
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (8, 8, True)
    assert (recording.trace().steps, later.trace().steps) == (2, 4)


@pytest.mark.parametrize("kind", ["plain", "own step", "around"])
def test_lbfgs_moves_what_had_a_gradient(kind: str) -> None:
    """Not what never had one, though it writes to all: by what is left of the bits."""

    class Own(torch.optim.LBFGS):  # type: ignore[misc]
        def step(self, closure: Any) -> Any:
            return super().step(closure)

    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(3)]
    made = (Own if kind == "own step" else torch.optim.LBFGS)(parameters, lr=0.1, max_iter=2)
    optimizer = tracer.wrap(Around(made) if kind == "around" else made)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = sum(((each - 3 - i) ** 2).sum() for i, each in enumerate(parameters[:given]))
        loss.backward()
        return loss

    moved = [0, 0, 0]
    for given in (2, 2, 1, 1):
        before = [each.detach().clone() for each in parameters]
        optimizer.step(closure)
        for place, (old, new) in enumerate(zip(before, parameters, strict=True)):
            moved[place] += not torch.equal(old, new)
        parameters[1].requires_grad_(given == 2)
    trace = tracer.trace_of(optimizer)
    assert [trace.updates(variable=each) for each in parameters] == moved == [4, 4, 0]
    assert (trace.steps, trace.complete) == (4, True)


BY = pytest.mark.parametrize("by", ["closure", "pre-hook", "post-hook"])


def calling(optimizer: Any, by: str, function: Callable[..., Any]) -> list[Any]:
    """Have a closure or a hook of the steps call a function; what to give to the steps."""
    if by != "closure":
        getattr(optimizer, f"register_step_{by.replace('-', '_')}")(function)
    return [function] if by == "closure" else []


class Super(torch.optim.SGD):  # type: ignore[misc]
    def step(self, closure: Any = None) -> Any:
        return super().step(closure)


@BY
@pytest.mark.parametrize("cls", [torch.optim.SGD, Super, Odometer])
def test_a_closure_or_a_hook_that_steps_once_more(cls: Any, by: str) -> None:
    """PyTorch's own step updates what has a gradient, and so do both; of others it is noted."""
    parameters = zeros()
    options = {} if cls is Odometer else {"lr": 1.0, "maximize": True}
    optimizer = tracer.wrap(cls(parameters, **options))
    stepped: list[bool] = []

    def step(*hooked: Any) -> Any:
        give(parameters)
        if not stepped:
            stepped.append(True)
            optimizer.step()
        return None if hooked else torch.zeros(())

    given = calling(optimizer, by, step)
    give(parameters)
    optimizer.step(*given)
    assert sum(readings(parameters)) >= 6
    trace = tracer.trace_of(optimizer)
    is_exact = cls is torch.optim.SGD
    assert (trace.steps, trace.complete) == (1, is_exact)
    if is_exact:
        assert trace.updates() == sum(readings(parameters))
    else:
        assert any("called another step" in note for note in trace.notes)


class Pair(torch.optim.SGD):  # type: ignore[misc]
    """Has a method that steps another optimizer."""

    def __init__(self, parameters: Any, other: Any) -> None:
        super().__init__(parameters, lr=1.0, maximize=True)
        self.other = other

    def sync(self, *hooked: Any) -> Any:
        self.other.step()
        return None if hooked else torch.zeros(())


class CustomPair(Pair):
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        if closure is not None:
            closure()
        self.param_groups[0]["params"][0].add_(1)


@BY
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("cls", [Pair, CustomPair])
def test_a_method_of_the_class_that_a_closure_or_a_hook_calls(
    cls: Any, shared: bool, by: str
) -> None:
    """Both steps count; of a parameter that both update, only PyTorch's own code counts two."""
    own, others = zeros(1), zeros(1)
    given = own if shared else others
    optimizer = cls(own, torch.optim.SGD(given, lr=1.0, maximize=True))
    with tracer.record() as recording:
        arguments = calling(optimizer, by, optimizer.sync)
        for _ in range(3):
            give([*own, *others])
            optimizer.step(*arguments)
    trace = recording.trace()
    assert sum(readings([*own, *others])) == 6
    is_once = shared and cls is CustomPair
    assert (trace.updates(), trace.complete) == ((3, False) if is_once else (6, True))


def step_of(optimizer: Any) -> Any:
    return optimizer.step()


@contextmanager
def in_context(optimizer: Any) -> Iterator[None]:
    optimizer.step()
    yield


WAYS: dict[str, Callable[[Any], Any]] = {
    "a helper": step_of,
    "a comprehension": lambda optimizer: [inner.step() for inner in [optimizer]],
    "a partial": lambda optimizer: partial(optimizer.step)(),
    "a context": lambda optimizer: in_context(optimizer).__enter__(),
}


@pytest.mark.parametrize("way", WAYS)
def test_own_code_that_steps_with_another_optimizer_is_no_closure(way: str) -> None:
    class Lookahead(Around):
        def step(self, closure: Any = None) -> None:
            with torch.enable_grad():
                closure()
            WAYS[way](self.base)

    parameters = zeros()
    optimizer = tracer.wrap(Lookahead(Odometer(parameters)))
    for _ in range(3):
        optimizer.step(torch.enable_grad()(lambda: give(parameters)))
    trace = tracer.trace_of(optimizer)
    assert readings(parameters) == [3] * 3
    assert (by_step(trace), trace.complete) == ([3] * 3, True)


def only_the_first(optimizer: Any, group: Any, parameters: Any, gradients: Any, rest: Any) -> bool:
    """As `SGD._init_group`, but leaves out the other parameters."""
    (first,) = group["params"][:1]
    for found, value in ((parameters, first), (gradients, first.grad), (rest, None)):
        found.append(value)
    return False


def without_a_module(parameters: Any, **options: Any) -> Any:
    """An optimizer whose class and functions have no module, as `exec` makes them."""
    made: dict[str, Any] = {"base": torch.optim.SGD, "first": only_the_first}
    exec("class Made(base):\n  def _init_group(*given): return first(*given)", made)
    return made["Made"](parameters, **options)


class ByDescriptor(torch.optim.SGD):  # type: ignore[misc]
    _init_group = partialmethod(only_the_first)


class InDisguise(torch.optim.SGD):  # type: ignore[misc]
    @wraps(torch.optim.Optimizer.step)
    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.param_groups[0]["params"][0].add_(1)


def with_a_method_of_its_own(parameters: Any, **options: Any) -> Any:
    optimizer: Any = torch.optim.SGD(parameters, **options)
    optimizer._init_group = partial(only_the_first, optimizer)
    return optimizer


@pytest.mark.parametrize(
    "make", [without_a_module, ByDescriptor, InDisguise, with_a_method_of_its_own]
)
def test_a_custom_step_that_does_not_look_like_one(make: Callable[..., Any]) -> None:
    parameters = zeros()
    with tracer.record() as recording:
        optimizer = make(parameters, lr=1.0, maximize=True, foreach=False)
        for _ in range(3):
            give(parameters)
            optimizer.step()
    trace = recording.trace()
    assert readings(parameters) == [3, 0, 0] and trace.steps == 3
    assert not trace.complete and "has a custom step" in trace.notes[0]


@pytest.mark.parametrize(
    ("home", "name", "options"),
    [
        (torch.optim.Optimizer, "zero_grad", {"fused": True}),
        (torch.optim.SGD, "_init_group", {"foreach": False}),
    ],
)
def test_a_method_that_is_assigned_to_a_class_of_pytorch(
    home: Any, name: str, options: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that no step calls, and one that updates less."""
    is_called = name == "_init_group"
    monkeypatch.setattr(home, name, only_the_first if is_called else lambda *given: None)
    parameters = zeros()
    optimizer = tracer.wrap(torch.optim.SGD(parameters, lr=1.0, maximize=True, **options))
    optimizer.zero_grad = partial(optimizer.zero_grad, set_to_none=False)
    give(parameters)
    optimizer.step()
    assert sum(readings(parameters)) == (1 if is_called else 3)
    assert tracer.trace_of(optimizer).complete != is_called


def test_an_inner_step_that_raises_after_it_updated() -> None:
    class Catching(Around):
        def step(self, closure: Any = None) -> None:
            with suppress(RuntimeError):
                self.base.step()

    parameters = zeros()
    optimizer = Catching(Raising(parameters))
    optimizer.base.raises = "after"
    optimizer.param_groups = [{"params": zeros(1)}]
    tracer.wrap(optimizer)
    give(parameters)
    optimizer.step()
    assert readings(parameters) == [1, 1, 1]
    trace = tracer.trace_of(optimizer)
    assert not trace.complete and "a call of step raised an exception" in trace.notes[0]


@BY
def test_a_parameter_that_only_an_inner_step_of_the_same_optimizer_updates(by: str) -> None:
    """As with two models that take turns in one optimizer."""
    parameters = zeros(2)
    optimizer = tracer.wrap(torch.optim.SGD(parameters, lr=1.0, maximize=True))
    moves, once_more = Moves(parameters), [True, False]

    def turn(*hooked: Any) -> Any:
        once_more.reverse()
        if once_more[1]:
            for place in (0, 1):
                optimizer.zero_grad()
                give([parameters[place]])
                if place == (by == "post-hook"):
                    optimizer.step()
        return None if hooked else torch.zeros(())

    arguments = calling(optimizer, by, turn)
    give(parameters[:1])
    optimizer.step(*arguments)
    moves.look()
    trace = tracer.trace_of(optimizer)
    assert readings(parameters) == [1, 1]
    assert [trace.updates(variable=each) for each in parameters] == [1, 1]
    assert by_step(trace) == moves.by_step and trace.complete


@pytest.mark.parametrize(
    "case", ["LBFGS", "fused", "fused, pre-hook", "began unseen", "inner", "by data, pre-hook"]
)
def test_a_hook_that_takes_away_gradients_which_no_version_shows(case: str) -> None:
    parameters, once_more = zeros(), [True, False]
    options = {"fused": True} if "fused" in case else {}
    cls = {"LBFGS": torch.optim.LBFGS, "by data, pre-hook": ByData}.get(case, torch.optim.SGD)
    optimizer = cls(parameters, **options)
    optimizer.register_step_post_hook(lambda stepped, *_: stepped.zero_grad())
    with ExitStack() as blocks:
        recording: Any = None

        def closure(*hooked: Any) -> Any:
            nonlocal recording
            once_more.reverse()
            recording = recording or blocks.enter_context(tracer.record())
            give(parameters)
            if case == "inner" and once_more[1]:
                optimizer.step()
                give(parameters)
            return None if hooked else torch.zeros(())

        if case != "began unseen":
            recording = blocks.enter_context(tracer.record())
        if "pre-hook" in case:
            optimizer.register_step_pre_hook(closure)
        moves = Moves(parameters)
        optimizer.step(*([] if "pre-hook" in case else [closure]))
    moves.look()
    assert moves.by_step == [3]
    trace = recording.trace()
    assert not trace.complete and "if it removed gradients" in trace.notes[0]


def test_a_step_that_is_set_on_the_optimizer() -> None:
    parameters = zeros()
    optimizer: Any = tracer.wrap(Odometer(parameters))
    optimizer.step = lambda: give(parameters)
    optimizer.step()
    trace = tracer.trace_of(optimizer)
    assert not trace.complete
    assert "the program assigned a step of its own" in trace.notes[0]


def test_what_a_signal_handler_raises_beside_a_step_reaches_the_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def handler(number: int, frame: object) -> None:
        raise TimeoutError

    parameters = zeros()
    optimizer = tracer.wrap(Odometer(parameters))
    give(parameters)
    optimizer.step()
    before = signal.signal(signal.SIGINT, handler)
    interrupt = lambda *given: signal.raise_signal(signal.SIGINT)  # noqa: E731
    monkeypatch.setattr(FreezeMonitor, "_look", interrupt)
    try:
        with pytest.raises(TimeoutError):
            optimizer.step()
    finally:
        signal.signal(signal.SIGINT, before)
    monkeypatch.undo()
    optimizer.step()
    trace = tracer.trace_of(optimizer)
    assert readings(parameters) == [3, 3, 3] and by_step(trace) == [3, 3, 3]
    assert "TimeoutError interrupted the tracer" in trace.notes[0]


def test_a_step_that_is_captured_in_a_cuda_graph_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: what is replayed calls no Python."""
    parameters = zeros()
    optimizer = tracer.wrap(Odometer(parameters))
    give(parameters)
    optimizer.step()
    assert tracer.trace_of(optimizer).complete
    monkeypatch.setattr(compat, "is_capturing", lambda: True)
    optimizer.step()
    trace = tracer.trace_of(optimizer)
    assert not trace.complete
    assert "a step of Odometer was captured in a CUDA graph" in trace.notes[0]
