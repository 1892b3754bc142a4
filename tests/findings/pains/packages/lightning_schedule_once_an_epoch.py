"""A schedule that is made for steps steps once an epoch (Lightning 3869, 5631)."""

import sys

import lightning
import torch
from torch import nn

STEPS = 40


class Net(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, healthy: bool) -> None:
        super().__init__()
        self.healthy = healthy
        self.layer = nn.Linear(4, 1)
        self.rates: set[float] = set()

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        self.rates.add(self.optimizers().param_groups[0]["lr"])
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self) -> object:
        optimizer = torch.optim.Adam(self.parameters(), lr=0.01)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=STEPS)
        if self.healthy:
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]
        return [optimizer], [schedule]


def train(healthy: bool) -> bool:
    lightning.seed_everything(0, verbose=False)
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Net(healthy)
    trainer.fit(model, torch.utils.data.DataLoader(torch.randn(2 * STEPS, 4), batch_size=4))
    print(model.layer.weight.sum().item())
    return len(model.rates) < STEPS


if __name__ == "__main__":
    print("hurts", train("healthy" in sys.argv))
