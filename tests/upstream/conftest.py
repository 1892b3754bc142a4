"""Traces every optimizer of tests that are not ours, one recording a test.

Load it with `-p upstream.conftest`: the tests it is for are in the packages that are installed.
What each test did and what was counted of it is written to the file that `--outcomes` names;
without `--traced` nothing is traced and only the outcomes are written.
"""

import json
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import tracer


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--traced", action="store_true", help="trace every optimizer")
    parser.addoption("--outcomes", type=Path, help="the JSON file for what each test did")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--outcomes")
    if path is not None:
        config.pluginmanager.register(Outcomes(path, config.getoption("--traced")))


class Outcomes:
    """What became of each test, and what its trace says."""

    def __init__(self, path: Path, traced: bool) -> None:
        self._path = path
        self._traced = traced
        self._found: dict[str, dict[str, Any]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Around set-up and tear-down too: some tests make their optimizers in `setUp`."""
        found = self._found[item.nodeid] = {"outcome": "passed"}
        with warnings.catch_warnings(record=True) as caught:
            with tracer.record() if self._traced else nullcontext() as recording:
                result = yield
            if recording is not None:
                trace = recording.trace()
                counts = {"steps": trace.steps, "updates": trace.updates()}
                notes = list(trace.notes)
                found["trace"] = {"optimizers": len(trace.optimizers), **counts, "notes": notes}
        if faults := [str(each.message) for each in caught if "bug in tracer" in str(each.message)]:
            found["outcome"] = f"fault: {faults}"
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.passed:
            said = getattr(report.longrepr, "reprcrash", None) if report.failed else None
            reason = "" if said is None else f": {said.message.splitlines()[0]}"
            self._found[report.nodeid]["outcome"] = f"{report.outcome}{reason}"

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._found[report.nodeid] = {"outcome": f"not collected: {report.outcome}"}

    def pytest_sessionfinish(self) -> None:
        self._path.write_text(json.dumps(self._found, indent=1))
