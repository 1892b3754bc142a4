"""What variables and optimizers are called, and which of them a name means. No TensorFlow."""

from collections.abc import Iterable


def distinct(names: Iterable[str]) -> list[str]:
    """The names, a repeated one with its number: `["a", "a#2"]`."""
    taken: set[str] = set()
    return [free_name(name, taken) for name in names]


def free_name(name: str, taken: set[str]) -> str:
    """`name`, or `name#2` and so on if it is among `taken`, to which what is found is added."""
    free, number = name, 1
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    taken.add(free)
    return free


def plain_name(variable: object) -> str:
    """The framework's name of `variable`: the path of Keras 3 or else TensorFlow's.

    A variable of TensorFlow that one of Keras 3 holds has the name of that one. Raises `TypeError`
    for an object that is no variable.
    """
    path = getattr(variable, "path", None)
    if type(variable).__module__.startswith("tensorflow."):
        from tracer.variables import keras_path  # TensorFlow is there, or there were no variable

        path = keras_path(variable)
    return path if isinstance(path, str) and path else tensorflow_name(variable)


def tensorflow_name(variable: object) -> str:
    """TensorFlow's name of `variable`, without `:0` and replica.

    Raises `TypeError` for an object that is no variable.
    """
    name = getattr(variable, "name", None)
    if not isinstance(name, str):
        raise TypeError(f"variable must be a name, a glob or a variable, not {variable!r}")
    name = name.removesuffix(":0")
    head, mark, number = name.rpartition("/replica_")
    return head if mark and number.isdigit() else name
