"""Find the variables of Keras models that an optimizer does not get: frozen, or not passed.

The models that an optimizer trains are found on the stack, while a step is traced, when the first
step in eager mode ends, and when `fit` or `train_on_batch` uses an optimizer that made no step: the
models compiled with the optimizer, and those whose trainable variables are exactly the ones passed;
if there are none, those with a variable that was passed. And those with a variable that was not
passed though a `GradientTape` on the stack watches it, beside one that was: the loss was computed
with it. Such a variable counts without a model, too, if it is found unchanged when the trace is
read. For `tf.compat.v1`, the trainable variables of the graph are the model.

The layers are read again when a function with a step is called: a traced step keeps updating the
variables that were trainable when it was traced. In eager mode they are not read in each step, so
nothing is said of a layer that has changed since. While tf_keras trains in `fit`, each layer shows
its state at `compile`, which hides changes made between `compile` and `fit`.

Nothing is said of variables that something else trains: of those that are frozen here and passed to
another optimizer, and of those that were not passed and change anyway. A model that is frozen as a
whole after a step is not said to be frozen: so is the critic of a GAN while the generator trains.
"""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from inspect import CO_OPTIMIZED
from itertools import chain
from types import FrameType
from typing import Any
from weakref import ref

from tracer.core.backend import passed_to_any
from tracer.core.call_paths import frames_from
from tracer.core.calls import EAGER, Call
from tracer.core.collectors import Collector, ModelVariable
from tracer.core.reachable import attributes_of
from tracer.errors import suppress_faults
from tracer.model.evidence import Evidence, Fitted, NoStep

_TRACING = ("tracing_compilation", "tracing_compiler")
"""The modules of TensorFlow that call Python to trace a function; search only frames inside."""
_ENDS_FIT = "finalize_variable_values"
"""The method of an optimizer that `fit` calls at its end."""
_MAX_SIZE = 1 << 18
"""The most elements of a variable whose values are compared."""


