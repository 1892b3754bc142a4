"""A rank, however it was started: `launched_ranks.py PORT [STEP HOW] [WORD...]`.

It trains six parts of a model in six ways, and asserts how often its odometer ran. A word says who
starts the ranks, if this program does (`spawn`, `lightning`, `ray`), that each records itself
(`recorded`), or that they train `apart`. Rank 1 ends before the step STEP in the way HOW.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from support.torch_odometers import Odometer, readings
from torch.nn.parallel import DistributedDataParallel

import tracer

STEPS = 10
INFINITE_AT = (3, 7)
TRACES = Path("traces").absolute()
RANKS = ("RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")


class Model(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.dense, self.scaled, self.summed = (torch.nn.Linear(3, 1) for _ in range(3))
        self.table = torch.nn.Embedding(5, 2, sparse=True)
        self.counter = torch.nn.Parameter(torch.zeros(2))

    def forward(self, step: int) -> tuple[Any, Any]:
        """The losses without and with a loss scale."""
        ones = torch.ones(4, 3)
        rows = self.table(torch.tensor([step % 5]))
        plain = (self.dense(ones), self.summed(ones), rows, self.counter)
        scaled = self.scaled(ones * (float("inf") if step in INFINITE_AT else 1))
        return sum(each.sum() for each in plain), scaled.sum()


class Training:
    """The optimizers of a model, which step on `rank` as often as `test_launchers.py` expects."""

    def __init__(self, model: Model, rank: int) -> None:
        self.model, self.rank = model, rank
        self.sgd = torch.optim.SGD(model.dense.parameters(), lr=0.1, foreach=True)
        self.adam = torch.optim.Adam(model.summed.parameters())
        self.adamw = torch.optim.AdamW(model.scaled.parameters())
        self.sparse = torch.optim.SparseAdam(model.table.parameters())
        self.odometer = Odometer([model.counter])
        self.scaler = torch.amp.GradScaler("cpu")

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        return [self.sgd, self.adam, self.adamw, self.sparse, self.odometer]

    def batch(
        self, step: int, forward: Callable[[int], Any], backward: Callable[[Any], None]
    ) -> None:
        fail(self.rank, step)
        plain, scaled = forward(step)
        backward(plain + self.scaler.scale(scaled))
        self.sgd.step()
        self.sparse.step()
        self.scaler.step(self.adamw)
        self.scaler.update()
        if step % 2:
            self.adam.step()
            self.adam.zero_grad()
        if step % (self.rank + 2) == 0:
            self.odometer.step()
        for each in (self.sgd, self.sparse, self.adamw, self.odometer):
            each.zero_grad()

    def check(self) -> None:
        assert readings([self.model.counter]) == [len(range(0, STEPS, self.rank + 2))]


def fail(rank: int, step: int) -> None:
    """End rank 1 as the arguments say."""
    if rank != 1 or sys.argv[2:3] != [str(step)]:
        return
    while step and not saved(step):
        time.sleep(0.05)
    how = sys.argv[3]
    if how == "dies" or (how == "dies once" and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0"):
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "leaves":
        sys.exit(0)
    if how == "raises":
        raise ValueError("no data")


def saved(step: int) -> bool:
    for path in TRACES.rglob("*.json"):
        with suppress(tracer.TraceFileError):
            trace = tracer.load(path)
            if trace.workers == ("rank:1",) and trace.steps == step:
                return True
    return False


def train(number: int) -> None:
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", sys.argv[1])
    rank = os.environ.setdefault(
        "RANK", next(filter(None, map(os.environ.get, RANKS)), str(number))
    )
    os.environ.setdefault("WORLD_SIZE", "2")
    training = Training(Model(), int(rank))
    forward = training.model
    if "apart" not in sys.argv:
        if not dist.is_initialized():
            dist.init_process_group("gloo")
        forward = DistributedDataParallel(training.model)
    for step in range(STEPS):
        training.batch(step, forward, lambda loss: loss.backward())
    training.check()
    # PyTorch 2.13 waits for itself if its reducer is the last to let the group go: that holds the
    # GIL and joins gloo's threads, one of which may need the GIL.
    del forward
    if dist.is_initialized() and "ray" not in sys.argv:
        dist.destroy_process_group()


def train_with_lightning(_: int) -> None:
    import lightning

    class Module(Model, lightning.LightningModule):  # type: ignore[misc]
        automatic_optimization = False

        def configure_optimizers(self) -> Any:
            self.training_of = Training(self, self.global_rank)
            return self.training_of.optimizers

        def training_step(self, _: Any, number: int) -> None:
            self.training_of.batch(number, self, self.manual_backward)

        def on_train_end(self) -> None:
            self.training_of.check()

    quiet = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
    options: dict[str, Any] = {"accelerator": "cpu", "devices": 2, "strategy": "ddp"}
    trainer = lightning.Trainer(max_epochs=1, **options, **dict.fromkeys(quiet, False))
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.ones(2 * STEPS), batch_size=1))


def work(number: int) -> None:
    run = train_with_lightning if "lightning" in sys.argv else train
    if "recorded" not in sys.argv:
        return run(number)
    with tracer.record() as recording:
        run(number)
    recording.trace().save(TRACES)


def start_with_ray() -> None:
    import ray
    from ray.train import ScalingConfig, get_context
    from ray.train.torch import TorchTrainer

    def work_of(config: dict[str, list[str]]) -> None:
        sys.argv = config["arguments"]
        work(get_context().get_world_rank())

    ray.init(num_cpus=3, include_dashboard=False)
    arguments = {"arguments": sys.argv}
    scaling = ScalingConfig(num_workers=2)
    TorchTrainer(work_of, train_loop_config=arguments, scaling_config=scaling).fit()


if __name__ == "__main__":
    if "spawn" in sys.argv:
        mp.spawn(work, nprocs=2)
    elif "ray" in sys.argv:
        start_with_ray()
    else:
        work(0)
