"""What of a model is trainable, and what the optimizer that trains it is handed.

A traced step goes on with the variables that were trainable when it was traced. A layer that is
made trainable later is not among them until the step is traced anew, as by `model.compile`; and
one that is frozen later is still among them.

Which model it is, is seen on the stack while the step is traced: the one whose trainable variables
are just those that the optimizer is handed. A list that somebody chose otherwise has no model, and
nothing is said of it, nor where one optimizer trains several models. The model is looked at again
when its function is called, for what was made trainable after the last step may be compiled next.
After the first hundred calls at most a thousandth of the time goes into that. What was frozen and
changes its value all the same is trained by somebody else; and what is frozen in a model that is
a part of one with an optimizer of its own, as the critic of a GAN, is frozen for that one.
"""

import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary, WeakSet, getweakrefs, ref

from tracer.backends.tensorflow.own_variables import iterations_of
from tracer.backends.tensorflow.variables import VariableTable, canonical, own_path
from tracer.core import backend
from tracer.core.backend import Iterations
from tracer.core.instances import instances
from tracer.core.interrupts import suppress_faults
from tracer.kinds import kind_of
from tracer.model.names import tensorflow_name

_FRAMEWORKS = ("keras", "tensorflow", "tf_keras", "tracer")
_TRACING = ("tracing_compilation", "tracing_compiler")
"""The modules of TensorFlow that call Python to trace a function; what is above lives longer."""
_REST = 1000
"""How many times as long as it took to look at the models none is looked at again."""

_AT_ONCE = 100
"""How many looks are taken without a rest, so that what is said of a short run does not depend on
how fast it was."""

_LONGEST_REST = 0.5
"""Seconds; a look takes long where the thread had to wait in it, too."""

_SMALL = 4096
"""Elements of a variable of which the value is looked at."""

_all: "WeakSet[Handing]" = WeakSet()
"""One for each recorder."""


class _Model(NamedTuple):
    """A model as it was when its step was traced; nothing of it is kept alive."""

    model: ref[Any]
    handed: frozenset[int]
    """The ids of the variables that the optimizer was handed, which were the trainable ones."""
    frozen: dict[int, ref[Any]]
    """By their ids, the variables that were not trainable."""
    layers: list[ref[Any]]
    """The layers that were not trainable, of which one must change before any of that does."""
    steps_of_parts: dict[int, int | None]
    """How often the optimizers of models in it had stepped, by the ids of the models."""
    trained: list[ref[Any]]
    """The layers that hold what was handed over, which may be frozen later."""
    begun: list[frozenset[int]]
    """When it was called first, the ids of those of `trained` that were trainable; then one item.

    What is frozen by then was not, as the program sees it, while the step was traced only.
    """


class _Late(NamedTuple):
    """A variable that became trainable and was not handed over, as it was when that was seen."""

    variable: ref[Any]
    name: str
    value: bytes
    """Empty for a large one: those of its layer that are small tell enough."""
    others: Mapping[int, list[int]]
    """How far the optimizers that are traced and know it were, by the ids of their `Handing`."""

    @property
    def is_gone(self) -> bool:
        """Whether the program has let go of it."""
        return self.variable() is None

    def has_changed(self) -> bool:
        """Whether it holds another value now, as far as that is known."""
        own = self.variable()
        return own is not None and bool(self.value) and self.value != _value(own)


class _Frozen(NamedTuple):
    """A variable that is frozen and was handed over."""

    name: str
    model: ref[Any]
    elsewhere: bool
    """Whether another model with an optimizer holds it."""


