"""The `tracer` command as people and pipelines run it: output, exit status, errors and speed."""

import io
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple, get_args

import pytest
from msgspec.structs import replace
from support import traces
from support.cost import at_most
from support.golden import assert_golden
from support.traces import block, called, request, step, update

from tracer.cli.commands import PARSERS, main
from tracer.findings.rule import rule_of
from tracer.model import tracefile
from tracer.model.records import WhyNot
from tracer.model.timeline import Run
from tracer.model.trace import Trace
from tracer.reporters import formats


class Done(NamedTuple):
    """What a command wrote, and its exit status."""

    stdout: str
    stderr: str
    returncode: int


def tracer(*arguments: str, folder: Path | None = None, **environment: str) -> Done:
    """Run the command in this process, which takes a tenth of the time of one of its own."""
    out, error = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["tracer", *arguments])
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", error)
        for name, value in environment.items():
            patch.setenv(name, value)
        if folder is not None:
            patch.chdir(folder)
        with pytest.raises(SystemExit) as end:
            main()
    status = end.value.code
    assert isinstance(status, int)
    return Done(_written(out), _written(error), status)


def _written(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def tracer_process(
    *arguments: str, folder: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run the command as people do; whatever it does, it must not import TensorFlow."""
    code = (
        "import sys\nfrom tracer.cli.commands import main\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'tensorflow', 'keras', 'numpy'} & set(sys.modules)"
    )
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", **environment},
        capture_output=True,
        encoding="utf-8",
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file for each of the traces."""
    folder = tmp_path_factory.mktemp("traces")
    for name, make in traces.ALL.items():
        make().save(folder / f"{name}.json")
    trace = traces.embedding_on_two_replicas()
    names = {"embedding": "embedding_1", "dense": "dense_3", "dense_1": "dense_4"}
    renamed = tuple(
        replace(each, name=f"{names[layer]}/{leaf}")
        for each in trace.variables
        for layer, leaf in [each.name.split("/")]
    )
    traces.changed(trace, variables=renamed).save(folder / "renamed.json")
    fewer = tuple(
        each if each.step else replace(each, runs=(Run(1, 1, 40), Run(45, 1, 20)), total=60)
        for each in trace.data.blocks
    )
    older = {"tensorflow": "2.15.0"}
    traces.changed(trace, blocks=fewer, environment=older).save(folder / "changed.json")
    traces.changed(trace, finished=False).save(folder / "unfinished.json")
    return folder


OUTPUTS = {
    "report": "report embedding_on_two_replicas.json",
    "report_unfinished": "report unfinished.json --by replica",
    "report_part": (
        "report embedding_on_two_replicas.json --step 30-35 --replica 1 --variable dense*"
    ),
    "report_json": "report no_gradients.json --format json",
    "report_csv": "report hostile_names.json --format csv",
    "report_csv_steps": "report accumulation.json -f csv --by step",
    "report_markdown": "report hostile_names.json --format markdown",
    "report_layers_csv": "report several_callers.json -f csv --by layer",
    "report_callers": "report several_callers.json --by caller",
    "diff_none": "diff eager.json eager.json",
    "diff_renamed": "diff embedding_on_two_replicas.json renamed.json",
    "diff": "diff embedding_on_two_replicas.json changed.json",
    "diff_much": "diff accumulation.json eager.json",
    "check": (
        "check embedding_on_two_replicas.json -e dense=4/step -e steps=64 "
        "-e 'dense[dense/*] <= 2/step' -e _resource_apply_sparse==126 -e calls>1000"
    ),
    "check_incomplete": "check incomplete.json --expect updates=2/step",
    "check_junit": (
        "check hostile_names.json --format junit -e updates[:warning:]=4 -e dense[[[]bold*]=1/step"
    ),
    "check_github": (
        "check uneven_replicas.json -f github --findings error -e steps=10 -e dense[dense/*]=1/step"
    ),
    "check_findings": "check uneven_replicas.json -e steps=10 --findings warning",
    "check_ignored": "check no_gradients.json --findings warning --ignore no-gradient",
    "explain": "explain",
    "explain_one": "explain densified",
    "explain_frozen": "explain frozen",
    "explain_not_passed": "explain not-passed",
}
HOLD = {"check_ignored", "diff_none", "diff_renamed"}
"""The checks and comparisons that exit with 0."""


def status_of(name: str) -> int:
    return int(name.startswith(("check", "diff")) and name not in HOLD)


@pytest.mark.parametrize("name", OUTPUTS)
def test_output(files: Path, name: str) -> None:
    done = tracer(*shlex.split(OUTPUTS[name]), folder=files)
    assert (done.returncode, done.stderr) == (status_of(name), "")
    assert_golden(f"cli/{name}.txt", done.stdout)
    assert all(char.isprintable() or char == "\n" for char in done.stdout)


@pytest.mark.parametrize("word", get_args(WhyNot))
def test_a_reason_in_the_table_of_variables_is_explained_as_a_finding_is(word: str) -> None:
    done = tracer("explain", word.replace(" ", "-"))
    named = re.search(r"finding\s+((?:\w+-)+\w+)", done.stdout)
    assert named and rule_of(named[1]), "a finding that there is says when it is wrong"


@pytest.mark.parametrize("name", ["report", "check"])
def test_a_process_of_its_own_prints_the_same_without_tensorflow(files: Path, name: str) -> None:
    done = tracer_process(*shlex.split(OUTPUTS[name]), folder=files)
    assert (done.returncode, done.stderr) == (status_of(name), "")
    assert_golden(f"cli/{name}.txt", done.stdout)


def test_what_programs_read_can_be_read(files: Path) -> None:
    report = json.loads(tracer("report", "hostile_names.json", "-f", "json", folder=files).stdout)
    names = [row["variable"] for row in report["optimizers"][0]["tables"]["variable"]]
    assert names == [each.name for each in traces.hostile_names().variables]


@pytest.mark.parametrize(
    ("name", "start"),
    [
        ("r.json", '{\n "format": "optimizer-tracer-report"'),
        ("r.csv", "optimizer,variable,"),
        ("r.txt", "How often did"),
        ("r.html", "<!doctype html>"),
        ("r", "How often did"),
    ],
)
def test_the_format_follows_the_ending(files: Path, tmp_path: Path, name: str, start: str) -> None:
    done = tracer("report", "eager.json", "-o", str(tmp_path / name), folder=files)
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"tracer: wrote {tmp_path / name}\n"
    assert (tmp_path / name).read_text(encoding="utf-8").startswith(start)


def test_a_page_needs_jinja2(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    monkeypatch.delitem(sys.modules, "tracer.reporters.html", raising=False)
    done = tracer("report", "eager.json", "-o", "x.html", folder=files)
    said = "tracer: the html report needs jinja2: pip install jinja2\n"
    assert (done.returncode, done.stderr) == (2, said)


def test_one_of_many_optimizers(tmp_path: Path) -> None:
    """A line for each, and all of one; what another optimizer did is not in it."""
    traces.many_optimizers().save(tmp_path / "t.json")
    whole = tracer("report", "t.json", folder=tmp_path).stdout
    assert len(whole.splitlines()) < 15
    assert '  Adam "adam_3" (Keras 3): 40 steps, 2 variables, 80 updates\n' in whole
    one = tracer("report", "t.json", "--optimizer", "adam_3", folder=tmp_path).stdout
    assert "update_step ran twice a step: 80 executions in 40 steps." in one
    assert "part_3/bias" in one and "part_2" not in one
    data = json.loads(
        tracer("report", "t.json", "--optimizer", "adam_3", "-f", "json", folder=tmp_path).stdout
    )
    assert [each["name"] for each in data["optimizers"]] == ["adam_3"]


def test_steps_as_the_reports_write_them(files: Path) -> None:
    """`3-5` has step 5, as the tables have it."""
    texts = [
        tracer("report", "eager.json", "--step", each, folder=files).stdout
        for each in ("3-5", "3-", "3-10", "3-1,000", "3-3", "3")
    ]
    assert texts[1] == texts[2] == texts[3] != texts[0] != texts[4] == texts[5]
    assert "Only the rows of steps 3 to 5;" in texts[0]


def test_a_folder_of_separate_runs(tmp_path: Path) -> None:
    for name in ("a", "b"):
        traces.eager().save(tmp_path / f"{name}.json")
    done = tracer("report", str(tmp_path))
    assert done.returncode == 2
    assert "(a.json and b.json): two of the traces are of replica 0: give one " in done.stderr


MISTAKES = {
    "report train.py": (
        "train.py: is a program, not a trace file: did you mean tracer run train.py?"
    ),
    "report eager.json -o x.pdf": "no report has the ending .pdf",
    "report eager.json -o eager.json": (
        "argument -o/--output: eager.json is a trace, and would be overwritten"
    ),
    "run": "the following arguments are required: PROGRAM (see tracer run --h",
    "run -m no_such_module.train": "no module named no_such_module.train",
    "run mpirun python": "cannot open mpirun: No such file",
    "run --every often train.py": "argument --every: invalid float value:",
    "run eager.json": (
        "eager.json is a trace, not a program: did you mean tracer report eager.json?"
    ),
    "run -o train.py train.py": "train.py: is a file that tracer run does not overwrite",
    "run --children -o eager.json train.py": (
        "eager.json: is a file that tracer run does not overwrite"
    ),
    "report eager.json --by var": "argument --by: invalid choice: 'var' (",
    "report eager.json --optimizer sgd_1": "no optimizer 'sgd_1'",
    "train.py -v": "did you mean tracer run train.py?",
    "eager.json": "did you mean tracer report eager.json?",
    "repot eager.json": "argument COMMAND: invalid choice: 'repot' (choose from",
    "report eager.json --outputs": "unrecognized arguments: --outputs: did you mean --output?",
    "run --quite train.py": "--quite: did you mean --quiet?",
    "report eager.json --xyz": "--xyz (see tracer report --help)",
    "report 'no\n.json'": "cannot be read: No such file",
    "report eagre.json": "or directory: did you mean eager.json?",
    "run trian.py": "or directory: did you mean train.py?",
    "report text.json": "text.json: is not a trace file",
    "report empty": "empty: cannot be read: there is no trace file (*.json) in the folder",
    "report eager.json --variable dence/kernel": "holds dense/kernel",
    "report eager.json --step 11-": "the trace holds 10 steps",
    "report eager.json --step 6-3": "'6-3' is no range of steps: write 3-6",
    "report eager.json --variable * --by step": (
        "no table 'step' with these rows: by is one of variable"
    ),
    "report eager.json -o x.html --step 3": (
        "the html report has all tables and rows: pick some with text, csv or json"
    ),
    "report eager.json -o no/such/file": "cannot write no/such/file",
    "diff eager.json": "the following arguments are required: AFTER (see tracer diff",
    "check eager.json -e 'dense 4'": "'dense 4' is no expectation",
    "check eager.json -e dence=4": "no count 'dence'",
    "check eager.json": "nothing to check",
    "check eager.json -e steps=10 --ignore no-gradients": (
        "no finding 'no-gradients': there are no-gradient"
    ),
}


@pytest.mark.parametrize("command", MISTAKES)
def test_a_mistake_is_one_line_and_status_2(files: Path, command: str) -> None:
    (files / "text.json").write_text("no JSON")
    (files / "train.py").write_text("import keras\n")
    (files / "empty").mkdir(exist_ok=True)
    before = {path: path.read_bytes() for path in files.glob("*.*")}
    done = tracer(*shlex.split(command), folder=files)
    assert {path: path.read_bytes() for path in files.glob("*.*")} == before
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("tracer: ") and done.stderr.count("\n") == 1
    assert MISTAKES[command] in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="a file has no limit there")
@pytest.mark.parametrize("before", [True, False])
def test_what_does_not_fit_on_the_disk_leaves_what_stood_there(
    files: Path, tmp_path: Path, before: bool
) -> None:
    output = tmp_path / "report.out"
    if before:
        output.write_text("as it was")
    code = (
        "import resource; from tracer.cli.commands import main\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100)); main()"
    )
    report = ["report", "accumulation.json", "--format", "json", "-o", str(output)]
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *report],  # -B: nor a cache
        cwd=files,
        capture_output=True,
        text=True,
    )
    said = f"tracer: cannot write {output}: File too large\n"
    assert (done.returncode, done.stderr) == (2, said)
    assert [each.name for each in tmp_path.iterdir()] == ["report.out"] * before
    assert not before or output.read_text() == "as it was"


