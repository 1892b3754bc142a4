"""What `tracer learn` writes: the run passes it, and a run that does something else does not."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from support import traces

from tracer.errors import Mistake
from tracer.model.runs import Run
from tracer.testing import expressions, learning

NO_EXAMPLE = {
    "incomplete": "adam: 32 calls of 'train' are not counted",
    "never_ran": "it made no step",
    "no_steps": "it made no step",
    "nothing": "it made no step",
    "uneven_replicas": "were updated twice on",
    "with_effects": "held NaN or infinity after step 8",
}


@pytest.mark.parametrize("name", traces.ALL)
def test_the_run_passes_its_own_gate(name: str, tmp_path: Path) -> None:
    trace = traces.ALL[name]()
    if name in NO_EXAMPLE:
        with pytest.raises(Mistake, match=NO_EXAMPLE[name]):
            learning.learned(trace)
        return
    text = learning.as_toml(trace, learning.learned(trace, steps=True))
    (tmp_path / "pyproject.toml").write_text(text, encoding="utf-8")
    project = expressions.from_project(tmp_path)
    assert f"steps={trace.steps}" in [each.text for each in project.expect]
    verdicts = expressions.check(trace, project.expect, "warning", ignore=project.ignore)
    assert not [each for each in verdicts if each.reason]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("eager", {"dense": "2/step", "sparse": 0}),
        # Three of four steps only accumulate; loss scaling skips some: no step makes more.
        ("accumulation", {"dense": "<= 4/step", "sparse": 0, "updates": ">= 1"}),
        (
            "embedding_on_two_replicas",
            {"dense": "<= 4/step", "sparse": "<= 1/step", "updates": ">= 1"},
        ),
        (
            "two_optimizers",
            {
                "dense": "<= 2/step",
                "sparse": 0,
                "updates[generator/*]": "2/step",
                "updates[discriminator/*]": "1/step",
            },
        ),
        ("several_callers", {"dense": "11/step", "sparse": 0, "updates[embedding/*]": 0}),
        ("direct_calls", {"sparse": 0, "updates": ">= 1"}),  # outside any step
    ],
)
def test_what_is_learned(name: str, counts: dict[str, str | int]) -> None:
    assert learning.learned(traces.ALL[name]()) == counts


def test_a_run_that_updates_nothing_does_not_pass_a_gate_of_limits() -> None:
    accumulates = traces.accumulation()
    expected = [
        expressions.read(expressions.joined(key, value))
        for key, value in learning.learned(accumulates).items()
    ]
    blocks = (each for each in accumulates.blocks if each.step)
    idle = traces.changed(accumulates, blocks=tuple(replace(each, entries=()) for each in blocks))
    assert (idle.steps, idle.updates()) == (accumulates.steps, 0)
    assert any(verdict.reason for verdict in expressions.check(idle, expected))


def test_of_a_run_with_effects_also_what_became_of_the_weights() -> None:
    trace = traces.with_effects()
    effects = tuple(each for each in trace.data.effects if each.what == "compared")
    healthy = traces.changed(trace, effects=effects)
    counts = {"dense": "2/step", "sparse": 0, "unchanged": 0, "not_finite": 0}
    assert learning.learned(healthy) == counts


def test_names_that_look_like_patterns() -> None:
    """Of layers in a list one is frozen: the brackets of its name mean themselves."""
    trace = traces.trained(["hidden[0].weight", "hidden[1].weight", "out.weight"], Run(1, 1, 5))
    (work,) = trace.blocks
    frozen = (work.entries[0], *(replace(each, variables=(1, 2)) for each in work.entries[1:]))
    asked = replace(work.entries[1], kind="none", variables=(0,))
    learned = learning.learned(
        traces.changed(trace, blocks=(replace(work, entries=(*frozen, asked)),))
    )
    assert learned == {"dense": "2/step", "sparse": 0, "updates[hidden[[]0].*]": 0}


def test_another_run_does_not_pass() -> None:
    learned = learning.learned(traces.trained(["a", "b"], Run(1, 1, 10)), steps=True)
    wanted = [expressions.read(expressions.joined(*each)) for each in learned.items()]

    def failed(*names: str, steps: int) -> list[str]:
        verdicts = expressions.check(traces.trained(names, Run(1, 1, steps)), wanted)
        return [each.text for each in verdicts if each.reason]

    assert failed("a", "b", steps=10) == []
    assert failed("a", "b", "c", steps=10) == ["dense=2/step"]
    assert failed("a", "b", steps=9) == ["steps=10"]
