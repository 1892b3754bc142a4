"""TensorFlow Model Optimization: layers that write weights beside the optimizer."""

import importlib.util
import json

import pytest
from support.scripts import output_of

EPOCHS, BATCHES = 3, 6


@pytest.mark.long
@pytest.mark.skipif(
    importlib.util.find_spec("tensorflow_model_optimization") is None,
    reason="the nox session third_party has it",
)
def test_wrapped_layers() -> None:
    """Pruning, quantization and clustering: the same weights, slots, configs and checkpoints."""
    results = json.loads(
        output_of("tests/programs/model_optimization.py", seconds=500).splitlines()[-1]
    )
    assert len(results) == 6
    for name, (plain, traced) in results.items():
        trace = traced.pop("trace")
        assert plain == traced, name
        assert trace["iterations"] == trace["steps"] == EPOCHS * BATCHES, name
        assert set(trace["updates"]) == {EPOCHS * BATCHES}, name
        assert trace["all updates"] == trace["compared"] == sum(trace["updates"]), name
        assert (trace["complete"], trace["notes"], trace["findings"]) == (True, [], []), name
