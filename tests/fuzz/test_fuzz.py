"""Examples, and random programs with a fixed seed; `nox -s fuzz -- --seconds 1800` runs others.

What the tracer says of each is what the odometers show, and training is as without it.
"""

import pytest
from fuzz.batch import run_batch
from fuzz.corpus import CORPUS
from fuzz.tensorflow import check, programs
from support.libraries import keras3
from support.odometers import KINDS

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.wide(rest="sweep")
@pytest.mark.parametrize("kind", KINDS if keras3 else [each for each in KINDS if each != "keras3"])
@pytest.mark.parametrize("name", CORPUS)
def test_examples(name: str, kind: str) -> None:
    program = CORPUS[name]
    seen = check(program._replace(optimizer=program.optimizer._replace(kind=kind)))
    if not program.optimizer.fails:
        assert ("complete: False" in seen) == ("older graph" in name)


@pytest.mark.long
def test_random_programs() -> None:
    assert run_batch(programs(), check, 1, examples=8)["programs"] > 3
