"""Lists what the tracer replaces in the process: what, why, and for how long.

Each replacement is put in and taken out by its `Patch`; nothing else assigns to an attribute of the
program or of a framework.
"""

from collections.abc import Callable
from typing import Any, Literal
from weakref import ref

Until = Literal["recorded", "traced", "gone", "exit"]
"""Until nothing is recorded, or no optimizer of the framework is traced; until its object is gone,
or the process ends.
"""

patches: "dict[Patch, None]" = {}
"""The patches in place, oldest first."""


class Patch:
    """One attribute of a module, a class or an object, which is replaced while needed."""

    def __init__(self, home: Any, name: str, ours: Any, why: str, until: Until) -> None:
        gone = self._forget if until == "gone" else None
        self.home: Callable[[], Any] = ref(home, gone) if gone is not None else lambda: home
        self.name, self.ours, self.why, self.until = name, ours, why, until
        self.original: Any = self._now()

    def put_in(self) -> None:
        """Replace the attribute; what stands there now is the original."""
        if self not in patches:
            self.original = self._now()
            patches[self] = None
            self._assign(self.ours)
            if self.until == "gone":
                self.ours = self.original = None  # they may keep their object alive

    def take_out(self) -> None:
        """Restore the original; what the program has put there since stays, and may call ours."""
        if self in patches and self._now() is self.ours:
            self._assign(self.original)
            del patches[self]

    def put(self, wanted: bool) -> None:
        """Put in or take out."""
        (self.put_in if wanted else self.take_out)()

    def _now(self) -> Any:
        return getattr(self.home(), self.name, None)

    def _assign(self, value: object) -> None:
        setattr(self.home(), self.name, value)

    def _forget(self, _: object) -> None:
        patches.pop(self, None)
