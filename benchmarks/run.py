"""Runs the benchmarks, one after the other, and writes their tables into a page.

    python benchmarks/run.py --write docs/performance.md     # what the page shows, 20 minutes
    python benchmarks/run.py files gpu                       # others, printed

The page has a pair of comments for each benchmark, `<!-- files -->` and `<!-- end -->`, and for the
machine; what stands between them is replaced. Let nothing else run while it takes times.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

NAMES = ("instructions", "effects")
"""Those that the page shows, and that run if none is named."""


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
    parser.add_argument(
        "names", nargs="*", default=NAMES, choices=(*NAMES, "files", "gpu"), metavar="NAME"
    )
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to write into")
    arguments = parser.parse_args()
    for name in arguments.names:
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py"))]
        text = subprocess.check_output(command, text=True).strip()
        print(text, end="\n\n", flush=True)
        if arguments.write:
            page = arguments.write.read_text(encoding="utf-8")
            text, _, machine = text.rpartition("\n\n")
            page = replaced(page, "machine", machine)
            arguments.write.write_text(replaced(page, name, text), encoding="utf-8")


if __name__ == "__main__":
    main()
