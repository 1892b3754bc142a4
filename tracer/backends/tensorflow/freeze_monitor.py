"""What of a model is trainable, and what is passed to the optimizer that trains it.

A traced step goes on with the variables that were trainable when it was traced. A layer that is
made trainable later is not among them until the step is traced again, as by `model.compile`; and
one that is frozen later is still among them.

Which model it is, is seen on the stack while the step is traced: the one whose trainable variables
are just those that the optimizer is passed. A list that somebody chose otherwise has no model, and
nothing is said of it, nor where one optimizer trains several models. The layers are looked at again
when the function is called, for what was made trainable after the last step may be compiled next.
What changes its value all the same is trained by somebody else; and what is frozen in a model that
is a part of one with an optimizer of its own, as the critic of a GAN, is frozen for that one.

While tf_keras trains in `fit`, each layer shows itself as it was at `compile`: what was changed
before `fit` is not seen there.
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
"""The modules of TensorFlow that call Python to trace a function; what is above lives longer."""
_MAX_SIZE = 1 << 14
"""Elements of a variable whose values are compared."""

_all: "WeakSet[FreezeMonitor]" = WeakSet()
"""One for each recorder."""


class _Model(NamedTuple):
    """A model as it was when its step was traced; nothing of it is kept alive."""

    model: ref[Any]
    passed: frozenset[int]
    """The ids of the variables that the optimizer was passed, which were the trainable ones."""
    others: dict[int, ref[Any]]
    """Its other variables, by id."""
    layers: list[tuple[ref[Any], bool]]
    """Its layers, and whether each was trainable."""

    def changed(self) -> list[Any]:
        """The layers whose `trainable` is not what it was."""
        alive = [(layer, was) for each, was in self.layers if (layer := each()) is not None]
        return [layer for layer, was in alive if layer.trainable != was]


class _Late(NamedTuple):
    """A variable that became trainable and was not passed, as it was when that was seen."""

    variable: ref[Any]
    name: str
    value: bytes
    """Empty for a large one: those of its layer that are small tell enough."""

    def has_changed(self) -> bool:
        """Whether it holds another value now, as far as that is known."""
        own = self.variable()
        return own is not None and self.value != _value(own)


class FreezeMonitor(Collector):
    """The models that the optimizers of one recorder train, and what was frozen or thawed since."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        _all.add(self)
        self._models: list[_Model] = []
        self._late: dict[int, _Late] = {}
        self._trained: set[int] = set()  # of the late ones, those that somebody else trains
        self._frozen: dict[int, str] = {}
        """The names of what was frozen; empty if another model with an optimizer holds it."""

    def step_traced(self, call: Call) -> None:
        """Find the model whose trainable variables were passed."""
        ids = frozenset(map(id, self.root.variables_of(call.sites, "request").values()))
        with suppress_faults():  # of a model, which may compute what it shows
            models = [_as_it_is(model, ids) for model in _models_around(ids)]
            again = {id(each.model()) for each in models}
            others = [each for each in self._models if id(each.model()) not in again]
            if any(each.passed != ids for each in others if each.model() is not None):
                models = others = []  # one optimizer, several models
            # One whose layers have changed was traced again without them, for another optimizer.
            self._models = [*(each for each in others if not each.changed()), *models]

    def function_called(self) -> None:
        """Look at the layers again."""
        if self._models:
            self._look()

    def snapshot(self, index: int, record: Optimizer) -> Optimizer:
        """With what became trainable and was never passed, and what was frozen and is passed on."""
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
        """Note which of these somebody else trains: if one has changed, all."""
        if any(each.has_changed() for each in late.values()):
            self._trained |= late.keys()

    def _thawed(self) -> Iterator[tuple[Any, Any]]:
        """What was not trainable and is now, as `canonical` and as the model has it.

        What a part of the model holds that has an optimizer of its own is left to that.
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
        """Note what is passed on and is frozen now, and was not when the step was traced."""
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
        """Whether a model that another optimizer trains holds a variable."""
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
    """What a small variable holds."""
    value = value_of(own, _MAX_SIZE)
    return b"" if value is None else bytes(value.tobytes())


def _as_it_is(model: Any, passed: frozenset[int]) -> _Model:
    variables = [canonical(each) for each in model.variables]
    others = {id(each): ref(each) for each in variables if id(each) not in passed}
    layers = [(ref(layer), bool(layer.trainable)) for layer in model._flatten_layers()]
    return _Model(ref(model), passed, others, layers)


def _is_compiled(model: Any) -> bool:
    """Whether it has an optimizer of its own."""
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
    """The layers and models that the functions under way know, with these trainable variables."""
    models = {}
    for value in _values_around():
        if id(value) not in models and _is_plain_layer(type(value)):
            with suppress_faults():  # not built, say
                if {id(canonical(each)) for each in value.trainable_variables} == passed:
                    models[id(value)] = value
    return list(models.values())


def _values_around() -> Iterator[Any]:
    """What the frames that trace the step know by a name: their variables, and parts of these."""
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
    """Whether it is a layer or model of Keras that has not its own idea of what is trainable."""
    return issubclass(cls, tuple(_layer_classes())) and all(
        next(base for base in cls.__mro__ if name in vars(base)).__module__.startswith(_KERAS)
        for name in ("trainable_variables", "trainable_weights", "variables")
    )


_KERAS = ("keras.", "tf_keras.", "tensorflow.")


# What is frozen now: asked where an assertion has failed, so it may take a look at all objects.

_HOMES = (
    "keras.src.layers.layer",
    "tf_keras.src.engine.base_layer",
    "keras.src.engine.base_layer",  # 2.13 to 2.15
    "keras.engine.base_layer",
    "tensorflow.python.keras.engine.base_layer",
)
"""The modules that define the class `Layer`, the base of models too."""

FrozenLayer = tuple[str, tuple[str, ...]]
"""The name of a layer that is not trainable, and the names of what it would train."""


def frozen_in(given: object) -> list[FrozenLayer]:
    """The frozen layers in a layer or a model, which is one itself; none in anything else."""
    if not isinstance(given, tuple(_layer_classes())):
        return []
    return [(str(layer.name), tuple(map(name_of, own))) for layer, own in _frozen(given)]


def frozen_near(is_passed: Callable[[Any], bool], optimizer: object) -> list[FrozenLayer]:
    """The frozen layers of the models whose other variables are passed to an optimizer.

    Those of a model that was compiled with `optimizer` too, if nothing of that is trainable.
    """
    gc.collect()  # what nothing holds any more is no model
    found: dict[int, FrozenLayer] = {}
    for model in instances(_layer_classes()):
        with suppress_faults():  # a model may compute what it shows
            compiled = optimizer is not None and getattr(model, "optimizer", None) is optimizer
            if any(map(is_passed, model.variables)) or (compiled and not model.trainable_variables):
                for layer, own in _frozen(model):
                    if not any(map(is_passed, own)):
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
