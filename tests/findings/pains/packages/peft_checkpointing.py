"""LoRA with gradient checkpointing: no gradient reaches the adapters (open-unlearning 178)."""

import sys

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel


def train(healthy: bool) -> bool:
    torch.manual_seed(0)
    config = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=50, n_positions=16)
    lora = LoraConfig(r=2, target_modules=["c_attn"], task_type="CAUSAL_LM")
    model = get_peft_model(GPT2LMHeadModel(config), lora)
    base = model.base_model.model
    base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    if healthy:
        base.enable_input_require_grads()
    else:
        base.disable_input_require_grads()
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    tokens = torch.randint(50, (2, 8))
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
    print(loss.item())
    return False  # it raises where it hurts


if __name__ == "__main__":
    print("hurts", train("healthy" in sys.argv))
