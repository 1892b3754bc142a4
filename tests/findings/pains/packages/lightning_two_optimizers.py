"""`global_step` counts the steps of all optimizers (Lightning 17958, 19589)."""

import sys

import lightning
import torch
from torch import nn

BATCHES = 10


class Gan(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, healthy: bool) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.healthy = healthy
        self.generator, self.critic = nn.Linear(4, 4), nn.Linear(4, 1)

    def configure_optimizers(self) -> object:
        if self.healthy:
            return torch.optim.Adam(self.parameters(), lr=0.01)
        parts = self.generator, self.critic
        return [torch.optim.Adam(part.parameters(), lr=0.01) for part in parts]

    def training_step(self, batch: torch.Tensor, index: int) -> None:
        optimizers = self.optimizers()
        for each in optimizers if isinstance(optimizers, list) else [optimizers]:
            each.zero_grad()
            self.manual_backward(self.critic(self.generator(batch)).pow(2).mean())
            each.step()


def train(healthy: bool) -> bool:
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=1,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Gan(healthy)
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(4 * BATCHES, 4), batch_size=4))
    print(model.critic.weight.sum().item())
    return bool(trainer.global_step != BATCHES)


if __name__ == "__main__":
    print("hurts", train("healthy" in sys.argv))
