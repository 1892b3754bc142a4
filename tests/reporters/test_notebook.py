"""How a notebook shows a trace."""

import pytest
from support import traces

BAD = "<script>alert(1)</script>"


@pytest.mark.parametrize("name", traces.ALL)
def test_the_summary_is_the_report(name: str) -> None:
    trace = traces.ALL[name]()
    html = trace._repr_html_()
    assert html.startswith("<pre ")
    assert "\x1b" not in html


def test_names_are_escaped() -> None:
    trace = traces.keras3((BAD,), (traces.block([traces.step(), traces.update(0)]),), ())
    html = trace._repr_html_()
    assert BAD not in html
    assert "&lt;script&gt;" in html
