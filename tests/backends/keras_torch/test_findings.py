"""What is found of Keras on PyTorch: a program for each rule that can find anything there."""

import keras
import numpy as np
import pytest
from backends.keras_findings import (
    PROGRAMS,
    check_built_and_never_used,
    check_workers_that_differ,
    fit,
    model,
)
from support.findings_of import check, traced
from support.rules_by_backend import rules_of

import tracer

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # Keras says some of it, too

BY_PROGRAM = sorted(PROGRAMS.keys() & rules_of("torch"))


def test_each_rule_of_the_table_has_a_program() -> None:
    assert rules_of("torch") - PROGRAMS.keys() == {"never-used", "replicas-disagree"}


@pytest.mark.parametrize("code", BY_PROGRAM)
def test_it_is_said_and_nothing_of_its_twin(code: str) -> None:
    finding = check(code, PROGRAMS[code])
    said = finding.text + finding.advice
    assert not any(word in said for word in ("tf.", "GradientTape", "TensorFlow", "graph")), said


@pytest.mark.parametrize("code", sorted(PROGRAMS.keys() - rules_of("torch")))
def test_what_is_no_trouble_here_is_not_said(code: str) -> None:
    assert code not in {each.code for each in traced(PROGRAMS[code], False).findings()}


def test_an_optimizer_that_was_built_and_never_used() -> None:
    check_built_and_never_used()


def test_ranks_that_did_not_do_the_same() -> None:
    assert "rank 1 ran 2 steps, rank 0 ran 3" in check_workers_that_differ().text


def test_a_layer_that_is_frozen_is_not_trained_and_no_rule_is_needed() -> None:
    trained = model(tracer.wrap(keras.optimizers.SGD(0.1)))
    fit(trained)
    base = trained.get_layer("base")
    base.trainable = False
    before = np.array(base.get_weights()[0])
    fit(trained, 8, 2)
    assert np.array_equal(base.get_weights()[0], before)
    (finding,) = tracer.trace_of(trained.optimizer).findings()
    assert (finding.code, finding.severity) == ("updates-stopped", "info")
