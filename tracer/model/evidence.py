"""Defines the evidence in a trace: what was observed of an optimizer, and is not counted.

A collector or a backend makes the records, a trace file keeps them, and the rules and facts read
their fields. In a file, the name of the class tells the kinds apart. What the blocks show needs no
record: skipped and accumulated steps, an optimizer without a step, who else updates a variable. The
rates and decays of the steps are `tracer.model.records.Rate`.
"""

from typing import Literal

import msgspec


class Observed(msgspec.Struct, frozen=True, tag=True):
    """Base of the evidence on one optimizer."""


# The class of the optimizer.


class ClassMethod(Observed, frozen=True):
    """What is remarkable of a method of the class."""

    what: Literal["unreached", "own dense", "no sparse", "own step"]
    """`unreached`: the program defines it, and nothing calls it. `own dense`: the program defines
    the method for dense gradients, and people ask why it never runs. `no sparse`: the class lacks
    this method for sparse gradients. `own step`: the program defines this step method, which may
    update variables by itself."""
    method: str
    line: str = ""
    """The line of the definition: `train.py:12`; empty if unknown."""
    called: str = ""
    """The method that is called instead of one that is `unreached`."""


class NeverAssigned(Observed, frozen=True):
    """An apply method assigned nothing to these variables whenever it was traced."""

    method: str
    variables: tuple[str, ...]


# Its steps.


class Failure(Observed, frozen=True):
    """A call of the outermost step method that raised an exception in Python; each error once."""

    method: str
    error: str
    """The exception in one line: `ValueError: Unknown variable`."""
    after: int
    """The number of steps that had run before."""
    last: bool = True
    """Whether no step of the optimizer began afterwards."""


class Fitted(Observed, frozen=True):
    """`fit` or `train_on_batch` trained its model, and the optimizer made no step."""


class NoStep(Observed, frozen=True):
    """Why the optimizer made no step."""

    why: Literal["all frozen", "not reached", "nothing passed", "gradients came", "from config"]
    """`not reached`: `train_step` called no step method. `gradients came`: its parameters got
    gradients, and nobody updated them. `from config`: it was loaded, or copied, with its model."""


class NeverPassed(Observed, frozen=True):
    """Parameters of PyTorch that get gradients, and that no optimizer gets."""

    names: tuple[str, ...]


class Iterations(Observed, frozen=True):
    """The optimizer's own count of its steps, when the trace began and when it ended."""

    begin: int
    end: int


class BackwardPasses(Observed, frozen=True):
    """How many backward passes of PyTorch the steps used: fewer if steps used one again.

    Gradients that were cleared before a step do not count.
    """

    passes: int


class LossNotScaled(Observed, frozen=True):
    """The gradients were divided by a loss scale, and `missing` was never called."""

    missing: str
    """The method that multiplies the loss."""
    divided: str
    """The method that divided the gradients."""


class StateRenewed(Observed, frozen=True):
    """In so many steps, the state was that of the first step."""

    steps: int


class SharedByMembers(Observed, frozen=True):
    """So many members of a `vmap` update the same variables."""

    members: int


class GradientsAdded(Observed, frozen=True):
    """In `steps` of `of` steps, backward added to gradients that the previous step had used."""

    steps: int
    of: int


class GradientsLeft(Observed, frozen=True):
    """Backward passes whose gradients no step used: `passes` of `of`."""

    passes: int
    of: int
    every: int
    """The number of passes that most steps use."""
    line: str
    """The line that calls `backward`; empty if unknown."""


class Scheduled(Observed, frozen=True):
    """A schedule of PyTorch sets the learning rate."""

    name: str
    """Its class: `CosineAnnealingLR`."""


Evidence = (
    ClassMethod
    | NeverAssigned
    | Failure
    | Fitted
    | NoStep
    | NeverPassed
    | Iterations
    | BackwardPasses
    | LossNotScaled
    | StateRenewed
    | SharedByMembers
    | GradientsAdded
    | GradientsLeft
    | Scheduled
)
