"""Troubles that show with packages others wrote, as users run them: `nox -s packages`."""

from typing import Any

from twins.table import twin


@twin(
    "optimizer-renewed",
    "warning[optimizer-renewed]: adam ",
    "from zero in each of 20 steps",
    packages=("flax", "optax"),
    screen="sweep",
)
def flax_state_dropped(healthy: bool) -> bool:
    """The new state is dropped: each step begins from the same weights and moments (optax 424)."""
    import jax
    import jax.numpy as jnp
    import optax
    from flax import linen
    from flax.training.train_state import TrainState

    @jax.jit
    def step(state: Any, x: jax.Array) -> tuple[Any, jax.Array]:
        def loss(params: Any) -> jax.Array:
            return (state.apply_fn(params, x) ** 2).mean()

        value, gradients = jax.value_and_grad(loss)(state.params)
        return state.apply_gradients(grads=gradients), value

    model, x = linen.Dense(2), jnp.ones((4, 3))
    start = model.init(jax.random.key(0), x)
    state = TrainState.create(apply_fn=model.apply, params=start, tx=optax.adam(0.1))
    for _ in range(20):
        new, loss = step(state, x)
        state = new if healthy else state
    print(float(loss))
    return int(state.step) == 0


@twin(
    "",
    "2 optimizers: 20 steps and 40 updates in all.",
    "{here}",
    packages=("torch", "lightning"),
    screen="sweep",
)
def lightning_two_optimizers(healthy: bool) -> bool:
    """`global_step` counts the steps of all optimizers (Lightning 17958, 19589)."""
    import lightning
    import torch
    from torch import nn

    class Gan(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False
            self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

        def configure_optimizers(self) -> object:
            if healthy:
                return torch.optim.Adam(self.parameters(), lr=0.01)
            parts = self.generator, self.critic
            return [torch.optim.Adam(part.parameters(), lr=0.01) for part in parts]  # here

        def training_step(self, batch: torch.Tensor, index: int) -> None:
            optimizers = self.optimizers()
            for each in optimizers if isinstance(optimizers, list) else [optimizers]:
                each.zero_grad()
                self.manual_backward(self.critic(self.generator(batch)).pow(2).mean())
                each.step()

    lightning.seed_everything(0, verbose=False)
    off = {"logger": False, "enable_checkpointing": False, "enable_model_summary": False}
    trainer = lightning.Trainer(max_epochs=1, accelerator="cpu", enable_progress_bar=False, **off)
    model = Gan()
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4))
    print(model.critic.weight.sum().item())
    return bool(trainer.global_step != 10)


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
