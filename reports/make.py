"""Makes the reports: `python reports/make.py`, or `python reports/make.py how_often` for one.

`without_tensorflow` is made where JAX or PyTorch is installed, by its name: see there.

Each question is a module beside this one. `measure()` gives its counts, which are the same each
time and are kept as JSON; `page(counts)` says in Markdown what they mean.
"""

import argparse
import warnings
from importlib import import_module
from pathlib import Path

import msgspec

import tracer

QUESTIONS = ("how_often", "what_people_say", "python_body", "wrappers")


def main() -> None:
    """Measure, and write the counts and the page of each question."""
    parser = argparse.ArgumentParser(description="Measure, and write the reports.")
    parser.add_argument("questions", nargs="*", default=QUESTIONS, help=", ".join(QUESTIONS))
    parser.add_argument("--folder", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()
    if arguments.questions == ["without_tensorflow"]:
        import_module("without_tensorflow").write(arguments.folder)
        return
    import_module("measuring").prepare()
    # Optimizers that cannot work as they are written are part of the questions.
    warnings.simplefilter("ignore", tracer.OptimizerWarning)
    for name in arguments.questions:
        write(name, arguments.folder)


def write(name: str, folder: Path) -> None:
    """Answer one question, in `folder`."""
    question = import_module(name)
    counts = question.measure()
    json = msgspec.json.format(msgspec.json.encode(counts), indent=1)
    versions = import_module("measuring").made_with()
    made = f"Made by `python reports/make.py {name}` with {versions}."
    (folder / f"{name}.json").write_bytes(json + b"\n")
    (folder / f"{name}.md").write_text(f"{question.page(counts)}\n{made}\n", encoding="utf-8")
    print(f"{name}: {len(counts)} rows")


if __name__ == "__main__":
    main()
