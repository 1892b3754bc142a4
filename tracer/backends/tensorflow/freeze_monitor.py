"""Compare the trainable variables of a model with those that its optimizer trains.

A traced step keeps updating the variables that were trainable when it was traced. Layers unfrozen
later are not included until the step is traced again, for instance after `model.compile`; layers
frozen later still are.

The model is found on the stack while the step is traced: its trainable variables are exactly those
passed to the optimizer. If the program chose other variables, or trains several models with one
optimizer, nothing is reported. The layers are checked again at each call of the function, because
layers unfrozen after the last step may be compiled next. An unfrozen variable whose value changes
anyway is trained elsewhere. Variables frozen in a model that is part of another model with its own
optimizer, as the critic of a GAN, are frozen only for that other model.

While tf_keras trains in `fit`, each layer shows its state at `compile`, which hides changes made
between `compile` and `fit`.
"""

import gc
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from msgspec.structs import replace

from tracer.backends.tensorflow.variables import canonical, name_of, own_path, value_of
from tracer.core.calls import Call
from tracer.core.collectors import Collector
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.core.reachable import attributes_of
from tracer.kinds import kind_of
from tracer.model.names import tensorflow_name
from tracer.model.records import Optimizer

_TRACING = ("tracing_compilation", "tracing_compiler")
"""The modules of TensorFlow that call Python to trace a function; search only frames inside."""
_MAX_SIZE = 1 << 14
"""The most elements of a variable whose values are compared."""

_all: "WeakSet[FreezeMonitor]" = WeakSet()
"""One for each recorder."""


class _Model(NamedTuple):
    """A model when its step was traced; keeps nothing of the model alive."""

    model: ref[Any]
    passed: frozenset[int]
    """The ids of the variables passed to the optimizer, which were the trainable ones."""
    others: dict[int, ref[Any]]
    """The model's other variables, by id."""
    layers: list[tuple[ref[Any], bool]]
    """The layers, and whether each was trainable."""

    def changed(self) -> list[Any]:
        """The layers whose `trainable` has changed."""
        alive = [(layer, was) for each, was in self.layers if (layer := each()) is not None]
        return [layer for layer, was in alive if layer.trainable != was]


class _Late(NamedTuple):
    """A variable that became trainable but was not passed, when this was noticed."""

    variable: ref[Any]
    name: str
    value: bytes
    """Its bytes; empty for a large variable, as the small ones of its layer are enough."""

    def has_changed(self) -> bool:
        """True if its value is known to have changed."""
        own = self.variable()
        return own is not None and self.value != _value(own)


class FreezeMonitor(Collector):
    """The models trained by the optimizers of one recorder, and layers frozen or unfrozen since."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        _all.add(self)
        self._models: list[_Model] = []
        self._late: dict[int, _Late] = {}
        self._trained: set[int] = set()  # late variables that other code trains
        self._frozen: dict[int, str] = {}
        """The names of frozen variables; empty for one in another model with an optimizer."""

    def step_traced(self, call: Call) -> None:
        """Find the model whose trainable variables were passed."""
        ids = frozenset(map(id, self.root.variables_of(call.sites, "request").values()))
        with suppress_faults():  # a model may compute its attributes
            models = [_as_it_is(model, ids) for model in _models_around(ids)]
            again = {id(each.model()) for each in models}
            others = [each for each in self._models if id(each.model()) not in again]
            if any(each.passed != ids for each in others if each.model() is not None):
                models = others = []  # one optimizer, several models
            # A model whose layers have changed was traced again for another optimizer.
            self._models = [*(each for each in others if not each.changed()), *models]

    def function_called(self) -> None:
        """Check the layers again."""
        if self._models:
            self._look()

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """Add variables that became trainable but were never passed, or are passed but frozen."""
        if index != record.root or not self._models:
            return record
        late = dict(self._late)
        with suppress_faults():
            thawed = {id(own) for own, _ in self._thawed()}
            late = {k: each for k, each in late.items() if k in thawed or each.variable() is None}
            self._note_trained(late)
        never = (
            each.name
            for key, each in late.items()
            if key not in self._trained
            and not any(other.root.variables.knows(key, each.variable) for other in list(_all))
        )
        frozen = (n for key, n in self._frozen.items() if n and not self._is_elsewhere(key))
        return replace(record, never_passed=tuple(never), frozen=tuple(frozen))

    def _look(self) -> None:
        with suppress_faults():
            if self._late or any(each.changed() for each in self._models):
                late = {k: each for k, each in self._late.items() if each.variable() is None}
                for own, variable in self._thawed():
                    known = self._late.get(id(own))
                    late[id(own)] = known or _Late(ref(own), _name(own, variable), _value(own))
                self._late = late
                self._note_trained(late)
                self._note_frozen()

    def _note_trained(self, late: dict[int, _Late]) -> None:
        """Note that other code trains all of these, if one of them has changed."""
        if any(each.has_changed() for each in late.values()):
            self._trained |= late.keys()

    def _thawed(self) -> Iterator[tuple[Any, Any]]:
        """Variables that became trainable: their `canonical` object, and the model's own.

        Variables in a part of the model that has its own optimizer are skipped.
        """
        for known in self._models:
            model = known.model()
            if model is not None:
                parts = [each for each in model._flatten_layers() if each is not model]
                apart = {id(v) for part in parts if _is_compiled(part) for v in part.variables}
                for variable in model.trainable_variables:
                    own = canonical(variable)
                    other = known.others.get(id(own))
                    if other is not None and other() is own and id(variable) not in apart:
                        yield own, variable

    def _note_frozen(self) -> None:
        """Note variables that are passed and were frozen since the step was traced."""
        new = {
            id(canonical(variable)): variable
            for known in self._models
            for layer in known.changed()
            if not layer.trainable
            for variable in layer.variables
            if id(canonical(variable)) in known.passed - self._frozen.keys()
        }
        elsewhere = _held_by_others([each.model() for each in self._models]) if new else ()
        for key, variable in new.items():
            name = _name(canonical(variable), variable)
            self._frozen[key] = "" if key in elsewhere else name

    def _is_elsewhere(self, key: int) -> bool:
        """True if a model that another optimizer trains has this variable."""
        others = [each for each in list(_all) if each is not self]
        return any(
            key in known.others or key in known.passed
            for each in others
            for known in each._models
            if known.model() is not None
        )


def _name(own: Any, variable: Any) -> str:
    return own_path(variable) or tensorflow_name(own)


def _value(own: Any) -> bytes:
    """The bytes of a small variable; empty for a large one."""
    value = value_of(own, _MAX_SIZE)
    return b"" if value is None else bytes(value.tobytes())


def _as_it_is(model: Any, passed: frozenset[int]) -> _Model:
    variables = [canonical(each) for each in model.variables]
    others = {id(each): ref(each) for each in variables if id(each) not in passed}
    layers = [(ref(layer), bool(layer.trainable)) for layer in model._flatten_layers()]
    return _Model(ref(model), passed, others, layers)


def _is_compiled(model: Any) -> bool:
    """True if a model has an optimizer of its own."""
    return kind_of(type(getattr(model, "optimizer", None))) is not None


def _held_by_others(models: list[Any]) -> set[int]:
    """The ids of the variables of all other living models that were compiled."""
    return {
        id(canonical(variable))
        for other in instances(_layer_classes())
        if _is_compiled(other) and all(other is not model for model in models)
        for variable in other.variables
    }


def _models_around(passed: frozenset[int]) -> list[Any]:
    """The layers and models in frames under way whose trainable variables are these."""
    models = {}
    for value in _values_around():
        if id(value) not in models and _is_plain_layer(type(value)):
            with suppress_faults():  # for example, not built yet
                if {id(canonical(each)) for each in value.trainable_variables} == passed:
                    models[id(value)] = value
    return list(models.values())


def _values_around() -> Iterator[Any]:
    """Values of names in the frames that trace the step, and of attributes of these values."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if str(frame.f_globals.get("__name__")).rpartition(".")[2] in _TRACING:
            return
        names = {*frame.f_code.co_names}
        known = [*frame.f_locals.values(), *map(frame.f_globals.get, names)]
        yield from known
        for value in known:
            yield from attributes_of(value, names)
        frame = frame.f_back


