"""The exclusion from weight decay names the norms as another model does (transformers 16908)."""

import sys

import torch
from transformers import GPT2Config, GPT2LMHeadModel


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(n_layer=1, n_head=2, n_embd=16, vocab_size=50))
    spared = ("bias", "ln_") if healthy else ("bias", "LayerNorm.weight")
    decays = {n: not any(each in n for each in spared) for n, _ in model.named_parameters()}
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if decays[n] == wanted],
            "weight_decay": 0.1 * wanted,
        }
        for wanted in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    tokens = torch.randint(50, (2, 8))
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
    print(loss.item())
    return any(decays[n] for n, p in model.named_parameters() if p.ndim == 1)


if __name__ == "__main__":
    print("hurts", train("healthy" in sys.argv))
