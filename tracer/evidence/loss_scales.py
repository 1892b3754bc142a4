"""Finds loss scales that divide the gradients of a loss that was never multiplied.

Sources: Keras 3.15 (`keras/src/optimizers/base_optimizer.py`, `loss_scale_optimizer.py`) and
tf_keras 2.21 (`src/mixed_precision/loss_scale_optimizer.py`).
"""

import sys
from types import FrameType
from typing import Any

from msgspec.structs import replace

from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.reachable import names_in
from tracer.kinds import FRAMEWORKS
from tracer.model.evidence import LossNotScaled
from tracer.model.records import Optimizer

_BY_HAND = {"loss_scale", "loss_scale_factor", "dynamic_scale", "initial_scale"}
"""Names in the code of a program that scales the loss itself."""


class LossScales(Collector):
    """The loss scales among a recorder's optimizers, and whether the program used them."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._scales: dict[int, LossNotScaled] = {}
        """By optimizer, what holds if its method is never called."""

    def first_step_ends(self, frame: Call) -> None:
        """Find the loss scales that made the step, unless the code around it names a scale."""
        if not _BY_HAND.isdisjoint(_names_under_way()):
            return
        for index, traced in enumerate(self.root.optimizers.all):
            optimizer = traced.optimizer() if index in self.root.optimizers.stepping else None
            if optimizer is not None and _is_scaled(optimizer):
                self._scales[index] = (
                    LossNotScaled("scale_loss", "apply")
                    if traced.kind.name == "keras3"
                    else LossNotScaled("get_scaled_loss", "get_unscaled_gradients")
                )

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add evidence of a method that was never called."""
        scale, called = self._scales.get(index), self.root.optimizers.all[index].called
        if scale is None or scale.missing in called:
            return record
        if scale.divided != "apply" and scale.divided not in called:
            return record  # nothing was divided
        return replace(record, evidence=(*record.evidence, scale))


def _is_scaled(optimizer: Any) -> bool:
    own = object.__getattribute__(optimizer, "__dict__")
    return "LossScale" in type(optimizer).__name__ or own.get("loss_scale_factor") not in (None, 1)


def _names_under_way() -> set[str]:
    """The names in the program's running functions and in the functions inside them."""
    names: set[str] = set()
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in (*FRAMEWORKS, "tracer"):
            names |= names_in(frame.f_code)
        frame = frame.f_back
    return names
