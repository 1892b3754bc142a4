"""Which layers of the living models are frozen: what they hold is not handed to an optimizer.

It is asked where an assertion has failed, so it may take the time of a look at all objects.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any

from tracer.backends.tensorflow.variables import name_of
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults

_HOMES = (
    "keras.src.layers.layer",
    "tf_keras.src.engine.base_layer",
    "keras.src.engine.base_layer",  # 2.13 to 2.15
    "keras.engine.base_layer",
    "tensorflow.python.keras.engine.base_layer",
)
"""The modules that define the class `Layer`, of which models are instances too."""

FrozenLayer = tuple[str, tuple[str, ...]]
"""The name of a layer that is not trainable, and the names of what it would train."""


def frozen_in(given: object) -> list[FrozenLayer]:
    """The frozen layers in a layer or a model, which is one itself; none in anything else."""
    if not isinstance(given, tuple(_layer_classes())):
        return []
    return [(str(layer.name), tuple(map(name_of, own))) for layer, own in _frozen(given)]


def frozen_beside(is_handed: Callable[[Any], bool], optimizer: object) -> list[FrozenLayer]:
    """The frozen layers of the models of which other variables are handed to an optimizer.

    Those of a model that was compiled with `optimizer` too, if nothing of that is trainable.
    """
    gc.collect()  # what nothing holds any more is no model
    found: dict[int, FrozenLayer] = {}
    for model in instances(_layer_classes()):
        with suppress_faults():  # a model may compute what it shows
            compiled = optimizer is not None and getattr(model, "optimizer", None) is optimizer
            if any(map(is_handed, model.variables)) or (compiled and not model.trainable_variables):
                for layer, own in _frozen(model):
                    if not any(map(is_handed, own)):
                        found[id(layer)] = (str(layer.name), tuple(map(name_of, own)))
    return list(found.values())


def _frozen(model: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The layers in `model` that are not trainable, each with what it would train of its own."""
    for layer in model._flatten_layers():
        own = getattr(layer, "_trainable_variables", None)  # Keras 3
        own = getattr(layer, "_trainable_weights", ()) if own is None else own
        if not layer.trainable and own:
            yield layer, list(own)


def _layer_classes() -> list[type]:
    classes = (getattr(sys.modules.get(home), "Layer", None) for home in _HOMES)
    return [each for each in classes if isinstance(each, type)]