def test_a_report_goes_through_a_link_and_into_a_pipe(files: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.txt"
    link.symlink_to(tmp_path / "report.txt")
    plain = tracer_process("report", "eager.json", folder=files).stdout
    tracer("report", "eager.json", "-o", str(link), folder=files)
    assert link.is_symlink() and (tmp_path / "report.txt").read_text(encoding="utf-8") == plain
    for device in ("/dev/stdout", "/dev/null"):
        done = tracer_process("report", "eager.json", "-f", "text", "-o", device, folder=files)
        assert done.stdout == plain * (device == "/dev/stdout")
        assert done.stderr == f"tracer: wrote {device}\n"


def test_pyproject_has_expectations_and_findings_to_ignore(files: Path, tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    for text, status, said in (
        ("[tool.tracer.expect]\nsteps = 20\n'updates[shared/*]' = '>= 20'", 0, "holds  steps=20"),
        ("[tool.tracer.expect]\nsparse = 1", 1, "FAILS  sparse=1: sparse updates: expected 1"),
        ("[tool.tracer]\nignore = ['no-gradient']", 2, "nothing to check"),
        ("[tool.tracer.expect]\ndense = [4]", 2, "got `array`"),
        ("[tool.tracer.expects]\nsteps = 1", 2, "unknown field `expects`"),
        ("tool = 5", 2, "pyproject.toml: [tool.tracer]: "),
        ("", 2, "nothing to check"),
    ):
        (tmp_path / "pyproject.toml").write_text(text)
        done = tracer("check", str(files / "no_gradients.json"), folder=tmp_path / "below")
        assert (done.returncode, said in done.stdout + done.stderr) == (status, True), done
    (tmp_path / "pyproject.toml").write_text("[tool.tracer]\nignore = ['no-gradient']")
    path = str(files / "no_gradients.json")
    assert tracer("check", path, "--findings", "warning", folder=tmp_path).returncode == 0


def test_annotations_cannot_be_ended_by_a_name(tmp_path: Path) -> None:
    name = "100%, net:a%0A::error::b"
    traces.trained([name], Run(1, 1, 5)).save(tmp_path / "t.json")
    done = tracer("check", "t.json", "-f", "github", "-e", f"dense[{name}]=7", folder=tmp_path)
    (line,) = done.stdout.splitlines()
    coded = "100%25%2C net%3Aa%250A%3A%3Aerror%3A%3Ab"
    assert line.startswith(
        f"::error title=tracer check%3A dense[{coded}]=7::dense updates of 100%25"
    )


def test_help_fits_a_screen_and_has_examples() -> None:
    assert sorted(PARSERS) == ["", "check", "demo", "diff", "explain", "report", "run"]
    for command in PARSERS:
        done = tracer(*command.split(), "--help", COLUMNS="80")
        assert (done.returncode, done.stderr) == (0, "")
        assert f"examples:\n  tracer {command}" in done.stdout, done.stdout
        lines = done.stdout.splitlines()
        assert len(lines) <= 26 and max(map(len, lines)) <= 80
        assert not re.search(r"\x1b|[{}]", done.stdout)
    assert tracer().stdout == tracer("-h").stdout
    assert tracer("--version").stdout.startswith("tracer 0.")


def test_a_reader_who_has_seen_enough(files: Path) -> None:
    command = f"{sys.executable} -m tracer report {files}/many_variables.json --by variable"
    for redirect in ("| head -1", "| true", "> /dev/full"):
        done = subprocess.run(f"{command} {redirect}", shell=True, capture_output=True, text=True)
        full = redirect.startswith(">")
        assert done.stderr == (
            "tracer: cannot write the output: No space left on device\n" if full else ""
        )
        assert done.returncode == (2 if full else 0)


# Speed.


def _large() -> Trace:
    """1,000,000 steps in epochs, whose last batch is smaller, x 1,000 variables x 8 replicas."""
    ids = range(1000)
    work = [step(), request(*ids), update(*ids)]
    whole = [Run(1000 * epoch + 1, 1, 999) for epoch in range(1000)]
    blocks = []
    for replica in range(8):
        blocks.append(block(work, *whole, replica=replica, graph=True))
        blocks.append(block(work, Run(1000, 1000, 1000), replica=replica, graph=True))
    names = [f"encoder/layer_{number}/attention/kernel" for number in ids]
    return traces.keras3(names, tuple(blocks), (called(1, ids, tracing=2),))


def test_a_large_trace_is_reported(tmp_path: Path) -> None:
    large = _large()
    large.save(tmp_path / "large.json")
    for format in ("text", "json"):
        with at_most(1_000_000):
            formats.render(tracefile.load(tmp_path / "large.json"), format)
    words = tracer("report", "large.json", folder=tmp_path).stdout.split()
    assert words[words.index("executions") - 1] == "8,000,000,000"