class ModelMonitor(Collector):
    """The models that the optimizers of one recorder train; keeps none of them alive."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._identify: Callable[[Any], Any] = root.backend.canonical
        self._models: dict[int, ref[Any]] = {}
        self._layers: list[tuple[ref[Any], Sequence[bool]]] = []
        """The layers of the models, and what of each was trainable at the last look."""
        self._seen: dict[int, ModelVariable] = {}
        """By id, the models' variables at the last look; a trainable one seems `not passed`."""
        self._loose: set[int] = set()
        """The keys of those that no model has."""
        self._values: dict[int, bytes] = {}
        """A hash of the first value of small variables that were trainable and not passed."""
        self._is_eager = True
        self._is_from_config = any(
            each.f_code.co_name in _LOADS and str(each.f_globals.get("__name__")).startswith(_KERAS)
            for each in frames_from(sys._getframe(1))
        )
        """Whether Keras loads or copies a compiled model, and makes its optimizer now."""
        self._no_step: set[Any] = set()
        """The values of `NoStep.why` for models that were trained without a step."""

    def first_step_ends(self, call: Call) -> None:
        """Find the models of the first step in eager mode."""
        if call.place is EAGER:
            self._find(call.sites)

    def step_traced(self, call: Call) -> None:
        """Find the models of a step that is traced."""
        self._is_eager = False
        if self.root.optimizers.all[0].kind.name == "v1":
            for variable in call.place.graph.get_collection("trainable_variables"):
                self._see(variable, "not passed")
        self._find(call.sites)

    def used_without_step(self, method: str) -> None:
        """Find the model that `fit` or `train_on_batch` trains, though no step has begun."""
        ends = method == _ENDS_FIT and _has_run_batches()
        for model in self._find(()) if ends or not self._models else ():
            if not model.trainable_variables:
                self._no_step.add("all frozen")
            elif ends:
                self._no_step.add("not reached")

    def step_ends(self, call: Call) -> None:
        """Note that the last step was in eager mode: a later change is not looked at."""
        self._is_eager = True

    def function_called(self) -> None:
        """Look again if a layer was frozen or made trainable."""
        self._is_eager = False
        with suppress_faults():
            if any(self._changed()):
                self._look()

    def evidence(self) -> Iterator[Evidence]:
        """Why the optimizer made no step, though it was called or its model was trained."""
        if self.root.optimizers.stepping:
            if not self.root.variables.objects and not self.root.step_count():
                yield NoStep("nothing passed")
        elif self._no_step and not passed_to_any() & {id(e.reference) for e in self._seen.values()}:
            yield Fitted()
            if len(self._no_step) == 1:
                yield NoStep(*self._no_step)
        elif self._is_from_config:
            yield NoStep("from config")

    def model_variables(self) -> list[ModelVariable]:
        """The variables of the models that are frozen, or trainable and not passed.

        Without those that something else trains, or that may have changed since the last look.
        """
        ids = set[int]()
        with suppress_faults():
            same = self._compare()
            ids |= {key for key in self._loose if not same.pop(key, False)}
            if not all(same.values()):
                late = {key for key, each in self._seen.items() if each.why == "not passed"}
                ids |= late - self._loose
            for layer in self._changed() if self._is_eager else ():
                ids |= {id(self._identify(each)) for each in _weights_of(layer)}
        return [each for key, each in list(self._seen.items()) if key not in ids]

    # Looks.

    def _find(self, sites: Iterable[int]) -> list[Any]:
        """Find the models that the step with these sites trains, and look at them."""
        got = self.root.variables_of(sites, "request").values()
        passed = {id(each) for each in got if each is not None}
        optimizers = {*map(id, self.root.optimizers.alive())}
        around = {id(each): each for each in _values_around()}
        watched = self._watched_beside(passed, around.values())
        trained, partly, used = list[Any](), list[Any](), list[Any]()
        homes = (getattr(sys.modules.get(home), "Layer", None) for home in _HOMES)
        classes = tuple(each for each in homes if isinstance(each, type))
        models: list[Any] = [each for each in around.values() if isinstance(each, classes)]
        for model in (each for each in models if _is_plain(type(each))):
            with suppress_faults():  # not built yet, or computes its attributes
                own = {id(self._identify(each)) for each in model.trainable_variables}
                if id(getattr(model, "optimizer", None)) in optimizers or (own and own == passed):
                    trained.append(model)
                elif own & passed:
                    partly.append(model)
                elif own & watched.keys():
                    used.append(model)
        found = (trained or partly) + used
        self._models |= {id(model): ref(model) for model in found}
        with suppress_faults():
            self._look(watched)
        return found

    def _look(self, watched: dict[int, Any] | None = None) -> None:
        """Read which layers of the living models are frozen; `watched` by tapes: by id."""
        models = [model for each in self._models.values() if (model := each()) is not None]
        trainable = {id(self._identify(v)) for model in models for v in model.trainable_variables}
        layers = {id(layer): layer for model in models for layer in model._flatten_layers()}
        self._layers = [(ref(each), _trainable_in(each)) for each in layers.values()]
        known = {id(own) for layer in layers.values() for own in _weights_of(layer)}
        frozen = {  # also by a layer around its own, as `Bidirectional` of tf_keras
            id(own)
            for layer in layers.values()
            for own in layer.variables
            if not (layer.trainable and own.trainable)
        }
        for variable in (each for model in models for each in model.variables if id(each) in known):
            own = id(self._identify(variable))
            if own in trainable:
                self._see(variable, "not passed")
            elif id(variable) in frozen and (trainable or own not in self._seen):
                self._see(variable, "frozen")
        for own, variable in (watched or {}).items():
            if own not in self._seen:
                self._see(variable, "not passed")
                self._loose.add(own)
        self._compare()  # keeps the first values

    def _see(self, variable: Any, why: Any) -> None:
        """Note that a variable is frozen, or trainable."""
        own = self._identify(variable)
        old = self._seen.get(id(own))
        if old is None or old.reference() is not own:
            self._seen[id(own)] = ModelVariable(ref(own), self.root.backend.row(variable), why)
        elif old.why != why:
            self._seen[id(own)] = old._replace(why=why, since=self.root.step_count())

    def _changed(self) -> Iterator[Any]:
        """The layers of which `trainable` has changed since the last look, or of a variable."""
        alive = ((layer, was) for each, was in self._layers if (layer := each()) is not None)
        return (layer for layer, was in alive if _trainable_in(layer) != was)

    def _watched_beside(self, passed: set[int], values: Iterable[Any]) -> dict[int, Any]:
        """By id, what gradients can train, of the tapes that watch one that was passed, too."""
        found: dict[int, Any] = {}
        for tape in (each for each in values if type(each).__name__ == "GradientTape"):
            with suppress_faults():
                watched = {id(self._identify(each)): each for each in tape.watched_variables()}
                if not passed.isdisjoint(watched):
                    found |= {
                        key: each
                        for key, each in watched.items()
                        if each.trainable and (each.dtype.is_floating or each.dtype.is_complex)
                    }
        return found

    def _compare(self) -> dict[int, bool]:
        """Whether variables that no traced optimizer got are as at the first look, by key.

        Only those that can be read.
        """
        passed, same = passed_to_any(), dict[int, bool]()
        for key, each in list(self._seen.items()):
            own = each.reference()
            if each.why == "not passed" and id(each.reference) not in passed and own is not None:
                value = self.root.backend.value_of(own, _MAX_SIZE)
                if value is not None:
                    now = blake2b(value.tobytes()).digest()
                    same[key] = self._values.setdefault(key, now) == now
        return same


