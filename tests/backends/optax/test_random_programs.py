"""Random programs of optax; `nox -s optax_fuzz -- --seconds 900` runs others, for longer."""

from fuzz.batch import Node, run_batch
from fuzz.optax import Function, Program, check, programs, step


def test_random_programs() -> None:
    """What the tracer says of each is what ran, and the arrays are as without it."""
    assert run_batch(programs(), check, 1, examples=3)["complete, with steps"]


def test_wrapped_after_a_program_that_was_compiled_ahead_ran() -> None:
    """What JAX calls such a program by has no `__wrapped__`; found by a random program."""
    functions = Function("aot", step(1)), Function("jit", Node("jit", (), (step(),)))
    actions = ("0", "1", "wrap", "1", "0")
    program = Program(Node("odometer", (2, False)), functions, (False,), actions)
    assert check(program)["complete, with steps"] == 1


def test_what_xla_makes_of_0_times_nan() -> None:
    """It is 0 for a scalar and NaN for a vector: the oracle has the weights of the program."""
    halves = (
        Node("odometer", (2, True)),
        Node("accumulate", (2, True), (Node("momentum", (2, False)),)),
    )
    for model in (0, 2):
        functions = (Function("jit", step(model)),)
        program = Program(
            Node("partition", (2, False), halves), functions, (True,), ("wrap", "0", "0")
        )
        assert check(program)["complete, with steps"] == 2


def test_last_bits_in_a_loop_are_those_with_any_callback() -> None:
    """XLA compiles a loop that calls Python otherwise; found by a random program."""
    averaged = Node("accumulate", (1, False), (Node("adam", (2, False)),))
    tx = Node("chain", (2, False), (Node("sgd", (2, False)), averaged))
    functions = (Function("jit", Node("loop", ("scan", 2), (step(),))),)
    assert check(Program(tx, functions, (False,), ("wrap", "0", "0")))
