"""What newcomers run first: the demo, and the scripts in `reports/`, each with the page it made."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80", "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=150,
        check=True,
    )


def test_the_demo_measures_what_a_mock_misses() -> None:
    done = run("-m", "tracer", "demo")
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout
    # 256 samples in batches of 32 for 2 epochs are 16 steps; the model has 4 dense variables and an
    # embedding; model.fit builds two graphs in Keras, one for the first batch that never runs.
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["_resource_apply_dense", str(16 * 4), str(2 * 4)] in rows
    assert ["_resource_apply_sparse", str(16), "2"] in rows
    assert ["_resource_apply_dense", str(16 * 4 * 2), str(2 * 4 * 2)] in rows
    assert ["update_step", str(16 * 5), str(2 * 5)] in rows
    assert ["update_step", str(16 * 5 * 2), "10"] in rows


def test_the_digits_report_is_the_one_that_the_script_makes() -> None:
    page = ROOT / "reports" / "digits.md"
    before = page.read_text()
    try:
        done = run("reports/digits.py")
        assert page.read_text() == before
    finally:
        page.write_text(before)
    # 1,797 images in batches of 32 for 3 epochs, six variables
    assert -(-1797 // 32) * 3 == 171
    assert f"{171 * 6:,} executions in 171 steps" in done.stdout
    assert done.stdout.count("How often did") == 2
    report = before.split("```text\n")[1].split("```")[0]
    assert report in (ROOT / "README.md").read_text()
