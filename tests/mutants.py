"""Which changes to the package do these tests detect? Mutants, drawn with a seed.

    python tests/mutants.py --seed 1 --number 40 \
        tracer.findings.steps tracer.findings.updates -- tests/twins

A mutant is a copy of the package with one change: a comparison, a condition, an operator, a number
or a result. The same seed draws the same mutants of the same modules, so two suites can be
compared: a mutant that the one kills and the other does not is a detection that was lost. Each runs
in a process of its own, with `-x`. Prints a line for each mutant, and the sum.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600
"""Seconds for one mutant: a loop without an end is detected by this."""

FLIP: dict[type, type] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


def mutants(file: Path) -> Iterator[tuple[int, str]]:
    """The line of each node that can be changed, and the text of the module with the change."""
    tree = ast.parse(file.read_text("utf-8"))
    for node in ast.walk(tree):
        before = vars(node).copy()
        if change(node):
            yield getattr(node, "lineno", 0), ast.unparse(ast.fix_missing_locations(tree))
            vars(node).update(before)


def change(node: ast.AST) -> bool:
    """Change a node in its place, if it is of a sort that can be changed."""
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in FLIP:
            node.ops = [FLIP[type(op)](), *node.ops[1:]]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in FLIP:
            node.op = FLIP[type(op)]()
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.UnaryOp(ast.Not(), node.test)
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            node.value = value + 1
        case ast.Return(value=ast.expr() as result) if not isinstance(result, ast.Constant):
            node.value = ast.Constant(None)
        case ast.Expr(value=ast.Call()):
            node.value = ast.Constant(None)
        case _:
            return False
    return True


def is_killed(tests: list[str]) -> bool:
    """Whether a test fails with the package in the current folder."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": os.getcwd()}, stdout=-3, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=20)
    end = sys.argv.index("--")
    options, tests = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    files = [Path(f"{module.replace('.', '/')}.py") for module in options.modules]
    drawn = [(file, *mutant) for file in files for mutant in mutants(ROOT / file)]
    random.Random(options.seed).shuffle(drawn)
    sums: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(ROOT, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))
        os.chdir(folder)
        assert not is_killed(tests), "a test fails without a change"
        for file, line, text in drawn[: options.number]:
            before = file.read_text("utf-8")
            file.write_text(text, "utf-8")
            verdict = "killed" if is_killed(tests) else "SURVIVED"
            file.write_text(before, "utf-8")
            sums[verdict] += 1
            print(f"{file}:{line}: {verdict}", flush=True)
    print(f"{len(drawn)} places, seed {options.seed}: {dict(sums)}")


if __name__ == "__main__":
    main()
