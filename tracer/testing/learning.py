"""Derive expectations for `tracer check` from a healthy run.

Each expectation is checked against the run before it is written, so the run passes its own gate. No
TensorFlow.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from glob import escape
from itertools import takewhile

from tracer.errors import Mistake
from tracer.findings.run_rules import to_report
from tracer.model.trace import Trace
from tracer.testing import expressions
from tracer.testing.expected import claim_of


def learned(trace: Trace, *, steps: bool = False) -> dict[str, str | int]:
    """The counts of a run, as `[tool.tracer.expect]` has them; `steps` adds the number of steps.

    These are dense and sparse updates in each step, as an upper limit if steps differ; the updates
    of each part of the model in which they are not one for each variable; at least one update if no
    number is exact; and, with effects, that weights changed and stayed finite.

    Raises `Mistake` if the run is incomplete or unfinished, made no step, ended with an error, or
    has a finding that is an error.
    """
    reasons = [each.reason for each in expressions.check(trace, [], "error") if each.reason]
    reasons += [] if trace.steps else ["it made no step"]
    if reasons:
        raise Mistake(f"nothing can be learned from this run: {reasons[0].splitlines()[0]}")
    counts = {kind: _per_step(trace, kind)[0] for kind in ("dense", "sparse")}
    exact = not any(str(value).startswith("<") for value in counts.values())
    for part in _parts([each.name for each in trace.variables]):
        value, usual = _per_step(trace, f"updates[{part}]")
        if not str(value).startswith("<") and not (exact and value == usual):
            counts[f"updates[{part}]"] = value
    counts |= {"unchanged": 0, "not_finite": 0} if trace.has_effects else {}
    counts |= {"steps": trace.steps} if steps else {}
    known = {key: value for key, value in counts.items() if _holds(trace, key, value)}
    # With upper limits alone, a run without any update would pass.
    is_exact = any(re.match(r"\d+/step", str(value)) for value in known.values())
    return known if is_exact or not trace.updates() else known | {"updates": ">= 1"}


def as_toml(trace: Trace, counts: dict[str, str | int]) -> str:
    """The tables of `pyproject.toml`; they ignore the codes of the run's warnings."""
    found = json.dumps(list(dict.fromkeys(each.code for each in to_report(trace))))
    ignored = f"[tool.tracer]\nignore = {found}  # warnings of this run\n\n"
    entries = ["[tool.tracer.expect]\n"]
    for key, value in counts.items():
        written, number = (json.dumps(each, ensure_ascii=False) for each in (key, value))
        entries.append(f"{key if key.isidentifier() else written} = {number}\n")
    return ignored * (found != "[]") + "".join(entries)


def _per_step(trace: Trace, key: str) -> tuple[str | int, str]:
    """The count in each step, and the usual one, which is 1 for each variable.

    The count is `4/step`, 0, or `<= 4/step` if steps differ.
    """
    claim = claim_of(trace, expressions.read(f"{key}=0/step"))
    measure = replace(claim.selection, kinds=claim.expected.wanted[0].kinds)
    replicas = ((each, on) for each in claim.summaries for on in each.replicas)
    counts = {n for each, on in replicas for (n,) in each.spread(measure, replica=on)}
    most = max(counts, default=0)
    bound = "<= " * (len(counts) > 1)
    return f"{bound}{most}/step" if most else 0, f"{len(measure.variables or ())}/step"


def _holds(trace: Trace, key: str, value: str | int) -> bool:
    """True if `tracer check` passes the run with this expectation alone."""
    verdicts = expressions.check(trace, [expressions.read(expressions.joined(key, value))])
    return not any(verdict.reason for verdict in verdicts)


def _parts(names: Iterable[str]) -> list[str]:
    """A glob for each part of a model: the first parts of its variables' names that differ.

    >>> _parts(["net/encoder/kernel", "net/encoder/bias", "net/scale"])
    ['net/encoder/*', 'net/scale']
    """
    paths = [re.split("(?<=[/.])", name) for name in names if name.isprintable()]
    levels = zip(*(path[:-1] for path in paths), strict=False)
    shared = sum(1 for _ in takewhile(lambda each: len(set(each)) == 1, levels))
    heads = dict.fromkeys("".join(path[: shared + 1]) for path in paths)
    return [f"{escape(head)}{'*' * head.endswith(('/', '.'))}" for head in heads]