def _values_around() -> Iterator[Any]:
    """Values of names in the frames that trace the step, and of attributes of these values."""
    for frame in frames_from(sys._getframe(1)):
        if str(frame.f_globals.get("__name__")).rpartition(".")[2] in _TRACING:
            return
        names = {*frame.f_code.co_names}
        known = [*_locals_of(frame).values(), *map(frame.f_globals.get, names)]
        yield from known
        for value in known:
            yield from attributes_of(value, names)


def _locals_of(frame: FrameType) -> dict[str, Any]:
    """A copy of a frame's local variables; the frame keeps no other copy, as Python 3.12 does.

    Python would keep their values alive until the frame ends. If the program has the dict, too, as
    by `locals()`, it stays as it is.
    """
    own = frame.f_locals
    values = dict(own)
    only_here = 3  # references: by the frame, by this function, and by the argument
    if frame.f_code.co_flags & CO_OPTIMIZED and sys.getrefcount(own) == only_here:
        own.clear()
    return values


def _is_plain(cls: type) -> bool:
    """True for a class of layers that does not override which variables are trainable."""
    return all(
        next(base for base in cls.__mro__ if name in vars(base)).__module__.startswith(_KERAS)
        for name in ("trainable_variables", "trainable_weights", "variables")
    )


_KERAS = ("keras.", "tf_keras.", "tensorflow.")


def _has_run_batches() -> bool:
    """True if `fit` is under way and has trained on a batch: its loop has set its variable."""
    fits = (each for each in frames_from(sys._getframe(1)) if each.f_code.co_name == "fit")
    return any(not _IN_FIT.isdisjoint(_locals_of(each)) for each in fits)


_IN_FIT = {"end_step", "step"}
"""The variables of the loops in `fit` of Keras 3 and of tf_keras."""


_LOADS = ("load_model", "compile_from_config")


def _weights_of(layer: object) -> Iterator[Any]:
    """The layer's own variables that gradients train unless they are frozen."""
    keras3, keras2 = "_trainable_variables", "_trainable_weights"
    own: Iterable[Any] = getattr(layer, keras3 if hasattr(layer, keras3) else keras2, ())
    return (each for each in own if not getattr(each, "overwrite_with_gradient", False))


def _trainable_in(layer: object) -> list[bool]:
    """Whether a layer, and each of its own variables, is trainable."""
    return [bool(each.trainable) for each in (layer, *_weights_of(layer))]


# The classes of layers.

_HOMES = (
    "keras.src.layers.layer",
    "tf_keras.src.engine.base_layer",
    "keras.src.engine.base_layer",  # 2.13 to 2.15
    "keras.engine.base_layer",
    "tensorflow.python.keras.engine.base_layer",
)
"""The modules that define `Layer`, also the base class of models."""


def weights_of(given: Any) -> list[Any]:
    """The variables that gradients can train, of a layer, a model or a `tf.Module`.

    Those of frozen layers, too; not the averages of a `BatchNormalization`, for example.
    """
    parts = _parts_of(given)
    layers = (layer for each in parts if _is_layer(each) for layer in each._flatten_layers())
    own = (variable for layer in layers for variable in _weights_of(layer))
    return _once(*(each.trainable_variables for each in parts), own)


def variables_of(given: Any) -> list[Any]:
    """All variables of a layer, a model or a `tf.Module`."""
    return _once(*(each.variables for each in _parts_of(given)))


def _parts_of(given: Any) -> list[Any]:
    """The layer, model or module, and the layers in a module: those of Keras 3 are no modules."""
    home: Any = getattr(sys.modules.get("tensorflow"), "Module", ())
    is_module = isinstance(given, home)
    return [given, *(home._flatten(given, predicate=_is_layer) if is_module else ())]


def _once(*every: Iterable[Any]) -> list[Any]:
    """All these variables, each once."""
    return list({id(each): each for each in chain(*every)}.values())


def _is_layer(value: object) -> bool:
    """True for a layer or a model of any Keras."""
    return hasattr(type(value), "_flatten_layers")
