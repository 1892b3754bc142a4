"""Hides secrets in the texts of errors that a trace records. No TensorFlow."""

import re

_CREDENTIALS = re.compile(
    r"(?<=://)[^\s/'\"]+(?=@)|"
    r"\b(?:sk-|hf_|gh[a-z]_|github_pat_|glpat-|xox[a-z]-|AKIA|AIza|eyJ)(?=[\w.-]{0,200}\d)[\w.-]{16,}"
)
"""Matches credentials in a URL, and keys of well-known services by their prefix."""


def without_credentials(text: str) -> str:
    """The text with `REDACTED` for credentials in URLs and keys of well-known services.

    >>> without_credentials("no login at https://me:pw@host with hf_abcdefghijklmnop1234")
    'no login at https://REDACTED@host with REDACTED'
    """
    return _CREDENTIALS.sub("REDACTED", text)
