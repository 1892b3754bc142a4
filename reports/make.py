"""Measure the reports again: `python reports/make.py`, or `python reports/make.py claims` for one.

A module here is a question: `measure()` returns its counts, and `page(counts)` explains them in
Markdown. The counts are the same each time. They are kept as JSON, a row on each line.
`KERAS_BACKEND=jax python reports/make.py without_tensorflow` measures JAX; the same with `torch`.
"""

import argparse
import os
import warnings
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import msgspec

QUESTIONS = ("how_often", "claims")
FOLDER = Path(__file__).parent


def main() -> None:
    """Measure, and write the counts and the page of each question."""
    parser = argparse.ArgumentParser(description="Measure, and write the reports.")
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help=", ".join(QUESTIONS))
    parser.add_argument("--folder", type=Path, default=FOLDER)
    arguments = parser.parse_args()
    if arguments.questions != ["without_tensorflow"]:
        os.environ["KERAS_BACKEND"] = "tensorflow"  # read once, at the import
    import tracer

    # Some of the measured optimizers are wrong on purpose.
    warnings.simplefilter("ignore", tracer.OptimizerWarning)
    for name in arguments.questions:
        question = import_module(name)
        getattr(question, "prepare", lambda: None)()
        rows = question.measure()
        lines = ",\n".join(msgspec.json.encode(row).decode() for row in rows)
        (arguments.folder / f"{name}.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")
        made_with = ", ".join(f"{package} {version(package)}" for package in question.PACKAGES)
        page = f"{question.page(rows)}\nMade by `python reports/make.py {name}` with {made_with}.\n"
        (arguments.folder / f"{name}.md").write_text(page, encoding="utf-8")
        print(f"{name}: {len(rows)} rows")


def kept(question: str, row: Any) -> Any:
    """Return the counts of a question in the repository."""
    return msgspec.json.decode((FOLDER / f"{question}.json").read_bytes(), type=list[row])


def table(rows: list[dict[str, object]]) -> str:
    """Return a Markdown table of rows, whose keys are the headers; numbers are aligned right."""
    numeric = [all(isinstance(row[name], int | float) for row in rows) for name in rows[0]]
    lines = [[*rows[0]], ["---:" if number else "---" for number in numeric]]
    lines += [[str(cell) for cell in row.values()] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


if __name__ == "__main__":
    main()
