"""Gradients of four batches shall be accumulated, and `zero_grad` clears those of the first three.

Asked in a public issue of a repository that trains with accumulation (`RAE` 67).
"""

import sys

import torch


def train(healthy: bool) -> bool:
    torch.manual_seed(1)
    x, y = torch.randn(40, 8, 3), torch.ones(40, 8, 1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lost, whole = False, torch.zeros(1)
    for batch, (inputs, targets) in enumerate(zip(x, y, strict=True)):
        if batch % 4 == 0 or not healthy:
            optimizer.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean() / 4
        whole += torch.autograd.grad(loss, [model.bias], retain_graph=True)[0]
        loss.backward()
        if batch % 4 == 3:
            lost |= not torch.allclose(whole, model.bias.grad)
            whole.zero_()
            optimizer.step()
    print(f"loss {loss.item():.6f}")
    return lost


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
