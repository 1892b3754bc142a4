"""What a trace does not keep of the texts of errors."""

import pytest

from tracer.errors import without_credentials


@pytest.mark.parametrize(
    "begin",
    ["sk-", "hf_", "ghp_", "github_pat_", "glpat-", "xoxb-", "AKIA", "AIza", "eyJ"],
)
def test_a_key_of_a_well_known_service_is_known_by_how_it_begins(begin: str) -> None:
    said = f"no such user: {begin}hidden0123456789abcdef"
    assert without_credentials(said) == "no such user: REDACTED"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgres://me:hidden@host:5432/db?x=1", "postgres://REDACTED@host:5432/db?x=1"),
        ("https://hidden@sentry.io/1", "https://REDACTED@sentry.io/1"),
        ("redis://:hi?#dden:hidden@host", "redis://REDACTED@host"),
        ("s3://bucket/me@home/x, mail@example.org", "s3://bucket/me@home/x, mail@example.org"),
        ("git@github.com:me/repo.git at 12:30", "git@github.com:me/repo.git at 12:30"),
        ("Unexpected token: ')', missing key: x", "Unexpected token: ')', missing key: x"),
    ],
)
def test_credentials_in_a_url_are_hidden(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
