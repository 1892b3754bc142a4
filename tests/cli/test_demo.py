"""`tracer demo`: its figures are those of the arithmetic."""

import importlib.util

import pytest
from support.scripts import output_of

from tracer.cli import commands


@pytest.mark.long
def test_the_demo_measures_what_a_mock_misses() -> None:
    printed = output_of("-m", "tracer", "demo", seconds=150)
    assert max(map(len, printed.splitlines())) <= 80
    assert "\x1b" not in printed
    # 256 samples in batches of 32 for 2 epochs are 16 steps; the model has 4 dense variables and an
    # embedding; model.fit builds two graphs in Keras, one for the first batch that never runs.
    rows = [line.split() for line in printed.splitlines()]
    assert ["tf_keras", "_resource_apply_dense", str(16 * 4), str(2 * 4)] in rows
    assert ["tf_keras", "_resource_apply_sparse", str(16), "2"] in rows
    assert ["Keras", "3", "update_step", str(16 * 5), str(2 * 5)] in rows


def test_without_tensorflow_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "tensorflow" else found(name)
    )
    monkeypatch.setattr("sys.argv", ["tracer", "demo"])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 2
    said = capsys.readouterr()
    assert not said.out
    assert said.err == (
        "tracer: the demo trains with TensorFlow: pip install tensorflow tf_keras\n"
    )
