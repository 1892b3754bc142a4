"""Examples of counting, as programs: each was once counted wrong, or is easily counted wrong.

Each runs as a random program does: with the tracer and without, against odometers and their log.
"""

from collections.abc import Sequence
from typing import Any

from fuzz.batch import Node
from fuzz.tensorflow import Function, Optimizer, Program

STEP = Node("step", ("o", (("a", "dense"), ("b", "sparse")), "one", "apply_gradients"))
TWICE = STEP._replace(
    to=("o", (("a", "dense"), ("b", "dense"), ("a", "dense")), "one", "apply_gradients")
)
INNER, OTHER = (STEP._replace(to=(name, *STEP.to[1:])) for name in ("inner", "other"))
APPLY = Node("direct", ("base", "a"))
WRAP, KEEPS, UNWRAP = (
    Node("wrap", ("o", True)),
    Node("wrap", ("o", False)),
    Node("unwrap", ("o", False)),
)
LOOK = Node("look")
F0, F1, F2 = (Node("call", (number, 0, 0)) for number in (0, 1, 2))
LOOP = Node("loop", (3, 5), (STEP, F0))


def limit(number: int) -> Node:
    """So many updates, or calls of apply methods, from here on; below 0 none fails."""
    return Node("limit", (number,))


def program(
    *actions: Node, functions: Sequence[Sequence[Node]] = ((STEP,),), **spec: Any
) -> Program:
    """A program with these functions, and an optimizer of this specification."""
    optimizer = Optimizer(spec.pop("kind", "legacy"), **spec)
    return Program(optimizer, tuple(Function(tuple(f)) for f in functions), (*actions, LOOK))


COMPANY: dict[str, Any] = {"inner": True, "override": (F0,), "functions": [[INNER]]}
"""A step that calls the function 0, which steps with another optimizer, and nothing else."""

CORPUS = {
    # Wrapped late, unwrapped, and wrapped again.
    "wrapped late, in eager mode": program(STEP, WRAP, STEP, STEP),
    "wrapped late, in a function": program(F0, F0, WRAP, F0, LOOK, F0),
    "an older graph that is kept": program(F0, KEEPS, F0, STEP),
    "wrapped again, in eager mode": program(WRAP, STEP, UNWRAP, STEP, STEP, LOOK, WRAP, STEP, STEP),
    "wrapped again, in a function": program(
        *(WRAP, F0, F0, UNWRAP, F0, F1, LOOK, WRAP, F0, F0, LOOK, F1, F1),
        functions=[[STEP], [STEP]],
    ),
    "two optimizers of a function that are wrapped in turn": program(
        F0, WRAP, F0, LOOK, Node("wrap", ("other", True)), F0, functions=[[STEP, OTHER]]
    )._replace(other=True),
    "an uncounted step beside a function that counts": program(
        *(WRAP, F0, UNWRAP, F1, F2, LOOK, WRAP, F1, F1, F2),
        functions=[[STEP], [F0, STEP], [F0]],
    ),
    # Apply methods that are called directly, variables that are passed twice or are not passed on.
    "an update outside of steps": program(WRAP, STEP, APPLY, F0, F0, functions=[[APPLY]]),
    "a variable that is passed twice": program(WRAP, TWICE, F0, F0, functions=[[TWICE]]),
    "an override that passes on a part": program(
        WRAP, STEP, F0, F0, override=(Node("super", ("first",)),)
    ),
    # Steps that fail, in eager mode before and after the function that they call, and in a graph.
    "an apply method that raises": program(
        *(WRAP, STEP, limit(1), STEP, limit(0), STEP, limit(-1), STEP, F0), fails="trip"
    ),
    "an apply method that raises while a function is traced": program(
        WRAP, limit(1), F0, limit(-1), F0, F0, STEP, fails="trip"
    ),
    "a step that raises after its function": program(
        *(WRAP, STEP, limit(0), STEP, limit(-1), STEP, STEP),
        fails="trip",
        override=(F0, Node("super", ("all",))),
        functions=[[APPLY]],
    ),
    "a function that fails half way in a step": program(
        *(WRAP, STEP, limit(1), STEP, limit(-1), STEP, F0), **COMPANY, fails="fuse"
    ),
    # Graphs that run in other steps than they were traced in.
    "a function traced inside a step and run alone": program(WRAP, STEP, F0, F0, **COMPANY),
    "a function traced alone and run inside steps": program(WRAP, F0, STEP, STEP, STEP, **COMPANY),
    "both in a loop of another function": program(
        WRAP, F0, F1, F0, **COMPANY | {"functions": [[INNER], [LOOP]]}
    ),
    "an apply method in a function inside and outside of steps": program(
        WRAP, F0, STEP, STEP, F0, override=(F0,), functions=[[APPLY]]
    ),
    # The gradients go past the apply methods of a graph that is not traced again.
    "an older graph that never moves iterations": program(
        F0, KEEPS, F0, kind="keras3", override=(Node("own", ("all",)),)
    ),
}
