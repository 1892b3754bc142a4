"""The formats that viewers of stacks read: speedscope's JSON, and collapsed stacks."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from msgspec.structs import replace
from support import traces

from tracer.errors import Mistake
from tracer.model import callers
from tracer.model.records import Line
from tracer.reporters import formats, stacks

SCHEMA = {
    "type": "object",
    "required": ["$schema", "profiles", "shared"],
    "properties": {
        "$schema": {"const": "https://www.speedscope.app/file-format-schema.json"},
        "shared": {
            "type": "object",
            "required": ["frames"],
            "properties": {
                "frames": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "file": {"type": "string"},
                            "line": {"type": "number"},
                        },
                        "additionalProperties": False,
                    },
                }
            },
        },
        "profiles": {
            "type": "array",
            "minItems": 1,  # without a name, `importSpeedscopeProfiles` takes that of the first
            "items": {
                "type": "object",
                "required": [
                    *("type", "name", "unit", "startValue", "endValue"),
                    *("samples", "weights"),
                ],
                "properties": {
                    "type": {"const": "sampled"},
                    "name": {"type": "string"},
                    "unit": {
                        "enum": [
                            *("none", "nanoseconds", "microseconds", "milliseconds"),
                            *("seconds", "bytes"),
                        ]
                    },
                    "startValue": {"type": "number"},
                    "endValue": {"type": "number"},
                    "samples": {
                        "type": "array",
                        "items": {"type": "array", "items": {"type": "number"}},
                    },
                    "weights": {"type": "array", "items": {"type": "number"}},
                },
                "additionalProperties": False,
            },
        },
        "name": {"type": "string"},
        "activeProfileIndex": {"type": "number"},
        "exporter": {"type": "string"},
    },
    "additionalProperties": False,
}
"""What speedscope 1.25 says of its format in `src/lib/file-format-spec.ts`, for sampled profiles.

A file of this reporter was also valid by the `file-format-schema.json` of that version, and shown.
"""

WITH_CALLERS = sorted(
    name for name, make in traces.ALL.items() if callers.known(make().data) and make().blocks
)


def loaded(name: str) -> Any:
    return json.loads(stacks.speedscope(traces.ALL[name]()))


def weights(file: Any, profile: int) -> dict[str, int]:
    """The weight of each stack."""
    names = [frame["name"] for frame in file["shared"]["frames"]]
    sampled = file["profiles"][profile]
    counts: Counter[str] = Counter()
    for stack, weight in zip(sampled["samples"], sampled["weights"], strict=True):
        counts[" > ".join(names[index] for index in stack)] += weight
    return dict(counts)


@pytest.mark.parametrize("name", WITH_CALLERS)
def test_a_file_is_what_speedscope_reads(name: str) -> None:
    file = loaded(name)
    jsonschema.validate(file, SCHEMA)
    for profile in file["profiles"]:
        # `importSampledProfile` raises if they are not as many, and sums up to the end.
        assert len(profile["samples"]) == len(profile["weights"])
        assert profile["endValue"] - profile["startValue"] == sum(profile["weights"])
        for stack in profile["samples"]:
            assert all(0 <= index < len(file["shared"]["frames"]) for index in stack)


def test_stacks_have_executions_and_calls_apart() -> None:
    file = loaded("several_callers")
    names = [profile["name"] for profile in file["profiles"]]
    assert names == ["Adam: executions", "Adam: Python calls"]
    below = "Model.fit > train_function > model.py:88 MyModel.train_step > Adam.minimize"
    end = "Adam.apply_gradients > update_step"
    assert weights(file, 0) == {
        f"train.py:50 > train.py:41 main > {below} > {end}": 880,
        f"train.py:50 > train.py:44 main > {below} > {end}": 440,
        f"train.py:50 > steps/warm.py:12 warm_up > {end}": 66,
    }
    assert weights(file, 1) == {
        f"train.py:50 > train.py:41 main > {below} > {end}": 44,
        f"train.py:50 > steps/warm.py:12 warm_up > {end}": 66,
    }
    assert {"name": "train.py:41 main", "file": "train.py", "line": 41} in file["shared"]["frames"]


def test_collapsed_stacks_are_what_their_readers_split() -> None:
    """As speedscope's `parseBGFoldedStacks` does: what is before the last blank, split at `;`."""
    trace = traces.several_callers()
    hostile = traces.changed(
        trace,
        lines=tuple(
            each if each.file else Line("a;b\n c 12", graph=each.graph) for each in trace.data.lines
        ),
    )
    for made in (trace, hostile):
        lines = stacks.collapsed(made).splitlines()
        found = [re.fullmatch(r"(.*) (\d+)", line) for line in lines]
        assert [int(each[2]) for each in found if each] == [880, 440, 66]
        assert [len(each[1].split(";")) for each in found if each] == [8, 8, 4]


def test_several_optimizers_have_a_frame_each() -> None:
    two = traces.two_optimizers()
    path = traces.several_callers().data
    blocks = tuple(replace(each, path=2) for each in two.blocks)
    trace = traces.changed(two, lines=path.lines, paths=path.paths, blocks=blocks)
    assert stacks.collapsed(trace).splitlines() == [
        'Adam "adam";train.py:50;steps/warm.py:12 warm_up;Adam.apply_gradients;update_step 20',
        'Adam "adam#2";train.py:50;steps/warm.py:12 warm_up;Adam.apply_gradients;update_step 30',
    ]


@pytest.mark.parametrize("reporter", [stacks.speedscope, stacks.collapsed])
def test_a_trace_without_callers_is_refused(reporter: Any) -> None:
    with pytest.raises(Mistake, match="knows no callers"):
        reporter(traces.eager())


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("a.speedscope.json", "speedscope"),
        ("a.b.json", "json"),
        ("a.collapsed", "collapsed"),
        ("a.folded", "collapsed"),
    ],
)
def test_the_ending_of_a_file_says_its_format(name: str, format: str) -> None:
    assert formats.chosen(None, Path(name)) == format