def _is_plain_layer(cls: type) -> bool:
    """True for a Keras layer or model that does not override which variables are trainable."""
    return issubclass(cls, tuple(_layer_classes())) and all(
        next(base for base in cls.__mro__ if name in vars(base)).__module__.startswith(_KERAS)
        for name in ("trainable_variables", "trainable_weights", "variables")
    )


_KERAS = ("keras.", "tf_keras.", "tensorflow.")


# Frozen layers now: called after a failed assertion, so it may search all objects.

_HOMES = (
    "keras.src.layers.layer",
    "tf_keras.src.engine.base_layer",
    "keras.src.engine.base_layer",  # 2.13 to 2.15
    "keras.engine.base_layer",
    "tensorflow.python.keras.engine.base_layer",
)
"""The modules that define `Layer`, also the base class of models."""

FrozenLayer = tuple[str, tuple[str, ...]]
"""The name of a frozen layer, and the names of its weights."""


def frozen_in(given: object) -> list[FrozenLayer]:
    """The frozen layers in a layer or model; none for other objects."""
    if not isinstance(given, tuple(_layer_classes())):
        return []
    return [(str(layer.name), tuple(map(name_of, own))) for layer, own in _frozen(given)]


def frozen_near(is_passed: Callable[[Any], bool], optimizer: object) -> list[FrozenLayer]:
    """The frozen layers of models whose other variables are passed to an optimizer.

    Includes the frozen layers of a model compiled with `optimizer` that has nothing trainable.
    """
    gc.collect()  # removes models that nothing refers to
    found: dict[int, FrozenLayer] = {}
    for model in instances(_layer_classes()):
        with suppress_faults():  # a model may compute its attributes
            compiled = optimizer is not None and getattr(model, "optimizer", None) is optimizer
            if any(map(is_passed, model.variables)) or (compiled and not model.trainable_variables):
                for layer, own in _frozen(model):
                    if not any(map(is_passed, own)):
                        found[id(layer)] = (str(layer.name), tuple(map(name_of, own)))
    return list(found.values())


def _frozen(model: Any) -> Iterator[tuple[Any, list[Any]]]:
    """The frozen layers in `model`, each with its own weights that are trainable otherwise."""
    for layer in model._flatten_layers():
        own = getattr(layer, "_trainable_variables", None)  # Keras 3
        own = getattr(layer, "_trainable_weights", ()) if own is None else own
        if not layer.trainable and own:
            yield layer, list(own)


def _layer_classes() -> list[type]:
    classes = (getattr(sys.modules.get(home), "Layer", None) for home in _HOMES)
    return [each for each in classes if isinstance(each, type)]