class Handing(backend.Handing):
    """The models that the optimizers of one recorder train, and what became trainable since."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        _all.add(self)
        self._variables: VariableTable = root.variables
        self._iterations: Callable[[], Mapping[int, Iterations]] = root.optimizers.iterations
        self._models: list[_Model] = []
        self._late: dict[int, _Late] = {}
        self._frozen: dict[int, _Frozen] = {}
        self._trained: set[int] = set()  # of the late ones, those that somebody else trains
        self._looks = 0
        self._due = 0.0

    def traced(self, handed: Iterable[Any]) -> None:
        """A step is being traced that was handed these variables; called below it on the stack."""
        ids = frozenset(map(id, handed))
        with suppress_faults():  # of a model, which may compute what it shows
            models = [_as_it_is(model, ids) for model in _models_around(ids)]
            anew = {id(each.model()) for each in models}
            others = [each for each in self._models if id(each.model()) not in anew]
            if any(each.handed != ids for each in others if each.model() is not None):
                models = others = []  # one optimizer, several models
            self._models = [*filter(_is_up_to_date, others), *models]

    def called(self) -> None:
        """A function with a step in it is called."""
        if self._models and time.perf_counter() >= self._due:
            begin = time.perf_counter()
            with suppress_faults():
                if self._late or self._has_thawed():
                    self._look()
                for known in self._models:
                    self._note_frozen(known)
            end = time.perf_counter()
            self._looks += 1
            if self._looks >= _AT_ONCE:
                self._due = end + min(_LONGEST_REST, _REST * (end - begin))

    def never_handed(self) -> tuple[str, ...]:
        """The names of what was trainable while steps ran, is so still, and was never handed.

        What is gone, as the model of a function that has returned, is as it was seen last.
        """
        late = dict(self._late)
        if not late:
            return ()
        with suppress_faults():
            now = {key for key, _, _ in self._thawed()}
            late = {key: each for key, each in late.items() if key in now or each.is_gone}
            self._note_trained(late)
        return tuple(
            each.name
            for key, each in late.items()
            if key not in self._trained
            and all(
                each.others.get(other) == iterations
                for other, iterations in _others(key, each.variable).items()
            )
        )

    def frozen(self) -> tuple[str, ...]:
        """The names of what was frozen and went on to be handed over, for no other model's sake."""
        with suppress_faults():
            return tuple(
                each.name
                for key, each in self._frozen.items()
                if not each.elsewhere and not self._is_elsewhere(key)
            )
        return ()

    def _note_frozen(self, known: _Model) -> None:
        """Note what is handed over and is frozen now, and was not when the step began to run."""
        model = known.model()
        if model is None:
            return
        state = _state_kept_meanwhile(model)
        layers = [layer for each in known.trained if (layer := each()) is not None]
        # What a callback of `fit` freezes is so itself; what was before it, in `state` alone.
        trainable = {id(layer) for layer in layers if layer.trainable and state.get(layer, True)}
        if not known.begun:
            # What tf_keras trains is what was trainable at `compile`, whatever the program sees.
            compiled = {id(layer) for layer in layers if layer.trainable}
            known.begun.append(frozenset(compiled if state else trainable))
        for layer in layers:
            if id(layer) in known.begun[0] and id(layer) not in trainable:
                for variable in [*layer.variables]:
                    own = canonical(variable)
                    if id(own) in known.handed and id(own) not in self._frozen:
                        name = own_path(variable) or tensorflow_name(own)
                        elsewhere = _is_part_of_another(layer, model)
                        self._frozen[id(own)] = _Frozen(name, known.model, elsewhere)

    def _is_elsewhere(self, key: int) -> bool:
        """Whether a model that another optimizer trains holds a variable."""
        return any(
            key in known.frozen or key in known.handed
            for each in list(_all)
            if each is not self
            for known in each._models
            if known.model() is not None
        )

    def _look(self) -> None:
        """Note what is trainable now and was frozen."""
        known, late = self._late, {key: each for key, each in self._late.items() if each.is_gone}
        for key, own, variable in self._thawed():
            name = own_path(variable) or tensorflow_name(own)
            late[key] = known.get(key) or _Late(ref(own), name, _value(own), _others(key, ref(own)))
        self._late = late
        self._note_trained(late)

    def _note_trained(self, late: Mapping[int, _Late]) -> None:
        """Note which of these somebody else trains."""
        if late:
            self._trained |= set(self._trained_by_others())
            if any(each.has_changed() for each in late.values()):
                self._trained |= late.keys()

    def _has_thawed(self) -> bool:
        """Whether a layer that was frozen is trainable now; this is fast."""
        for known in self._models:
            state = _state_kept_meanwhile(known.model())
            for each in known.layers:
                layer = each()
                if layer is not None and (layer.trainable or state.get(layer)):
                    return True
        return False

    def _thawed(self) -> Iterator[tuple[int, Any, Any]]:
        """What was frozen and is trainable now: its id, itself, and as the model has it."""
        for known in self._models:
            model = known.model()
            for variable in () if model is None else _trainable(model):
                own = canonical(variable)
                frozen = known.frozen.get(id(own))
                if frozen is not None and frozen() is own:
                    yield id(own), own, variable

    def _trained_by_others(self) -> Iterator[int]:
        """The ids of variables of models with optimizers of their own, which have stepped since.

        So the discriminator of a GAN is trained, which is frozen in the model that trains the
        generator.
        """
        for known in self._models:
            model = known.model()
            for part in () if model is None else _parts(model):
                if known.steps_of_parts.get(id(part)) != _steps_of(part):
                    yield from (id(canonical(each)) for each in part.variables)


def _others(key: int, variable: ref[Any]) -> dict[int, list[int]]:
    """How far those optimizers are that know a variable, by the ids of their `Handing`."""
    known = [each for each in list(_all) if each._variables.knows(key, variable)]
    return {id(each): [own.steps for own in each._iterations().values()] for each in known}


def _is_up_to_date(known: _Model) -> bool:
    """Whether what is trainable in a model is what was handed over when its step was traced.

    If not, and its step was traced again without the rest, that is for another optimizer.
    """
    model = known.model()
    return model is not None and {id(canonical(v)) for v in _trainable(model)} == known.handed


