"""Training with the tracer is the training without it: the same bits, state, hooks and errors."""

import copy
import gc
import inspect
import io
import pickle
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.torch_odometers import Moves, Odometer, give, readings, zeros

import tracer
from tracer.backends.torch import optimizer_hooks
from tracer.core import patches

torch.set_num_threads(1)

CLASSES: dict[str, Any] = {
    name: cls
    for name, cls in vars(torch.optim).items()
    if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and name != "Optimizer"
}
WAYS_TO_STEP: tuple[dict[str, Any], ...] = ({}, {"foreach": True}, {"fused": True})
CELLS = [
    (name, options)
    for name, cls in CLASSES.items()
    for options in WAYS_TO_STEP
    if options.keys() <= inspect.signature(cls).parameters.keys()
    and ("fused" not in options or name in ("Adam", "AdamW", "SGD", "Adagrad"))  # on the CPU
]


def trained(name: str, given: dict[str, Any], prepare: Callable[[Any], Any]) -> tuple[Any, ...]:
    """The optimizer, its state and the weights after some steps, and how many weights changed."""
    torch.manual_seed(0)
    sparse = name == "SparseAdam"
    table = torch.nn.Embedding(5, 3, sparse=sparse)
    layers = [] if sparse or name == "Muon" else [torch.nn.Linear(3, 2), torch.nn.Linear(2, 1)]
    if name == "Muon":
        layers = [torch.nn.Linear(3, 2, bias=False)]
    model = torch.nn.Sequential(table, *layers)
    optimizer = prepare(CLASSES[name](model.parameters(), lr=0.01, **given))
    moves = Moves(list(model.parameters()))
    for step in range(4):

        def closure(step: int = step) -> Any:
            optimizer.zero_grad()
            loss = (model(torch.tensor([1, 2, step])) ** 2).sum()
            loss.backward()
            return loss

        if name == "LBFGS":
            optimizer.step(closure)
        else:
            closure()
            optimizer.step()
        moves.look()
    written = io.BytesIO()
    torch.save([optimizer.state_dict(), model.state_dict()], written)
    return optimizer, written.getvalue(), [p.detach().clone() for p in model.parameters()], moves


@pytest.mark.parametrize(("name", "given"), CELLS)
@pytest.mark.parametrize("effects", [False, True])
def test_the_same_bits(name: str, given: dict[str, Any], effects: bool) -> None:
    plain, written, weights, _ = trained(name, given, lambda optimizer: optimizer)
    traced, written_too, weights_too, moves = trained(
        name, given, lambda optimizer: tracer.wrap(optimizer, effects=effects)
    )
    assert written == written_too
    assert all(torch.equal(a, b) for a, b in zip(weights, weights_too, strict=True))
    assert type(traced) is type(plain)
    assert vars(traced).keys() == vars(plain).keys()
    trace = tracer.trace_of(traced)
    counted = [n for first, last, n in trace.per_step("updates") for _ in range(first, last + 1)]
    assert counted == moves.by_step
    assert (trace.updates("sparse") > 0) == (name == "SparseAdam")
    assert trace.complete and trace.findings() == []


class WithAllOfIt(Odometer):
    """Says itself what is pickled of it: everything, its hooks too."""

    def __getstate__(self) -> dict[str, Any]:
        return dict(vars(self))


@pytest.mark.parametrize("cls", [Odometer, WithAllOfIt])
def test_a_copy_is_not_traced(cls: Any) -> None:
    optimizer = tracer.wrap(cls(zeros(1)))
    written = pickle.dumps(optimizer)
    assert b"tracer" not in written
    for made in (copy.deepcopy(optimizer), pickle.loads(written)):
        copies = made.param_groups[0]["params"]
        give(copies)
        made.step()
        assert readings(copies) == [1]
    assert tracer.trace_of(optimizer).steps == 0


def test_hooks_of_others_come_in_their_order_and_may_give_gradients() -> None:
    parameters = zeros()
    optimizer = Odometer(parameters)
    said: list[str] = []
    optimizer.register_step_pre_hook(lambda *given: said.append("first"))
    tracer.wrap(optimizer)

    def last(*given: Any) -> None:
        said.append("last")
        parameters[0].grad = None

    optimizer.register_step_pre_hook(last)
    optimizer.register_step_post_hook(lambda *given: said.append("after"))
    give(parameters)
    optimizer.step()
    assert said == ["first", "last", "after"] and readings(parameters) == [0, 1, 1]
    assert tracer.trace_of(optimizer).updates() == 2


