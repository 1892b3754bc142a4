"""Numbers the sites, which identify the effect of a method call. No framework.

A site is a method of an optimizer on a variable of a replica. A block lists the numbers of its
sites, so counting an execution does not examine them. Sites are never forgotten.
"""

from typing import Any, NamedTuple
from weakref import ref

from tracer.core import locks
from tracer.model.records import Kind, Role


class Site(NamedTuple):
    """The counted properties of a method call."""

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
        """For each site, how many of its calls [failed in eager mode, were traced]."""
        self.of_objects: dict[tuple[Any, ...], tuple[ref[Any], int]] = {}
        """Known variables in eager mode, for speed.

        The key is the variable's `id` and the fields of its site; compare the object as well.
        """
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._lock = locks.new_lock("rows")

    def number(
        self,
        optimizer: int,
        method: str,
        role: Role,
        kind: Kind | None = None,
        variable: int | None = None,
        replica: int = 0,
    ) -> int:
        """Return the number of a site; the first request assigns it."""
        fields = (optimizer, method, role, kind, variable, replica)
        number = self._numbers.get(fields)
        if number is None:
            with self._lock:
                number = self._numbers.get(fields)
                if number is None:  # a signal handler may raise between two lines
                    number = len(self.sites)
                    self.calls[number:] = [[0, 0]]
                    self.sites.append(Site(*fields))
                    self._numbers[fields] = number
        return number

    def traced(self, site: int) -> None:
        """Count a call while tracing. An eager call is counted by its block, or as failed."""
        with self._lock:
            self.calls[site][1] += 1

    def failed(self, site: int) -> None:
        """Count a call in eager mode that failed."""
        with self._lock:
            self.calls[site][0] += 1
