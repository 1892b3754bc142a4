"""Troubles that users of PyTorch asked about in public, each as a small program.

As `findings/test_pains.py`: `train(healthy)` in a file of `findings/pains/torch` says whether it
hurts, which the weights or gradients tell. The finding names it, and nothing is said of the twin.
"""

import os
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
import torch
from support.findings_of import bad

import tracer
from tracer.model.records import Program
from tracer.model.trace import Trace

torch.set_num_threads(1)
PAINS = Path(__file__).parents[2] / "findings" / "pains" / "torch"


class Pain(NamedTuple):
    """What is said of a program."""

    codes: tuple[str, ...]
    says: str
    fix: str
    variables: tuple[str, ...] = ()


SAID = {
    "last_group_lost": Pain(
        ("gradients-left",),
        "backward passes 13 and 26 of 26 (last_group_lost.py:21) were never applied",
        "Step once more after the last batch",
    ),
    "layers_in_a_list": Pain(
        ("never-passed",),
        "got gradients, but no optimizer has them",
        "Keep layers in torch.nn.ModuleList",
        tuple(f"hidden[{n}].{of}" for n in (0, 1) for of in ("weight", "bias")),
    ),
    "model_made_again": Pain(
        ("no-gradient", "never-passed"),
        "4 of 4 parameters of Adam are in no module",
        "Make the optimizer after the model",
        tuple(f"Net.{of}coder.{each}" for of in ("en", "de") for each in ("weight", "bias")),
    ),
    "new_head": Pain(
        ("no-gradient", "never-passed"),
        "2 of 4 parameters of Adam are in no module",
        "Make the optimizer after the model",
        ("head.weight", "head.bias"),
    ),
    "zero_grad_forgotten": Pain(
        ("gradients-added",),
        "In 29 of 29 steps backward added to gradients that the previous step had used: zero_grad "
        "did not clear them (stepped in zero_grad_forgotten.py:24).",
        "Call optimizer.zero_grad() once for each step",
    ),
    "zero_grad_in_each_micro_batch": Pain(
        ("gradients-left",),
        "3 of every 4 backward passes (zero_grad_in_each_micro_batch.py:22) were cleared",
        "call zero_grad once for each step",
    ),
}


def made_in(name: str) -> str:
    """What is said of the line of a program that makes its optimizer."""
    lines = (PAINS / f"{name}.py").read_text().split("\n")
    (number,) = (at for at, line in enumerate(lines, 1) if "torch.optim." in line)
    return f"was made in {name}.py:{number})"


def test_each_program_has_its_row() -> None:
    assert {each.stem for each in PAINS.glob("*.py")} == SAID.keys()


def trained(name: str, *, healthy: bool) -> tuple[Trace, bool]:
    """The trace as `tracer run` has it when the program has ended, and whether it hurts."""
    train: Any = runpy.run_path(str(PAINS / f"{name}.py"))["train"]
    with tracer.record() as recording:
        hurts = train(healthy)
    program = Program(f"{name}.py", 0.0, 1.0, status=0)
    return Trace(msgspec.structs.replace(recording.trace().data, programs=(program,))), hurts


@pytest.mark.parametrize("name", SAID)
def test_it_is_said_and_nothing_of_its_twin(name: str) -> None:
    pain = SAID[name]
    trace, hurts = trained(name, healthy=False)
    assert trace.complete, trace.notes
    assert hurts
    found = bad(trace)
    assert tuple(each.code for each in found) == pain.codes
    assert pain.says in re.sub(r"[^\s(]*/", "", found[-1].text)
    assert pain.fix in found[-1].advice
    if "never-passed" in pain.codes:
        for each in found:
            assert made_in(name) in re.sub(r"[^\s(]*/", "", each.text)
    assert found[-1].variables == pain.variables
    if len(found) > 1:
        assert "no module has them" in found[0].text
        assert "made again" in found[0].advice

    trace, hurts = trained(name, healthy=True)
    assert trace.complete, trace.notes
    assert not hurts
    assert trace.updates()
    assert not trace.findings()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=pytest.mark.long if n == "last_group_lost" else pytest.mark.sweep)
        for n in SAID
    ],
)
def test_the_first_screen_of_a_run(name: str, tmp_path: Path) -> None:
    """Which prints what the program prints without the tracer, so the bits are the same."""
    pain = SAID[name]
    for healthy in ((), ("healthy",)):
        program = [str(PAINS / f"{name}.py"), *healthy]
        plain, done = (
            subprocess.run(
                [sys.executable, *each, *program],
                cwd=tmp_path,
                env={**os.environ, "COLUMNS": "80"},
                capture_output=True,
                text=True,
            )
            for each in ((), ("-m", "tracer", "run"))
        )
        assert (done.returncode, done.stdout) == (0, plain.stdout)
        if healthy:
            assert "What looks wrong" not in done.stderr
            continue
        _, asked, rest = done.stderr.partition("How often did ")
        words = " ".join(" ".join(f"{asked}{rest}".split("\n")[:25]).split())
        assert pain.fix in words
        assert all(f"[{code}]: " in words for code in pain.codes)
        plain_words = re.sub(r"[^\s(]*/", "", words)
        assert pain.says in plain_words
        assert "never-passed" not in pain.codes or made_in(name) in plain_words