def _value(own: Any) -> bytes:
    """What a small variable holds."""
    size = own.shape.num_elements()
    return bytes(own.numpy().tobytes()) if size is not None and size <= _SMALL else b""


def _as_it_is(model: Any, handed: frozenset[int]) -> _Model:
    own = [canonical(each) for each in model.variables]
    frozen = {id(each): ref(each) for each in own if id(each) not in handed}
    layers = [ref(layer) for layer in model._flatten_layers() if not layer.trainable]
    parts = {id(part): _steps_of(part) for part in _parts(model)}
    trained = [ref(layer) for layer in model._flatten_layers() if layer.trainable]
    return _Model(ref(model), handed, frozen, layers, parts, trained, [])


def _parts(model: Any) -> list[Any]:
    """The models in a model that were compiled with an optimizer."""
    layers: Callable[[], Iterable[Any]] = model._flatten_layers
    return [
        each
        for each in layers()
        if each is not model and kind_of(type(getattr(each, "optimizer", None))) is not None
    ]


def _is_part_of_another(layer: Any, model: Any) -> bool:
    """Whether a living model that was compiled, and is not `model`, has the layer."""
    bases = {base for base in type(layer).__mro__ if base.__name__ == "Layer" and _of_keras(base)}
    return any(
        other is not model
        and kind_of(type(getattr(other, "optimizer", None))) is not None
        and any(each is layer for each in other._flatten_layers())
        for other in instances(bases)
    )


def _steps_of(part: Any) -> int | None:
    return iterations_of(part.optimizer)


def _trainable(model: Any) -> list[Any]:
    """The variables that are trainable as the program sees it."""
    state = _state_kept_meanwhile(model)
    return [*model.trainable_variables, *(_weights_by(state, model) if state else ())]


def _weights_by(state: Mapping[Any, bool], layer: Any) -> Iterator[Any]:
    """The variables that would be trainable if the layers were as `state` says."""
    if state.get(layer, layer.trainable):
        yield from layer._trainable_weights
        for part in layer._flatten_layers(recursive=False, include_self=False):
            yield from _weights_by(state, part)


def _state_kept_meanwhile(model: Any) -> Mapping[Any, bool]:
    """Which layers the program made trainable, where Keras hides it; empty where it does not.

    While tf_keras trains, each layer is as it was at `compile`, and how it was before stands in a
    dict that nothing but `fit` knows (`src/engine/training_utils.py`,
    `RespectCompiledTrainableState`). But its keys are weak references to the layers, and the model
    knows who refers to it weakly.
    """
    compiled = vars(model).get("_compiled_trainable_state") if model is not None else None
    if not isinstance(compiled, WeakKeyDictionary):
        return {}
    # What `fit` builds has more layers than there were at `compile`: its inputs.
    layers = {*map(id, compiled)}, {id(layer) for layer in model._flatten_layers()}
    for reference in getweakrefs(model):
        owner, *_ = getattr(reference.__callback__, "__defaults__", None) or (None,)
        state = owner() if isinstance(owner, ref) else None
        if not isinstance(state, WeakKeyDictionary) or state is compiled:
            continue
        if {*map(id, state)} in layers and {*state.values()} <= {True, False}:
            return state
    return {}


# The stack.


def _models_around(handed: frozenset[int]) -> list[Any]:
    """The layers and models that the functions under way know, with these trainable variables."""
    models = {}
    for value in _values_around():
        if id(value) not in models and _is_plain_layer(type(value)):
            with suppress_faults():  # not built, say
                if {id(canonical(each)) for each in value.trainable_variables} == handed:
                    models[id(value)] = value
    return list(models.values())


def _values_around() -> Iterator[Any]:
    """What the frames that trace the step know by a name: their variables, and parts of these."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = frame.f_globals.get("__name__") or ""
        if module.rpartition(".")[2] in _TRACING:
            return
        code = frame.f_code
        if module.partition(".")[0] in _FRAMEWORKS:
            yield from (frame.f_locals.get(name) for name in code.co_varnames[:1])
        else:
            known = [*frame.f_locals.values()]
            known += [frame.f_globals[name] for name in code.co_names if name in frame.f_globals]
            yield from known
            for value in known:
                yield from _attributes(value, code.co_names)
        frame = frame.f_back


def _attributes(value: Any, names: Iterable[str]) -> Iterator[Any]:
    """What an object of the program holds under these names."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    if isinstance(own, dict):
        yield from (own[name] for name in names if name in own)


def _is_plain_layer(cls: type) -> bool:
    """Whether it is a layer or model of Keras that has not its own idea of what is trainable."""
    return any(base.__name__ == "Layer" and _of_keras(base) for base in cls.__mro__) and all(
        _of_keras(next(base for base in cls.__mro__ if name in vars(base)))
        for name in ("trainable_variables", "trainable_weights", "variables")
    )


def _of_keras(cls: type) -> bool:
    return cls.__module__.startswith(("keras.", "tf_keras.", "tensorflow."))
