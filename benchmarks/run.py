"""Runs all benchmarks, one after the other, and writes their tables into a page.

    python benchmarks/run.py --write docs/performance.md     # all, about 15 minutes
    python benchmarks/run.py files graph_mode                # some, printed
    python benchmarks/run.py --quick                         # what is the same each time
    python benchmarks/run.py torch_optim --write docs/performance.md    # where PyTorch is installed
    python benchmarks/run.py keras_on_jax --write docs/performance.md   # where JAX and Keras are

The page has a pair of comments for each benchmark, `<!-- files -->` and `<!-- end -->`; what stands
between them is replaced. Let nothing else run on the machine.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

NAMES = (
    "graph_mode",
    "graph_peers",
    "effects",
    "eager_mode",
    "graph_tracing",
    "recording",
    "fixed_costs",
    "files",
)

OF_OTHERS = ("torch_optim", "torch_effects", "keras_on_jax", "jax_effects", "optax_updates")
"""Those that need another framework, and run only if they are named."""

PLOT = "performance.svg"
"""The picture that `files` draws, beside the page."""


def output(name: str, *arguments: str) -> str:
    """What a benchmark prints."""
    command = [sys.executable, str(Path(__file__).with_name(f"{name}.py")), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def replaced(page: str, name: str, text: str) -> str:
    """The page with `text` between the comments of this name; raises `ValueError` without them."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if len(pattern.findall(page)) != 1:
        raise ValueError(f"the page has no pair <!-- {name} --> and <!-- end -->, or several")
    return pattern.sub(lambda found: f"{found[1]}\n{text}\n\n{found[2]}", page)


def main() -> None:
    """Run, and print or write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES, metavar="NAME", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="no times, only what is exact")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to write into")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in (*NAMES, *OF_OTHERS):
            parser.error(f"no benchmark {name!r}: there are {', '.join(NAMES)}")
    for name in arguments.names:
        options = ["--quick"] * arguments.quick
        if arguments.write and name == "files" and not arguments.quick:
            options += ["--plot", str(arguments.write.with_name(PLOT))]
        text = output(name, *options)
        print(text, end="\n\n", flush=True)
        if arguments.write:
            page = replaced(arguments.write.read_text(encoding="utf-8"), name, text)
            arguments.write.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
