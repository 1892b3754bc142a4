"""The table of variables that backends share."""

import threading

from tracer.core.backend import Backend, Root, Variables


class Slow:
    """A variable that takes its time to say what it is like, for another thread to ask, too."""

    name, dtype = "slow", "float32"

    def __init__(self) -> None:
        self.is_asked = threading.Event()

    @property
    def shape(self) -> tuple[int, ...]:
        self.is_asked.set()
        threading.Event().wait(0.1)
        return (2,)


def test_a_variable_that_two_threads_meet_first_is_one() -> None:
    table, variable = Variables(Root(Backend())), Slow()
    found: list[int] = []

    def ask() -> None:
        found.append(table.index(variable, None))

    first = threading.Thread(target=ask)
    first.start()
    assert variable.is_asked.wait(10)
    ask()
    first.join()
    assert found == [0, 0]
    assert [row.name for row in table.rows] == ["slow"]
    assert len(table.objects) == 1
