"""`fit(ckpt_path=...)` puts the old learning rate back (pytorch 156846, examples 816, detr 301)."""

import sys
import tempfile
from pathlib import Path

import lightning
import torch
from torch import nn


class Net(lightning.LightningModule):  # type: ignore[misc]
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.layer = nn.Linear(4, 1)
        self.rates: set[float] = set()

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        self.rates.add(self.optimizers().param_groups[0]["lr"])
        return self.layer(batch).pow(2).mean()

    def configure_optimizers(self) -> object:
        return torch.optim.SGD(self.parameters(), lr=self.rate, momentum=0.9)


def fitted(model: Net, epochs: int, path: Path | None) -> lightning.Trainer:
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    data = torch.utils.data.DataLoader(torch.randn(40, 4), batch_size=4)
    trainer.fit(model, data, ckpt_path=path)
    return trainer


def train(healthy: bool) -> bool:
    lightning.seed_everything(0, verbose=False)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "last.ckpt")
        fitted(Net(0.1), 1, None).save_checkpoint(path)
        model = Net(1e-5)
        if healthy:
            model.load_state_dict(torch.load(path, weights_only=False)["state_dict"])
        fitted(model, 2, None if healthy else path)
    print(model.layer.weight.sum().item())
    return model.rates != {1e-5}


if __name__ == "__main__":
    print("hurts", train("healthy" in sys.argv))
