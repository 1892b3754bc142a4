"""Random programs of optax; `nox -s optax_fuzz -- --seconds 900` runs others, for longer."""

import time

from fuzz.optax import Around, Batch, Function, Program, Step, Tx, check


def test_random_programs() -> None:
    """What the tracer says of each is what ran, and the arrays are as without it."""
    batch = Batch(1, time.monotonic() + 40, examples=12)
    assert batch.last is None, f"{batch.failed[batch.last]}\n{batch.last}"
    assert batch.seen["complete, with steps"]


def test_wrapped_after_a_program_that_was_compiled_ahead_ran() -> None:
    """What JAX calls such a program by has no `__wrapped__`; found by a random program."""
    functions = Function("aot", Step(model=1)), Function("jit", Around("jit", Step()))
    actions = (("call", 0), ("call", 1), ("wrap", 0), ("call", 1), ("call", 0))
    program = Program((Tx("odometer"),), functions, (False,), actions)
    assert check(program)["complete, with steps"] == 1