def test_nothing_stays() -> None:
    for left in optimizer_hooks.watched():  # by another test
        tracer.unwrap(left)
    gc.collect()
    untouched = vars(torch.amp.GradScaler)["step"]
    parameters = zeros()
    optimizer = tracer.wrap(Odometer(parameters))
    assert vars(torch.amp.GradScaler)["step"] is not untouched
    tracer.unwrap(optimizer)
    assert not optimizer._optimizer_step_pre_hooks and not optimizer._optimizer_step_post_hooks
    assert vars(torch.amp.GradScaler)["step"] is untouched
    tracer.wrap(optimizer)
    del optimizer
    gc.collect()
    assert vars(torch.amp.GradScaler)["step"] is untouched
    with tracer.record():
        pass
    assert vars(torch.amp.GradScaler)["step"] is untouched
    assert not vars(inspect.getmodule(torch.optim.Optimizer))["_global_optimizer_pre_hooks"]
    assert {patch.until for patch in patches.patches} == {"exit"}


def test_the_step_of_a_scaler_reads_as_it_did() -> None:
    cls: Any = torch.amp.GradScaler

    def read() -> list[Any]:
        step = cls.step
        whole = inspect.getsource(step), inspect.signature(step), inspect.getmodule(step)
        return [step.__module__, step.__qualname__, step.__name__, step.__doc__, *whole]

    gc.collect()  # what other tests wrapped
    before = read()
    optimizer = tracer.wrap(Odometer(zeros(1)))
    assert read() == before and before[0] == "torch.amp.grad_scaler"
    tracer.unwrap(optimizer)


def test_the_model_and_what_was_computed_are_not_kept() -> None:
    class Raising(Odometer):
        def step(self, closure: Any = None) -> Any:
            raise RuntimeError("out of memory")

    model = torch.nn.Linear(2, 1)
    optimizer = tracer.wrap(Raising(model.parameters()))
    kept = []

    def train(optimizer: Any) -> None:
        large = torch.ones(1000)
        kept.append(weakref.ref(large))
        optimizer.step()

    with pytest.raises(RuntimeError):
        train(optimizer)
    weight, model.weight = weakref.ref(model.weight), torch.nn.Parameter(torch.ones(1, 2))
    optimizer.param_groups[0]["params"][0] = model.weight
    assert weight() is None  # though nothing has asked yet what became of the step
    assert not tracer.trace_of(optimizer).complete
    gc.collect()
    assert kept[0]() is None
    known = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert known() is None


WAYS: list[Callable[[Any], Any]] = [
    lambda optimizer: optimizer,
    tracer.wrap,
    lambda optimizer: tracer.wrap(optimizer, effects=True),
]


@pytest.mark.long
@pytest.mark.usefixtures("fresh_dynamo")
@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch.*")
@pytest.mark.parametrize(
    ("backend", "part"), [("eager", "step"), ("aot_eager", "step"), ("aot_eager", "model")]
)
def test_no_graph_break_more(backend: str, part: str) -> None:
    """A step in Python is exact if the model is compiled; a compiled step is not counted."""
    found = []
    for prepare in WAYS:
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        torch.manual_seed(1)
        model: Any = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU())
        optimizer = prepare(torch.optim.Adam(model.parameters()))
        compiled = {"model": model, "step": optimizer.step}
        compiled[part] = torch.compile(compiled[part], backend=backend)
        for _ in range(4):
            optimizer.zero_grad()
            compiled["model"](torch.ones(3, 2)).sum().backward()
            compiled["step"]()
        counters = torch._dynamo.utils.counters
        breaks, graphs = sum(counters["graph_break"].values()), counters["stats"]["unique_graphs"]
        weights = [each.tolist() for each in model.parameters()]
        found.append((breaks, weights) if part == "step" else (breaks, weights, graphs))
    assert found[0] == found[1] == found[2]
    trace = tracer.trace_of(optimizer)
    exact = (4, 8, True) if part == "model" else (0, 0, False)
    assert (trace.steps, trace.updates(), trace.complete) == exact


def test_a_fault_of_the_tracer_ends_the_tracing_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = zeros()
    optimizer = tracer.wrap(Odometer(parameters))
    give(parameters)
    optimizer.step()
    from tracer.backends.torch import steps

    def fail(*given: Any) -> None:
        raise ZeroDivisionError("of the tracer")

    monkeypatch.setattr(steps.StepCounter, "_leave", fail)
    with pytest.warns(RuntimeWarning, match="untraced from step 2 on"):
        optimizer.step()
    optimizer.step()
    assert readings(parameters) == [3, 3, 3]
    trace = tracer.trace_of(optimizer)
    assert not trace.complete and trace.updates() == 3
