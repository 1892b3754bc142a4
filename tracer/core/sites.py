"""Sites: what a call of a method does, as far as it is counted, each with a number. No framework.

A site is a method of an optimizer on a variable of a replica. A block is a list of the numbers of
sites, so that to count an execution takes no look at what was executed. Sites are never forgotten.
"""

import threading
from typing import Any, NamedTuple
from weakref import ref

from tracer.model.records import Kind, Role


class Site(NamedTuple):
    """What one call of a method does, as far as it is counted."""

    optimizer: int
    method: str
    role: Role
    kind: Kind | None
    variable: int | None
    replica: int


class SiteTable:
    """The sites of one root optimizer, and their Python calls that no block counts."""

    def __init__(self) -> None:
        self.sites: list[Site] = []
        self.calls: list[list[int]] = []
        """For each site how often it was called and [failed in eager mode, traced]."""
        self.of_objects: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}
        """What is known of a variable in eager mode, for speed.

        The key is its `id` and the fields of its site; the object must be asked for as well.
        """
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._lock = threading.Lock()

    def number(
        self,
        optimizer: int,
        method: str,
        role: Role,
        kind: Kind | None = None,
        variable: int | None = None,
        replica: int = 0,
    ) -> int:
        """The number of a site, which it gets when it is asked for first."""
        fields = (optimizer, method, role, kind, variable, replica)
        number = self._numbers.get(fields)
        if number is None:
            with self._lock:
                number = self._numbers.get(fields)
                if number is None:  # an exception of a signal handler may come between two lines
                    number = len(self.sites)
                    self.calls[number:] = [[0, 0]]
                    self.sites.append(Site(*fields))
                    self._numbers[fields] = number
        return number

    def forget_object(self, variable: Any, site: Site) -> None:
        """A variable is not known by its `id` for this site any more, so it is looked for again."""
        kind: Kind = site.kind or "none"
        key = id(variable), site.method, site.role, kind, site.replica, site.optimizer
        self.of_objects.pop(key, None)

    def traced(self, site: int) -> None:
        """Count a call while tracing; one in eager mode is counted by its block, or failed."""
        with self._lock:
            self.calls[site][1] += 1

    def failed(self, site: int) -> None:
        """Count a call in eager mode that was no execution."""
        with self._lock:
            self.calls[site][0] += 1
