"""No code of the program runs under a lock, with PyTorch."""

import threading
from typing import Any

import pytest
import torch
from support.locks import watched

import tracer


class Named(torch.optim.SGD):  # type: ignore[misc]
    """Its parameter groups are computed by code of the program."""

    @property
    def param_groups(self) -> Any:
        return self._groups

    @param_groups.setter
    def param_groups(self, groups: Any) -> None:
        self._groups = groups


@pytest.mark.parametrize("effects", [False, True])
def test_steps_and_reads_in_threads(effects: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def train(optimizer: Any) -> None:
        for _ in range(20):
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    parameter.grad = torch.ones_like(parameter)
            optimizer.step()

    with watched(monkeypatch, "counters", "rows", "paths"):
        weights = [[torch.nn.Parameter(torch.ones(2))] for _ in range(2)]
        with tracer.record(effects=effects) as recording:
            optimizers = [Named(each, lr=0.5) for each in weights]
            threads = [threading.Thread(target=train, args=(each,)) for each in optimizers]
            for thread in threads:
                thread.start()
            while any(thread.is_alive() for thread in threads):
                recording.trace()
        trace = recording.trace()
    assert trace.updates() == 40
