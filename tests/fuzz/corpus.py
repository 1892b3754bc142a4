"""Examples of counting, as programs: each was once counted wrong, or is easily counted wrong.

Each runs as a random program does: with the tracer and without, against odometers and the model.
"""

from collections.abc import Sequence
from typing import Any

from fuzz.programs import (
    Call,
    Direct,
    Do,
    Function,
    Loop,
    Optimizer,
    Part,
    Program,
    Statement,
    Step,
    Wrap,
)

STEP = Step("o", (("a", "dense"), ("b", "sparse")))
APPLY = Direct("base", "a")
WRAP, UNWRAP = Wrap("o", retrace=True), Wrap("o", retrace=False, on=False)
LOOK = Do("look")
CALLING = (Part("call", function="f0"),)
"""A step that calls the function `f0`, and nothing else."""
F0, F1 = Call("f0"), Call("f1")


def program(
    *actions: Statement, functions: Sequence[Sequence[Statement]] = ((STEP,),), **spec: Any
) -> Program:
    """A program with these functions, `f0` and so on, and an optimizer of this specification."""
    made = (Function(f"f{number}", tuple(body)) for number, body in enumerate(functions))
    optimizer = Optimizer(spec.pop("kind", "legacy"), **spec)
    return Program(optimizer, False, "", ("a", "b"), tuple(made), (*actions, LOOK))


INNER: dict[str, Any] = {
    "inner": True,
    "override": CALLING,
    "functions": [[Step("inner", STEP.pairs)]],
}

CORPUS = {
    # Wrapped late, unwrapped, and wrapped again.
    "wrapped late, in eager mode": program(STEP, WRAP, STEP, STEP),
    "wrapped late, in a function": program(F0, F0, WRAP, F0, LOOK, F0),
    "an older graph that is kept": program(F0, Wrap("o", retrace=False), F0, STEP),
    "wrapped again, in eager mode": program(WRAP, STEP, UNWRAP, STEP, STEP, LOOK, WRAP, STEP, STEP),
    "wrapped again, in a function": program(
        *(WRAP, F0, F0, UNWRAP, F0, F1, LOOK, WRAP, F0, F0, LOOK, F1, F1),
        functions=[[STEP], [STEP]],
    ),
    # Apply methods that are called directly, variables that are passed twice or are not passed on.
    "an update outside of steps": program(WRAP, STEP, APPLY, F0, F0, functions=[[APPLY]]),
    "a variable that is passed twice": program(
        *(WRAP, double := Step("o", (("a", "dense"), ("b", "dense"), ("a", "dense"))), F0, F0),
        functions=[[double]],
    ),
    "an override that passes on a part": program(
        WRAP, STEP, F0, F0, override=(Part("super", "first"),)
    ),
    # Graphs that run in other steps than they were traced in.
    "a function traced inside a step and run alone": program(WRAP, STEP, F0, F0, **INNER),
    "a function traced alone and run inside steps": program(WRAP, F0, STEP, STEP, STEP, **INNER),
    "both in a loop of another function": program(
        *(WRAP, F0, F1, F0),
        **INNER | {"functions": [*INNER["functions"], [Loop(3, 5, (STEP, F0))]]},
    ),
    "an apply method in a function inside and outside of steps": program(
        WRAP, F0, STEP, STEP, F0, override=CALLING, functions=[[APPLY]]
    ),
    # The gradients go past the apply methods of a graph that is not traced again.
    "an older graph that never moves iterations": program(
        F0, Wrap("o", retrace=False), F0, kind="keras3", override=(Part("own"),)
    ),
}
