"""What a trace does not keep, and what it loses to be shown to others."""

import shlex

import msgspec
import pytest
from msgspec.structs import replace
from support import traces

from tracer.model.records import Line, Program, Remark
from tracer.model.redaction import command_line, message


def test_no_folder_is_left() -> None:
    trace = traces.several_callers()
    (adam,) = trace.optimizers
    adam = replace(
        adam,
        made="secret/models/train.py:30",
        remarks=(Remark("densified", "update_step", "x", "/secret/optimizers.py:7"),),
    )
    lines = (
        Line("<module>", "/home/secret/train.py", 50),
        Line("main", r"C:\secret\train.py", 41),
        Line("<module>", "<stdin>", 1),
        *trace.data.lines[3:],
    )
    program = Program(
        "secret/train.py --data=/secret/x.csv s3://secret:pw@bucket/x --rate 0.5",
        1.0,
        2.0,
        error="OSError: no '/secret/x.csv', file:///secret/y, 3/4 of s3://secret:pw@bucket/a/b.csv",
    )
    shared = traces.changed(
        trace,
        optimizers=(adam,),
        lines=lines,
        programs=(program,),
        notes=("adam, made in secret/models/train.py:30, was wrapped late",),
    ).without_paths()
    assert b"secret" not in msgspec.json.encode(shared.data)
    assert [each.file for each in shared.data.lines[:3]] == ["train.py", "train.py", "<stdin>"]
    assert shared.optimizers[0].made == "train.py:30"
    assert shared.programs[0].command == "train.py"
    assert (
        shared.programs[0].error
        == "OSError: no 'x.csv', file:y, 3/4 of s3://REDACTED@bucket/a/b.csv"
    )
    assert shared.notes == ("adam, made in train.py:30, was wrapped late",)
    assert [each.name for each in shared.variables] == [each.name for each in trace.variables]
    assert shared.count("updates", by="variable") == trace.count("updates", by="variable")


@pytest.mark.parametrize(
    ("command", "program"),
    [
        ("'my models/train.py' --epochs 3", "train.py"),
        ("-X dev -u -m pkg.train s3://a/b", "-m pkg.train"),
        ("-c 'print(1)' x", "-c"),
        ("train.py --rate 0.1 (a fork)", "train.py"),
        ("not 'closed", ""),
    ],
)
def test_a_program_without_its_arguments(command: str, program: str) -> None:
    trace = traces.changed(traces.eager(), programs=(Program(command, 1.0, 2.0),))
    assert trace.without_paths().programs[0].command == program


@pytest.mark.parametrize(
    "arguments",
    [
        ["--api-key", "hidden"],
        ["--api_key=hidden"],
        ["-wandb-key", "hidden", "--epochs", "3"],
        ["--hf-token", "hidden"],
        ["--password", "-hidden"],
        ["--db.password=hidden with spaces"],
        ["HF_TOKEN=hidden"],
        ["OPENAI_API_KEY=hidden=="],
        ["+logger.apiKey=hidden"],
        ["--client-secret", "hidden"],
        ["--auth", "me:hidden"],
        ["-H", "Authorization: Bearer hidden"],
        ["--header=Cookie: token=hidden"],
        ["s3://user:hidden@bucket/x"],
        ["--db=postgres://hidden:hidden@host:5432/db?sslmode=require"],
        ["https://hidden@sentry.io/1"],
        ["redis://:hi?#dden:hidden@host"],
        ["--proxy", "me:hidden@proxy:3128"],
        ["--slack-webhook", "https://hooks.slack.com/services/hidden"],
        ["-eAPI_TOKEN=hidden"],
        ["--api-key=", "hidden"],
        ["Endpoint=https://a;AccountName=b;AccountKey=hidden==;x=1"],
        ["--config={'user': 'me', 'password': 'hidden'}"],
        ["https://a.blob.core.windows.net/c?sv=2022&sig=hidden&se=1"],
        ['{"lr": 0.1, "api_key": "hidden", "x": 1}'],
        ["-c", "login(token='hidden')"],
        ["sk-proj-hidden0123456789abc"],
        ["--to", "ghp_hidden0123456789abcdef"],
    ],
)
def test_a_secret_is_not_kept(arguments: list[str]) -> None:
    command = command_line(["train.py", *arguments])
    assert "hidden" not in command
    assert "REDACTED" in command
    assert shlex.split(command)[0] == "train.py"


@pytest.mark.parametrize(
    "begin",
    ["sk-", "hf_", "ghp_", "github_pat_", "glpat-", "xoxb-", "AKIA", "AIza", "eyJ"],
)
def test_a_key_of_a_well_known_service_is_known_by_how_it_begins(begin: str) -> None:
    key = f"{begin}hidden0123456789abcdef"
    assert command_line(["train.py", "--to", key]) == "train.py --to REDACTED"
    assert message(f"no such user: {key}") == "no such user: REDACTED"


@pytest.mark.parametrize(
    "command",
    [
        "train.py --epochs 3 --lr=0.1 --data=/home/me/x.csv",
        "train.py --tokenizer bert-base --max-tokens 512 --author me --keyboard",
        "train.py s3://bucket/me@home/x https://example.org/page=3 mail@example.org",
        "train.py --secret",
        "-m pkg.keys.train --monitor val_loss C:/data",
        "train.py --api-key --epochs 3",
        "train.py git@github.com:me/repo.git --at 12:30 --lr 1e-3 --name=a:b",
    ],
)
def test_what_is_no_secret_is_kept_as_it_was_typed(command: str) -> None:
    assert command_line(shlex.split(command)) == command


@pytest.mark.parametrize(
    "said",
    [
        "login failed: password=hidden",
        "401: {'Authorization': 'Bearer hidden0123'}",
        "bad api key: hidden",
        'wandb: {"access_token": "hidden"}',
        "could not connect to postgres://me:hidden@host/db",
        "https://account.blob.core.windows.net/runs/1.json?sv=1&sig=hidden: cannot be read",
        "https://host/1.json?X-Amz-Signature=hidden&x=1: cannot be read",
    ],
)
def test_an_error_does_not_tell_a_secret(said: str) -> None:
    assert "hidden" not in message(said) and "REDACTED" in message(said)


@pytest.mark.parametrize(
    "said",
    [
        "Unexpected token: ')'",
        "missing key: encoder.weight",
        "KeyError: 'key'",
        "the bearer of bad news",
        "Basic usage: tracer run",
        "num_tokens: 512, tokenizer=bert",
    ],
)
def test_an_error_without_a_secret_stays(said: str) -> None:
    assert message(said) == said


def test_a_colon_behind_a_secret_stays() -> None:
    assert message("x.json?token=ab:c: is lost") == "x.json?token=REDACTED: is lost"
