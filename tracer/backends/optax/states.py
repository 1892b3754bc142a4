"""Finds out if each eager step got the same state again, for the finding optimizer-renewed.

A state that is passed again is the same object.
"""

from collections.abc import Iterator
from typing import Any
from weakref import ref

import jax

from tracer.backends.jax import arrays
from tracer.core.collectors import Collector
from tracer.model.evidence import Evidence, StateRenewed

_AGAIN = 5  # as in `tracer.backends.jax.blocks`


class States(Collector):
    """The states that the eager steps of a transformation got."""

    def __init__(self, root: Any) -> None:
        super().__init__(root)
        self._state: ref[Any] | None = None
        self._params: ref[Any] | None = None
        self._again: int | None = 0
        """How many steps got the same state for other parameters; None once a step got another
        state, or the same parameters again, as several candidates do.
        """

    def step_ends(self, call: Any) -> None:
        """Compare the state with that of the previous step."""
        if self._again is None or call.returned is None:
            return
        state = _first_array(call.given.get("state"))
        params = _first_array(call.given.get("params"))
        unchanged = state is None or _first_array(call.returned[1]) is state
        is_candidate = params is not None and self._params is not None and self._params() is params
        if unchanged or is_candidate or (self._state is not None and self._state() is not state):
            self._again = None
        else:
            self._state, self._again = ref(state), self._again + 1
            self._params = None if params is None else ref(params)

    def evidence(self) -> Iterator[Evidence]:
        """Evidence if all steps got the same state."""
        if self._again is not None and self._again >= _AGAIN:
            yield StateRenewed(self._again)


def _first_array(tree: Any) -> Any:
    leaves = (each for each in jax.tree.leaves(tree) if arrays.array_of(each) is not None)
    return next((each for each in leaves if isinstance(each, jax.Array)), None)
