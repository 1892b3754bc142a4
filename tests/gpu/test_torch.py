"""Steps of `torch.optim` on a GPU; the weights count their updates."""

import os
import warnings
from typing import Any

import pytest

import tracer

if "TRACER_TEST_DEVICE" not in os.environ:
    pytest.skip("runs on a GPU: nox -s gpu", allow_module_level=True)
torch = pytest.importorskip("torch")

from support.torch_odometers import give, readings  # noqa: E402

pytestmark = pytest.mark.gpu


@pytest.fixture
def where(device: str) -> str:
    """The device by PyTorch's name."""
    if device == "gpu" and not torch.cuda.is_available():
        pytest.skip("no GPU that PyTorch can use")
    return "cuda" if device == "gpu" else "cpu"


def zeros(where: str) -> list[Any]:
    return [torch.nn.Parameter(torch.zeros(2, device=where)) for _ in range(3)]


@pytest.mark.parametrize("name", ["SGD", "AdamW"])
def test_no_step_waits(where: str, name: str) -> None:
    """PyTorch raises where Python would wait for the GPU."""
    if where != "cuda":
        pytest.skip("only a GPU is waited for")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)).to(where)
    optimizer = tracer.wrap(getattr(torch.optim, name)(model.parameters(), 0.01))
    batch = torch.ones(4, 8, device=where)

    def steps(number: int) -> None:
        for _ in range(number):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()

    steps(1)  # Adam's state is made
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch calls this mode a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        steps(399)  # the gradients are watched in the first 300
    finally:
        torch.cuda.set_sync_debug_mode("default")
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates(), trace.complete) == (400, 4 * 400, True)


def test_a_fused_step_that_is_skipped(where: str) -> None:
    parameters = zeros(where)
    optimizer = tracer.wrap(torch.optim.SGD(parameters, lr=1.0, maximize=True, fused=True))
    scaler = torch.amp.GradScaler(where, init_scale=1.0, growth_interval=100, backoff_factor=0.5)
    for step in range(6):
        give(parameters, float("inf") if step == 3 else float(scaler.get_scale()))
        scaler.scale(torch.zeros((), device=where))
        scaler.step(optimizer)
        scaler.update()
    trace = tracer.trace_of(optimizer)
    assert (trace.steps, trace.updates()) == (6, 15)
    assert sum(readings(parameters)) == 15


@pytest.mark.parametrize("before", [0, 1])
@pytest.mark.parametrize("effects", [False, True])
def test_what_a_cuda_graph_runs_is_not_counted_and_is_said(
    where: str, before: int, effects: bool
) -> None:
    """Also if the step that is captured is the first one that is traced."""
    if where != "cuda":
        pytest.skip("only a GPU has CUDA graphs")
    parameters = zeros(where)
    optimizer = torch.optim.SGD(parameters, lr=1.0, maximize=True)
    give(parameters)
    optimizer.step()
    tracer.wrap(optimizer, effects=effects)
    for _ in range(before):
        optimizer.step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        optimizer.step()
    for _ in range(5):
        graph.replay()
    trace = tracer.trace_of(optimizer)
    assert sum(readings(parameters)) == 3 * (1 + before + 5)
    assert trace.updates() == 3 * (before + 1) and not trace.complete
    assert any("captured in a CUDA graph" in note for note in trace.notes)
