"""What newcomers run first: the demo, and the scripts in `reports/`, each with the page it made."""

import pytest
from scripts import ROOT, output_of

pytestmark = pytest.mark.long


def test_the_demo_measures_what_a_mock_misses() -> None:
    printed = output_of("-m", "tracer", "demo", seconds=150)
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    # 256 samples in batches of 32 for 2 epochs are 16 steps; the model has 4 dense variables and an
    # embedding; model.fit builds two graphs in Keras, one for the first batch that never runs.
    rows = [line.split() for line in printed.splitlines()]
    assert ["_resource_apply_dense", str(16 * 4), str(2 * 4)] in rows
    assert ["_resource_apply_sparse", str(16), "2"] in rows
    assert ["_resource_apply_dense", str(16 * 4 * 2), str(2 * 4 * 2)] in rows
    assert ["update_step", str(16 * 5), str(2 * 5)] in rows
    assert ["update_step", str(16 * 5 * 2), "10"] in rows


def test_the_digits_report_is_the_one_that_the_script_makes() -> None:
    page = ROOT / "reports" / "digits.md"
    before = page.read_text()
    try:
        printed = output_of("reports/digits.py", seconds=150)
        assert page.read_text() == before
    finally:
        page.write_text(before)
    # 1,797 images in batches of 32 for 3 epochs, six variables
    assert -(-1797 // 32) * 3 == 171
    assert f"{171 * 6:,} executions in 171 steps" in printed
    assert printed.count("How often did") == 2
    report = before.split("```text\n")[1].split("```")[0]
    assert report in (ROOT / "README.md").read_text()
