"""What a random program is: some optimizers, some functions and what is done with them.

A program is data, so that two can read it: `running` runs it, `oracle` works out what must be
counted. `generator` draws it, and Hypothesis shrinks one that fails.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

GradientKind = Literal["dense", "sparse", "none"]
Pairs = tuple[tuple[str, GradientKind], ...]
"""Variables, each with the kind of its gradient."""
Value = Literal["one", "inf", "odd"]
"""What is in the gradients of a step; where `i` is odd, `odd` ones are infinite."""


class Statement:
    """Something that a program does, in a function or outside of all."""


Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Step(Statement):
    """Call `apply_gradients` (or `apply`) of an optimizer with a gradient for each variable."""

    optimizer: str
    pairs: Pairs
    value: Value = "one"
    method: str = "apply_gradients"


@dataclass(frozen=True)
class Direct(Statement):
    """Call the apply method of an optimizer itself, with a dense gradient."""

    optimizer: str
    variable: str


@dataclass(frozen=True)
class Call(Statement):
    """Call a function; `key` is a Python number, so that each one is another graph."""

    function: str
    shift: int = 0
    key: int = 0


@dataclass(frozen=True)
class Cond(Statement):
    """One of two branches, by whether `i` is even."""

    then: Body
    otherwise: Body


@dataclass(frozen=True)
class Switch(Statement):
    """One of some branches, by `i`."""

    branches: tuple[Body, ...]


@dataclass(frozen=True)
class Loop(Statement):
    """A loop that sets `i` to 0, 1, ... and stops before `stop` if that comes before `count`."""

    count: int
    stop: int
    body: Body


@dataclass(frozen=True)
class Host(Statement):
    """A `py_function`, and what comes after it."""

    body: Body
    after: Body = ()


@dataclass(frozen=True)
class Map(Statement):
    """A `map_fn` that sets `i` to 0, 1, ..."""

    count: int
    body: Body


@dataclass(frozen=True)
class Recompute(Statement):
    """`recompute_grad`: the body runs once, and again if there is a gradient."""

    body: Body
    gradient: bool


@dataclass(frozen=True)
class Custom(Statement):
    """A `custom_gradient` that does something on its way there, and on its way back."""

    forward: Body
    backward: Body


@dataclass(frozen=True)
class Replicas(Statement):
    """`strategy.run` of the body."""

    body: Body


@dataclass(frozen=True)
class Do(Statement):
    """`look` at all traces, `save` or `restore` a checkpoint, `collect` the garbage."""

    what: Literal["look", "save", "restore", "collect"]


# What is done outside of all functions only.


@dataclass(frozen=True)
class Wrap(Statement):
    """Begin to trace an optimizer, or go on; or, not if `on`, trace it no more.

    With `retrace`, functions that use it uncounted, or those with counters, are traced anew.
    """

    optimizer: str
    retrace: bool
    on: bool = True


@dataclass(frozen=True)
class Limit(Statement):
    """From here on so many updates (`fuse`) or calls of apply methods (`trip`) can be made.

    The next one fails, or raises; below 0, none does.
    """

    of: Literal["fuse", "trip"]
    number: int


@dataclass(frozen=True)
class Graphs(Statement):
    """Trace a function to a graph, and don't run it."""

    function: str


@dataclass(frozen=True)
class Function:
    """A `tf.function`."""

    name: str
    body: Body
    autograph: bool = False
    jit: bool = False


@dataclass(frozen=True)
class Part:
    """What an override of `apply_gradients` does with its pairs; those after `own` need none."""

    what: Literal["super", "inner", "own", "call"]
    transform: Literal["all", "first", "reversed"] = "all"
    function: str = ""

    def chosen(self, pairs: Any) -> Any:
        """The pairs that it is about."""
        return {"all": pairs, "first": pairs[:1], "reversed": pairs[::-1]}[self.transform]


@dataclass(frozen=True)
class Optimizer:
    """The root optimizer of a program, from the inside out."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    override: tuple[Part, ...] = ()
    """What its `apply_gradients` does; nothing: it is not overridden."""
    inner: bool = False
    """Whether it has a second one in an attribute, `inner`."""
    fails: Literal["", "fuse", "trip"] = ""
    """Whether its updates can be made to fail, or its apply methods to raise, by `Limit`."""
    loss_scale: bool = False


@dataclass(frozen=True)
class Program:
    """All of it. `actions` are done one after the other."""

    optimizer: Optimizer
    other: bool
    """Whether there is a second root, `other`, of the same kind."""
    strategy: Literal["", "OneDevice", "Mirrored"]
    variables: tuple[str, ...]
    functions: tuple[Function, ...]
    actions: Body
    ways: tuple[str, ...] = ()
    """What it was made of, for the count of cells."""
    recorded: bool = False
    """Whether `tracer.record` traces it, not `tracer.wrap`."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The optimizers that have a trace of their own."""
        return ("o", "other") if self.other else ("o",)

    @property
    def replicas(self) -> int:
        """How many replicas each step has."""
        return 2 if self.strategy == "Mirrored" else 1


def children_of(statement: Statement) -> Iterator[Statement]:
    """The statements that are directly in a statement."""
    for field in fields(statement):  # type: ignore[arg-type]
        todo = [getattr(statement, field.name)]
        while todo:
            value = todo.pop(0)
            if isinstance(value, Statement):
                yield value
            elif isinstance(value, tuple):
                todo += value
