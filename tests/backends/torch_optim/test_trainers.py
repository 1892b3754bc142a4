"""Trainers that others wrote, with their own ways to step, beside odometers: `nox -s trainers`."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.torch_odometers import Odometer, readings
from torch.utils.data import DataLoader, TensorDataset

import tracer

pytestmark = [pytest.mark.sweep, pytest.mark.filterwarnings("ignore")]  # theirs

INPUTS, TARGETS = torch.ones(24, 3), torch.ones(24, 1)


def zeroed(model: Any) -> Any:
    """The model with all weights 0, as an odometer needs them."""
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    return model


def layers() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 1))


def fitted(module: Any, folder: Path, **options: Any) -> Any:
    """The recording of two epochs by Lightning."""
    import lightning

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options |= {"accelerator": "cpu", "default_root_dir": folder, **dict.fromkeys(quiet, False)}
    trainer = lightning.Trainer(max_epochs=2, **options)
    with tracer.record() as recording:
        trainer.fit(module, DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4))
    return recording


@pytest.mark.parametrize("accumulate", [1, 4])
def test_lightning(accumulate: int, tmp_path: Path) -> None:
    lightning = pytest.importorskip("lightning")

    class Module(lightning.LightningModule):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = zeroed(layers())

        def training_step(self, batch: Any, index: int) -> Any:
            return ((self.net(batch[0]) - batch[1]) ** 2).mean()

        def configure_optimizers(self) -> Any:
            optimizer = Odometer(self.parameters())
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    module = Module()
    recording = fitted(module, tmp_path, devices=1, accumulate_grad_batches=accumulate)
    steps = {1: 12, 4: 4}[accumulate]  # of 6 batches in an epoch Lightning steps at its end, too
    assert readings(list(module.parameters())) == [steps] * 4
    trace = recording.trace()
    assert (trace.steps, trace.updates(), trace.complete) == (steps, 4 * steps, True)
    assert trace.variables[0].name == "net.0.weight"
    assert [optimizer.name for optimizer in trace.optimizers] == ["Odometer"]
    assert trace.findings() == []


@pytest.mark.parametrize("accumulate", [1, 4])
def test_accelerate(accumulate: int) -> None:
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate)
    model = zeroed(layers())
    optimizer = Odometer(model.parameters())
    data = DataLoader(TensorDataset(INPUTS, TARGETS), batch_size=4)
    with tracer.record() as recording:
        model, prepared, data = accelerator.prepare(model, optimizer, data)
        for _ in range(2):
            for inputs, targets in data:
                with accelerator.accumulate(model):
                    accelerator.backward(((model(inputs) - targets) ** 2).mean())
                    prepared.step()
                    prepared.zero_grad()
    steps = {1: 12, 4: 4}[accumulate]
    assert readings(list(model.parameters())) == [steps] * 4
    trace = recording.trace()
    assert (trace.steps, trace.updates(), trace.complete) == (steps, 4 * steps, True)
    # The shell that Accelerate puts around it stands for it.
    tracer.wrap(prepared)
    prepared.step()
    trace = tracer.trace_of(prepared)
    assert (trace.steps, [each.name for each in trace.optimizers]) == (1, ["Odometer"])
    tracer.unwrap(prepared)
    assert not optimizer._optimizer_step_post_hooks
    tracer.wrap(prepared)
    tracer.unwrap(optimizer)
    with pytest.raises(ValueError, match="is not wrapped"):
        tracer.unwrap(prepared)


def test_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        num_labels=2,
    )
    model = transformers.BertForSequenceClassification(config)
    rows = [
        {"input_ids": torch.tensor([1, 2, 3]), "labels": torch.tensor(number % 2)}
        for number in range(24)
    ]
    options = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        report_to=[],
        use_cpu=True,
        save_strategy="no",
        disable_tqdm=True,
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = transformers.Trainer(model, options, train_dataset=rows)
    with tracer.record() as recording:
        trainer.train()
    assert trainer.state.global_step == 6  # 12 batches an epoch, of which 4 make a step
    trace = recording.trace()
    assert trace.steps == 6 and trace.complete
    assert {v.name for v in trace.variables} == set(before)
    for name, parameter in model.named_parameters():
        moved = not torch.equal(parameter.detach(), before[name])
        assert trace.updates(variable=name) == (6 if moved else 0), name
