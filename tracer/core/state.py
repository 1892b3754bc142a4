"""What an optimizer keeps and was told, and whether the program uses it: asked where it is read.

Read in Keras 3.15 (`keras/src/optimizers/base_optimizer.py`, `loss_scale_optimizer.py`) and
tf_keras 2.21 (`src/optimizers/optimizer.py`, `src/mixed_precision/loss_scale_optimizer.py`).
"""

import linecache
import math
import os
import re
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from tracer.core.paths import is_cell
from tracer.kinds import OptimizerKind
from tracer.model.records import Decay, Remark

EMA_UNUSED = "ema-unused"
LOSS_NOT_SCALED = "loss-not-scaled"
NEVER_SCALED = "never-scaled"
"""The codes of remarks on what was never called: see `unused`."""

FITTED = "fitted"
"""The code of the remark on an optimizer without a step with which `fit` came to its end."""
NOT_LOADED = "state-not-loaded"
"""The code of the remark on an optimizer whose state was in a file, and was left out."""

_BY_HAND = {
    EMA_UNUSED: r"_model_variables_moving_average|SwapEMAWeights",
    LOSS_NOT_SCALED: r"\.(loss_scale|loss_scale_factor|dynamic_scale|initial_scale)\b",
}
"""How a program does by itself what it does not call a method for."""

_NOT_THE_PROGRAM = ("jax", "keras", "optax", "tensorflow", "tf_keras", "torch", "tracer")
_INSTALLED = ("site-packages", "dist-packages")


def decay_of(optimizer: Any, updated: Sequence[tuple[str, Any]]) -> Decay | None:
    """Which of the variables that it updates decay; None if it was told of no exceptions.

    `updated` are their names, and what the backend has of them. Keras searches each pattern in the
    name that this has.
    """
    own = object.__getattribute__(optimizer, "__dict__")
    rate = own.get("weight_decay")
    joined = own.get("_exclude_from_weight_decay_pattern")
    patterns = own.get("_exclude_from_weight_decay_names") or _parts(joined)
    listed = own.get("_exclude_from_weight_decay") or ()
    if not isinstance(rate, float | int) or not rate or not math.isfinite(rate):
        return None
    if not (patterns or listed) or not updated:
        return None
    found: dict[str, bool] = {**dict.fromkeys(map(str, patterns), False)}
    known = set()
    decayed, searched = [], []
    for name, variable in updated:
        theirs = str(getattr(variable, "name", ""))
        searched.append(theirs)
        hits = [each for each in found if re.search(each, theirs)]
        found.update(dict.fromkeys(hits, True))
        key = optimizer._var_key(variable)
        known.add(key)
        if not hits and key not in listed:
            decayed.append(name)
    missed = sum(each not in known for each in listed)
    unmatched = [f"'{each}'" for each, hit in found.items() if not hit]
    unmatched += [f"{missed} of var_list"] if missed else []
    matched = len(decayed) < len(updated)
    return Decay(float(rate), tuple(unmatched), matched, tuple(decayed), searched[0])


def _parts(joined: Any) -> list[str]:
    """The patterns that Keras 3 has joined to one, if they can be told apart."""
    if joined is None:
        return []
    parts = joined.pattern.split("|")
    try:
        return [re.compile(each).pattern for each in parts]
    except re.error:  # one of them has a | of its own
        return [joined.pattern]


def unused(
    optimizer: Any, kind: OptimizerKind, called: Collection[str], files: Collection[str]
) -> Iterator[Remark]:
    """A remark on what it keeps or divides by, and the program does nothing about.

    `called` are the methods of `tracer.kinds.BESIDE` that were; `files` are of the program.
    """
    own = object.__getattribute__(optimizer, "__dict__")
    keeps_averages = own.get("use_ema") is True and not own.get("ema_overwrite_frequency")
    unread = keeps_averages and "finalize_variable_values" not in called
    if unread and not _mentioned(EMA_UNUSED, files):
        yield Remark(EMA_UNUSED, "finalize_variable_values")
    if "LossScale" not in type(optimizer).__name__ and own.get("loss_scale_factor") in (None, 1):
        return
    if kind.name == "keras3":
        missing = "scale_loss" not in called
        divides = "apply"
        needed = "scale_loss"
    else:
        missing = "get_scaled_loss" not in called
        divides = "get_unscaled_gradients" if "get_unscaled_gradients" in called else ""
        needed = "get_scaled_loss"
    if missing and not _mentioned(LOSS_NOT_SCALED, files):
        yield Remark(LOSS_NOT_SCALED if divides else NEVER_SCALED, needed, divides)


def files_around() -> set[str]:
    """The files of the program that the functions under way are defined in."""
    files = set()
    frame: Any = sys._getframe(1)
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] not in _NOT_THE_PROGRAM:
            files.add(frame.f_code.co_filename)
        frame = frame.f_back
    return files


def _mentioned(code: str, files: Collection[str]) -> bool:
    """Whether the program seems to do by itself what it calls no method for."""
    spelt = re.compile(_BY_HAND[code])
    return any(spelt.search("".join(linecache.getlines(file))) for file in _program(files))


def _program(files: Collection[str]) -> set[str]:
    """The files of the program: those given, those beside its main file, cells of a notebook."""
    every = {*files, *filter(is_cell, list(linecache.cache))}
    main = getattr(sys.modules.get("__main__"), "__file__", None)
    if isinstance(main, str):
        folder = os.path.dirname(os.path.abspath(main)) + os.sep
        for name, module in list(sys.modules.items()):
            file = getattr(module, "__file__", None)
            if isinstance(file, str) and file.startswith(folder) and _is_own(name, file):
                every.add(file)
        every.add(main)
    return every


def _is_own(name: str, file: str) -> bool:
    """Whether a module is of the program, though an environment may be in its folder, too."""
    installed = any(each in file.split(os.sep) for each in _INSTALLED)
    return not installed and name.partition(".")[0] not in _NOT_THE_PROGRAM


def objects_of(rows: Sequence[Any], references: Sequence[Any]) -> list[tuple[str, Any]]:
    """The variables that are alive, each with its name."""
    alive = []
    for row, reference in zip(rows, references, strict=False):
        variable = None if reference is None else reference()
        if variable is not None:
            alive.append((row.name, variable))
    return alive
