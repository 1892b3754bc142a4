"""Troubles that show with packages others wrote, as users run them: `nox -s packages`."""

from typing import Any

from twins.table import twin


def steps_of_gpt2(model: Any, optimizer: Any) -> None:
    """Five steps of a language model."""
    import torch

    tokens = torch.randint(50, (2, 8))
    for _ in range(5):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
    print(loss.item())


@twin(
    "",
    "ended with RuntimeError: element 0 of tensors does not require grad",
    "before the first",
    raises="element 0 of tensors does not require grad",
    packages=("torch", "peft", "transformers"),
    screen="sweep",
)
def peft_checkpointing(healthy: bool) -> bool:
    """LoRA with gradient checkpointing: no gradient reaches the adapters (open-unlearning 178)."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

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
    adapters = [p for p in model.parameters() if p.requires_grad]
    steps_of_gpt2(model, torch.optim.AdamW(adapters, lr=1e-2))
    return False


@twin(
    "",
    "weight decay 0.1 on 9 of 16 parameters, 3 of them one-dimensional (transformer.h.0.ln_1.w",
    "{here})",
    packages=("torch", "transformers"),
    screen="sweep",
)
def transformers_norms_decay(healthy: bool) -> bool:
    """What spares the norms from weight decay has another model's names (transformers 16908)."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel

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
    steps_of_gpt2(model, torch.optim.AdamW(groups, lr=1e-3))  # here
    return any(decays[n] for n, p in model.named_parameters() if p.ndim == 1)
