"""Healthy training programs in many styles: no rule calls one of them an error or a warning.

`support/healthy_loops.py` has the programs.
"""

from collections.abc import Callable
from typing import Any

import pytest
from support import healthy_loops
from support.findings_of import bad, traced
from support.healthy_loops import Kit

KINDS_OF: dict[Callable[[Any], None], list[str]] = {}
for each_program, each_kind in healthy_loops.ALL:
    KINDS_OF.setdefault(each_program, []).append(each_kind)

CASES = [
    pytest.param(
        program,
        kind,
        id=f"{program.__name__}-{kind}",
        marks=[]
        if program.__name__ in healthy_loops.QUICK and kind == kinds[0]
        else [pytest.mark.sweep],
    )
    for program, kinds in KINDS_OF.items()
    for kind in kinds
]
"""Each program with each kind of optimizer that it is for; few are quick, the others are for
`nox -s sweep`."""

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of Keras: gradients are missing


@pytest.mark.parametrize("effects", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize(("program", "kind"), CASES)
def test_nothing_is_said(program: Callable[[Any], None], kind: str, effects: bool) -> None:
    """With effects, too: healthy programs change their weights, and these stay finite."""
    trace = traced(lambda: program(Kit(kind)), effects=effects)
    in_session = effects and any("Session" in note for note in trace.notes)
    assert trace.complete or in_session, trace.notes
    assert trace.steps and trace.updates()
    assert bool(trace.data.effects) == (effects and not in_session)
    assert not bad(trace)
