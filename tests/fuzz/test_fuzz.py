"""Examples, and random programs with a fixed seed; `nox -s fuzz -- --seconds 1800` runs others.

What the tracer says of each is what the odometers show, and training is as without it.
"""

import time
from dataclasses import replace

import pytest
from fuzz.batch import Batch
from fuzz.corpus import CORPUS
from fuzz.generator import KINDS, programs
from fuzz.run import check
from support.libraries import keras3

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.wide(rest="sweep")
@pytest.mark.parametrize("kind", KINDS if keras3 else [each for each in KINDS if each != "keras3"])
@pytest.mark.parametrize("name", CORPUS)
def test_examples(name: str, kind: str) -> None:
    program = CORPUS[name]
    seen = check(replace(program, optimizer=replace(program.optimizer, kind=kind)))
    assert any(each.startswith("incomplete") for each in seen) == ("older graph" in name)


@pytest.mark.long
def test_random_programs() -> None:
    batch = Batch(programs(), check, 1, time.monotonic() + 150, examples=12, shrink=5)
    assert batch.last is None, str(batch)
    assert batch.seen["programs"] > 5
