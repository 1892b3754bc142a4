"""Trace files: what is saved is loaded again, and what is damaged is refused in one line."""

import errno
import json
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support import traces
from support.cost import at_most

import tracer
from tracer.check import as_github, as_text, read, verdicts
from tracer.cli.process import Autosave
from tracer.errors import MergeError, TraceFileError, UnknownName
from tracer.model import tracefile
from tracer.model.records import Note, Replica, TraceData
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.reporters import comparison, formats, html


def example(notes: tuple[str, ...] = ("a größer note",)) -> TraceData:
    """Two variables, two replicas, a hole in the steps."""
    names, runs = ("dense/kernel", "dense/bias"), (Run(1, 1, 10), Run(12, 2, 3))
    trace = traces.trained(names, *runs, replicas=2, graph=True)
    return replace(trace.data, notes=tuple(map(Note, notes)))


def large(steps: int) -> TraceData:
    """A transformer of 1,000 variables on 8 replicas."""
    layer = "bert_model/encoder/layer_{}/attention/self_{}/query/kernel"
    names = [layer.format(number // 10, number % 10) for number in range(1000)]
    return traces.trained(names, Run(1, 1, steps), replicas=8, graph=True).data


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def refusal(path: Path | str) -> str:
    """The reason why `path` is not loaded; checks that it is one line that names the file."""
    with pytest.raises(TraceFileError) as caught:
        tracefile.load(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


def document() -> Any:
    """The example as JSON, for tests that damage it."""
    return json.loads(tracefile.encode(example()))


# Round trips.


@pytest.mark.parametrize("name", traces.ALL)
def test_what_is_saved_is_loaded_again(path: Path, name: str) -> None:
    data = traces.ALL[name]().data
    tracefile.save(data, path)
    assert tracefile.load(path).data == data
    assert os.listdir(path.parent) == ["run.json"]


def test_what_a_file_looks_like(path: Path) -> None:
    Trace(example()).save(str(path))
    assert path.read_bytes().startswith(b'{"format":"optimizer-tracer","version":5,')
    assert path.read_bytes().endswith(b"}\n")
    content = document()
    block = content["blocks"][1]
    assert [entry["variables"] for entry in block["entries"]] == [[], [0, 1], [0, 1]]
    assert block["runs"] == [[1, 1, 10, 1], [12, 2, 3, 1]]
    content["later"] = {"a": [1, None, {}]}  # a reader skips what it does not know
    path.write_text(json.dumps(content, indent=2))
    assert tracefile.load(path).data == example()


# Files that are no trace.


NESTED = [f'{{"format":{opening * 100_000}1}}' for opening in ("[", '{"a":')]
DAMAGED = "is not a trace file, or damaged: "
NO_TRACES: dict[str, Sequence[str | bytes]] = {
    f"{DAMAGED}JSON is malformed: ": [b"hello", b"\x80\x04K\x01.", b"\xef\xbb\xbf{a", b"{} {}"],
    f"{DAMAGED}Expected `object`, got `": ["[]", "3", "null"],
    "is JSON of another program, not a trace file": ['{"version": "1.0"}', '{"format": []}'],
    DAMAGED: [b'{"format": "\xff"}', b"note"],  # the rest depends on msgspec
    f"{DAMAGED}maximum recursion depth exceeded": NESTED,
    **{
        f"has version {version!r} of the format, and this tracer reads 5: run the program again, "
        "or update tracer": [json.dumps({"format": "optimizer-tracer", "version": version})]
        for version in (4, 6, -1, True, "1", None)
    },
    f"{DAMAGED}Object missing required field `variables`": [
        '{"format": "optimizer-tracer", "version": 5, "optimizers": []}'
    ],
}


@pytest.mark.parametrize(
    ("reason", "content"), [(reason, each) for reason, of in NO_TRACES.items() for each in of]
)
def test_what_is_no_trace_file(path: Path, reason: str, content: str | bytes) -> None:
    if content == b"note":
        content = tracefile.encode(example()).decode().encode("latin-1")
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    assert refusal(path).startswith(reason)


def test_what_is_no_file(tmp_path: Path, path: Path) -> None:
    assert refusal(path) == "cannot be read: No such file or directory"
    assert refusal(tmp_path) == "cannot be read: there is no trace file (*.json) in the folder"
    path.write_text("{}")
    assert refusal(path / "run.json") == "cannot be read: Not a directory"
    with pytest.raises(TraceFileError, match=r"cannot be read: .*embedded null"):
        tracefile.load("a\0b")
    with pytest.raises(TraceFileError, match=r"^no\\nsuch/file\.json: cannot be read"):
        tracefile.load("no\nsuch/file.json")


def test_what_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traces.eager().save(path)
    monkeypatch.setattr(Path, "read_bytes", fail_with(errno.EACCES))
    assert refusal(path) == "cannot be read: Permission denied"
    monkeypatch.setattr(os, "listdir", fail_with(errno.EACCES))
    monkeypatch.setattr(os, "scandir", fail_with(errno.EACCES))
    assert refusal(path.parent) == "cannot be read: Permission denied"


# Trace files that are damaged.


def damaged(path: Path, place: str, value: object) -> str:
    """The reason for refusing the example with `value` at `place`, such as `blocks.0.total`."""
    content = document()
    *parents, last = (int(key) if key.isdigit() else key for key in place.split("."))
    target = content
    for key in parents:
        target = target[key]
    target[last] = value
    path.write_text(json.dumps(content))
    return refusal(path)


@pytest.mark.parametrize(
    ("place", "value", "reason"),
    [
        ("notes", "a", "Expected `array`, got `str` - at `$.notes`"),
        ("blocks.0.total", 1.5, "Expected `int`, got `float` - at `$.blocks[0].total`"),
        ("blocks.0.context", "v\n1", "Invalid enum value 'v\\n1' - at `$.blocks[0].context`"),
        ("blocks.0.runs.0", [1, 1], "Expected `array` of at least length 3, got 2"),
        ("calls.0", {}, "Object missing required field `root` - at `$.calls[0]`"),
        ("blocks.0.total", -1, "Expected `int` >= 0 - at `$.blocks[0].total`"),
        *((f"blocks.0.runs.0.{at}", 0, "Expected `int` >= 1") for at in range(4)),
        *(
            (f"blocks.0.{field}", index, reason)
            for field, size in (("root", 1), ("replica", 2), ("path", 0), ("entries.1.method", 2))
            for index, reason in ((-1, "Expected `int"), (size, "tuple index out of range"))
        ),
        ("calls.0.entries.0.variables", [0, 2], "tuple index out of range"),
        ("paths", [[0]], "tuple index out of range"),
    ],
)
def test_a_value_that_cannot_be(path: Path, place: str, value: object, reason: str) -> None:
    assert damaged(path, place, value).startswith(f"{DAMAGED}{reason}")


def test_a_file_that_ends_at_any_byte_is_truncated(path: Path) -> None:
    content = tracefile.encode(example())
    for length in range(0, len(content) - 2, 7):  # the line feed at the end is not needed
        path.write_bytes(content[:length])
        assert refusal(path).endswith("truncated"), length


def test_a_checkpoint_is_not_read_to_see_that_it_is_no_trace(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert not tracefile.is_trace(path) and tracefile.is_other(path)


# What a file from a stranger can do: nothing but be read.


@pytest.mark.parametrize(
    "worker", ["../../victim", "/etc/victim", r"..\victim", "\x1b[2J", ".", "x/" * 500, "\0"]
)
def test_a_worker_is_no_path(tmp_path: Path, worker: str) -> None:
    data = example()
    replicas = tuple(Replica(worker, each.id, each.device) for each in data.replicas)
    folder = tmp_path / "deep" / "er"
    folder.mkdir(parents=True)
    tracefile.save(replace(data, replicas=replicas), tmp_path / "sent.json")
    trace = tracer.load(tmp_path / "sent.json")
    trace.save(folder)
    (written,) = folder.iterdir()
    assert re.fullmatch(r"[A-Za-z0-9_+-]+\.json", written.name)
    assert sorted(each.name for each in tmp_path.rglob("*")) == sorted(
        ["deep", "er", "sent.json", written.name]
    )
    assert tracer.load(written).data == trace.data
    Autosave(lambda: trace, lambda trace: folder / tracefile.file_name(trace), seconds=1).finish()
    assert list(folder.iterdir()) == [written]


@pytest.mark.parametrize("name", traces.ALL)
def test_no_text_of_a_stranger_acts_on_who_reads_it(path: Path, name: str) -> None:
    """Nothing that is shown has a character that a terminal, or a page, would act on."""
    healthy = traces.ALL[name]()
    traces.by_a_stranger(healthy).save(path)
    trace = tracer.load(path)
    texts = [repr(trace), trace.answer(), *(f"{e.text}{e.advice}" for e in trace.findings())]
    texts += [formats.render(trace, each) for each in ("text", "json", "csv")]
    texts.append(formats.render(trace, "text", "caller"))
    texts += [comparison.render(trace, healthy, comparison.differences(trace, healthy))]
    wanted = [read(each) for each in ("updates=99999", "updates=99999/step")]
    found = verdicts(trace, wanted, "info")
    texts += [as_text(found), as_github(found)]
    asked: list[Callable[[], object]] = [
        lambda: trace.updates(variable="nothing"),
        lambda: trace.updates(worker="nothing"),
        lambda: trace.updates(optimizer="nothing"),
        lambda: tracer.merge([trace, healthy]),
    ]
    for ask in asked:
        try:
            texts.append(str(ask()))
        except (UnknownName, MergeError) as error:
            texts.append(str(error))
    page = html.render(trace)
    assert "</script>../../" not in page
    for text in [*texts, page.replace("\t", " ")]:
        assert [char for char in text if char != "\n" and not char.isprintable()] == []
        assert not [line for line in text.split("\n") if line.lstrip().startswith("holds  all")]


# Written whole or not at all.


def fail_with(number: int) -> Any:
    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(number, os.strerror(number))

    return fail


@pytest.mark.parametrize("function", ["os.fsync", "os.replace", "builtins.open"])
@pytest.mark.parametrize("before", [True, False])
def test_a_failure_in_the_middle_keeps_what_stood_there(
    path: Path, monkeypatch: pytest.MonkeyPatch, function: str, before: bool
) -> None:
    if before:
        tracefile.save(example(), path)
    with monkeypatch.context() as patch:
        patch.setattr(function, fail_with(errno.ENOSPC))
        with pytest.raises(TraceFileError) as caught:
            tracefile.save(large(10), path)
    assert str(caught.value) == f"{path}: cannot be written: No space left on device"
    assert os.listdir(path.parent) == (["run.json"] if before else [])
    if before:
        assert tracefile.load(path).data == example()


def test_a_path_that_ends_in_a_slash_is_a_folder(tmp_path: Path) -> None:
    """Without it, ranks would write to one file in turn."""
    Trace(example()).save(f"{tmp_path}/of/run/")
    (path,) = (tmp_path / "of" / "run").iterdir()
    assert tracefile.load(path).data == example()


def test_where_no_file_can_be(tmp_path: Path) -> None:
    for place, reason in (
        (tmp_path, "Is a directory"),
        (tmp_path / "a\0b", "embedded null"),
        (tmp_path / "no" / "run.json", "No such file or directory"),
    ):
        with pytest.raises(TraceFileError, match=f"cannot be written: .*{reason}"):
            tracefile.save(example(), place)


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "real" / "run.json")
    tracefile.save(example(), link)
    assert link.is_symlink()
    assert os.listdir(tmp_path / "real") == ["run.json"]
    assert tracefile.load(link).data == example()


def test_permissions_are_those_of_the_file_before_or_of_any_new_file(path: Path) -> None:
    path.parent.joinpath("any").touch()
    tracefile.save(example(), path)
    assert path.stat().st_mode == path.parent.joinpath("any").stat().st_mode
    path.chmod(0o600)
    tracefile.save(example(), path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_is_no_unicode_is_not_saved(path: Path) -> None:
    tracefile.save(example(), path)
    with pytest.raises(TraceFileError, match=f"{path}: cannot be written: .*surrogates"):
        tracefile.save(example(("\ud800",)), path)
    assert tracefile.load(path).data == example()


# Size and speed.


def test_a_large_trace_is_small_and_quick(path: Path) -> None:
    data = large(1_000_000)
    with at_most(150_000):
        tracefile.save(data, path)
        trace = tracefile.load(path)
    assert path.stat().st_size < 320_000
    assert trace.data == data
