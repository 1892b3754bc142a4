"""Nobody calls `zero_grad`: each step is made with the sum of all gradients so far.

Asked in pytorch 47175 and wenet-e2e/wekws 72.
"""

import sys

import torch


def train(healthy: bool) -> bool:
    torch.manual_seed(1)
    x, y = torch.randn(30, 8, 3), torch.zeros(30, 8, 1)
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    added = False
    for inputs, targets in zip(x, y, strict=True):
        if healthy:
            optimizer.zero_grad()
        loss = ((model(inputs) - targets) ** 2).mean()
        (right,) = torch.autograd.grad(loss, [model.bias], retain_graph=True)
        loss.backward()
        added |= not torch.allclose(right, model.bias.grad)
        optimizer.step()
    print(f"loss {loss.item():.6f}")
    return added


if __name__ == "__main__":
    train(healthy="healthy" in sys.argv)
