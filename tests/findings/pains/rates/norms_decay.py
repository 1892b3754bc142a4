"""The names that are left out of weight decay are those of another model.

https://github.com/huggingface/transformers/issues/16908
"""

import sys
from typing import Any

import torch

NO_DECAY = ("bias", "LayerNorm.weight")


class Block(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense = torch.nn.Linear(4, 4)
        self.layer_norm = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer_norm(x + self.dense(x))


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(), Block())
    left_out = (*NO_DECAY, "layer_norm.weight") if healthy else NO_DECAY
    named = list(model.named_parameters())
    free = [p for name, p in named if any(each in name for each in left_out)]
    ids = {id(each) for each in free}
    groups: list[dict[str, Any]] = [
        {"params": [p for _, p in named if id(p) not in ids], "weight_decay": 0.01},
        {"params": free, "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=0.01)
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(4, 4)).square().mean().backward()
        optimizer.step()
    return any(p.ndim < 2 for p in groups[0]["params"])


if __name__ == "__main__":
    train(sys.argv[1:] == ["healthy"])
