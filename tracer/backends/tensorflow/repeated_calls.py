"""Calls of a function by the same lines as the last time: the answer is known, and found fast.

Each call of a function with a counter asks who calls it (`Blocks._company`), where the caches of
the processor are cold. Nearly always that is the call of the training loop once more. What would be
found for an equal stack of the same thread is equal, if no step is under way and no other caller
came in between. So only the frames of the program are compared, and nothing else is looked at.
"""

import sys
from types import FrameType
from typing import Any

from tracer.backends.tensorflow.callers import Callers
from tracer.backends.tensorflow.compat import in_eager, replica_run
from tracer.backends.tensorflow.functions import CALL, depth_of_call
from tracer.core.backend import Root
from tracer.core.calls import CallsUnderWay, Frame
from tracer.core.paths import frames_above


class RepeatedCall:
    """How a function was called last, by the program in eager mode, and in no step."""

    def __init__(self, under_way: CallsUnderWay, callers: Callers, root: Root) -> None:
        self._under_way = under_way
        self._of_thread = under_way.of_thread
        self._callers = callers
        self._root = root
        self._called = root.called
        self._depth = 0
        """How many frames there are from `is_again` to the call: see `depth_of_call`."""
        self._calls: list[tuple[Any, int]] = []
        self._stack: list[Frame] | None = None
        """That of the thread, of which each has one; None if nothing is kept."""
        self._callers_known = 0

    def keep(self, python: FrameType, stack: list[Frame], callers_known: int) -> None:
        """The function is called by this thread; `python` is the frame that asks for the answer.

        `callers_known` is what `Callers.called` gave.
        """
        depth = depth_of_call(python)
        if depth is not None and replica_run() is None:
            self._stack = None  # another thread may be here, too
            self._depth = depth + 1
            frames = frames_above(python)[depth + 4 :]
            self._calls = [(frame.f_code, frame.f_lasti) for frame in frames]
            self._callers_known = callers_known
            self._stack = stack

    def is_again(self) -> bool:
        """Whether it is called so again, in no step."""
        try:
            stack = self._of_thread.stack
            if (
                stack is not self._stack
                or stack
                or self._under_way.steps
                or self._callers.known != self._callers_known
                or not in_eager()
            ):
                return False
            python: Any = sys._getframe(self._depth)
            if python.f_code is not CALL:
                return False
            python = python.f_back.f_back.f_back.f_back
            for code, place in self._calls:
                if python.f_code is not code or python.f_lasti != place:
                    return False
                python = python.f_back
            if python is None:
                self._called()
                return True
        except AttributeError:
            pass  # no stack of calls yet, or a stack of frames that ends before
        except BaseException as error:
            self._root.fault(error)
        return False
