"""Why steps update nothing: what the report says of them follows from these."""

import pytest
from msgspec import structs
from support import traces
from support.traces import block, request, step, update

from tracer.model.measures import updates
from tracer.model.phrases import Skipped, every, reason, skipped
from tracer.model.records import Setting
from tracer.model.runs import Run
from tracer.model.summary import Summary


def _summary(steps: int, *updated: Run, **settings: Setting) -> Summary:
    """So many steps with a gradient each, of which some updated the variable."""
    blocks = (
        block([step(), request(0)], Run(1, 1, steps)),
        block([update(0)], *updated, is_step=False),
    )
    trace = traces.keras3(("kernel",), blocks, ())
    optimizer = structs.replace(trace.optimizers[0], settings=settings)
    return Summary(traces.changed(trace, optimizers=(optimizer,)), 0)


@pytest.mark.parametrize(
    ("steps", "updated", "nth"),
    [
        (64, [Run(4, 4, 16)], 4),
        (67, [Run(4, 4, 16)], 4),  # the last group is not complete
        (68, [Run(4, 4, 16)], 0),  # step 68 should have updated
        (66, [Run(4, 4, 16), Run(66, 1, 1)], 0),  # a noisy end
        (67, [Run(4, 4, 16), Run(65, 1, 1)], 0),
        (67, [Run(4, 4, 16), Run(65, 2, 2)], 0),
        (64, [Run(3, 4, 16)], 0),  # not from the fourth on
        (64, [Run(4, 4, 8), Run(40, 8, 4)], 0),
        (64, [Run(4, 4, 15), Run(64, 1, 1, 2)], 0),
        (64, [Run(1, 1, 64)], 0),
        (64, [Run(64, 1, 1)], 0),
    ],
)
def test_every_nth_step_up_to_the_end(steps: int, updated: list[Run], nth: int) -> None:
    assert every(_summary(steps, *updated), updates, 0) == nth


@pytest.mark.parametrize(
    ("updated", "settings", "expected"),
    [
        ([Run(1, 1, 40)], {}, None),
        ([Run(3, 1, 30), Run(36, 1, 5)], {}, (5, 1, (33, 35), False)),
        ([Run(16, 1, 25)], {}, (15, 1, (1, 15), False)),  # as often a scale of 2**15 halves
        ([Run(17, 1, 24)], {}, (16, 1, (1, 16), True)),
        ([Run(4, 1, 37)], {"initial_scale": 8.0}, (3, 1, (1, 3), False)),
        ([Run(4, 1, 37)], {"initial_scale": 4.0}, (3, 1, (1, 3), True)),
        ([Run(1, 1, 39)], {"dynamic_scale": 0}, (1, 40, (40, 40), True)),
        ([], {"initial_scale": 2.0**60}, (40, 1, (1, 40), True)),
    ],
)
def test_what_a_loss_scale_skipped(
    updated: list[Run],
    settings: dict[str, Setting],
    expected: tuple[int, int, tuple[int, int], bool] | None,
) -> None:
    summary = _summary(40, *updated, grad_scaler=True, **settings)
    scale = summary.optimizers[0]
    found = None
    if expected is not None:
        number, first, longest, hopeless = expected
        found = Skipped(number, first, longest, scale, hopeless)
    assert skipped(summary) == found
    assert reason(summary).usual is not (found is not None and found.hopeless)


def test_nothing_is_skipped_without_a_loss_scale_or_steps() -> None:
    assert skipped(_summary(40, Run(9, 1, 4))) is None
    assert skipped(Summary(traces.no_steps(), 0)) is None


@pytest.mark.parametrize(
    ("updated", "settings", "text", "clause"),
    [
        (
            [Run(4, 4, 16)],
            {},
            "accumulating, it seems",
            "gradients are being accumulated, it seems",
        ),
        (
            [Run(5, 1, 9)],
            {},
            "",
            "gradients are being accumulated, or a condition skipped them",
        ),
        (
            [Run(4, 4, 16)],
            {"gradient_accumulation_steps": 4},
            "accumulated (4 steps)",
            "gradients are being accumulated",
        ),
        (
            [Run(5, 1, 9)],
            {"grad_scaler": True},
            "skipped by GradScaler",
            "skipped by GradScaler: a gradient was inf or NaN",
        ),
        (
            [Run(5, 1, 9)],
            {"skipped_by": "MultiSteps"},
            "skipped by MultiSteps",
            "skipped by MultiSteps: its should_skip_update_fn said so",
        ),
    ],
)
def test_why_steps_updated_nothing(
    updated: list[Run], settings: dict[str, Setting], text: str, clause: str
) -> None:
    found = reason(_summary(64, *updated, **settings))
    assert (found.text, found.clause, found.everywhere) == (text, clause, True)
