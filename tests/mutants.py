"""Which changes to the package do these tests detect? Mutants, drawn with a seed.

    python tests/mutants.py --seed 1 --number 40 --preload torch \
        tracer.findings.rules.steps tracer.findings.rules.updates -- tests/twins

A mutant is a module with one change: a comparison, a condition, an operator, a number or a result.
The same seed draws the same mutants of the same modules, so two suites can be compared: a mutant
that the one kills and the other does not is a detection that was lost. Each runs in a fork, with
`-x`; `--preload` imports before, what all of them need. Prints a line for each mutant, and the sum.
"""

import argparse
import ast
import importlib
import importlib.abc
import importlib.util
import os
import random
import resource
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 300
"""Seconds of the processor for one mutant: a loop without an end is detected by this."""

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


def path_of(module: str) -> Path:
    """The file of a module of the package."""
    return ROOT / f"{module.replace('.', '/')}.py"


def places(tree: ast.Module) -> Iterator[int]:
    """The nodes that can be changed, by their number in `ast.walk`."""
    typed = [
        annotation
        for node in ast.walk(tree)
        for name in ("annotation", "returns")
        if (annotation := getattr(node, name, None)) is not None
    ]
    types = {id(part) for annotation in typed for part in ast.walk(annotation)}
    for number, node in enumerate(ast.walk(tree)):
        match node:
            case _ if id(node) in types:
                continue
            case ast.Compare(ops=[op, *_]) | ast.BoolOp(op=op) | ast.BinOp(op=op):
                if type(op) in FLIP:
                    yield number
            case ast.If() | ast.IfExp() | ast.While():
                yield number
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                yield number
            case ast.Return(value=ast.expr() as value) if not isinstance(value, ast.Constant):
                yield number
            case ast.Expr(value=ast.Call()):
                yield number


def mutant(module: str, number: int) -> tuple[CodeType, str]:
    """The module with one node changed, and where that is."""
    path = path_of(module)
    tree = ast.parse(path.read_text("utf-8"))
    node = list(ast.walk(tree))[number]
    match node:
        case ast.Compare():
            node.ops[0] = FLIP[type(node.ops[0])]()
        case ast.BoolOp() | ast.BinOp():
            node.op = FLIP[type(node.op)]()
        case ast.If() | ast.IfExp() | ast.While():
            node.test = ast.copy_location(ast.UnaryOp(ast.Not(), node.test), node.test)
        case ast.Constant(value=int(value)):
            node.value = value + 1
        case ast.Return() | ast.Expr():
            node.value = ast.Constant(None)
    ast.fix_missing_locations(tree)
    line = getattr(node, "lineno", 0)
    return compile(tree, str(path), "exec"), f"{module}:{line} {type(node).__name__} {number}"


class Session(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """A plugin of pytest, which imports the mutant and knows the first failure."""

    def __init__(self, module: str, code: CodeType | None) -> None:
        self.module, self.code, self.failure = module, code, ""

    def find_spec(self, name: str, path: object, target: object = None) -> ModuleSpec | None:
        file = str(path_of(self.module))
        spec = importlib.util.spec_from_loader(name, self, origin=file)
        return spec if name == self.module else None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(path_of(self.module))
        assert self.code is not None
        exec(self.code, module.__dict__)

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        """Come before pytest's own finder, which rewrites all of the package."""
        assert self.module not in sys.modules, f"{self.module} is imported already"
        if self.code is not None:
            sys.meta_path.insert(0, self)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failure = self.failure or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failure = self.failure or f"collecting {report.nodeid}"


def first_failure(module: str, code: CodeType | None, arguments: list[str]) -> str:
    """The first test that fails with this code of the module, in a fork; empty: none does."""
    receiver, sender = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receiver)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (LIMIT, LIMIT))
        session = Session(module, code)
        try:
            status = pytest.main(["-x", "-p", "no:cacheprovider", *arguments], [session])
            failure = session.failure or ("" if status == 0 else f"pytest ended with {status}")
        except BaseException as error:
            failure = repr(error)
        os.write(sender, failure.encode()[:4096])
        os._exit(0)
    os.close(sender)
    with os.fdopen(receiver, encoding="utf-8", errors="replace") as answer:
        failure = answer.read()
    _, status = os.waitpid(child, 0)
    return failure or ("" if status == 0 else f"ended by signal {os.WTERMSIG(status)}")


def main() -> None:
    """Draw the mutants, run the tests with each, and print which were killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("modules", nargs="+")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--number", type=int, default=40)
    parser.add_argument("--preload", action="append", default=[])
    if "--" not in sys.argv:
        parser.error("the tests follow --")
    end = sys.argv.index("--")
    options, tests = parser.parse_args(sys.argv[1:end]), sys.argv[end + 1 :]
    sys.path.insert(0, str(ROOT))
    for name in options.preload:
        importlib.import_module(name)
    failure = first_failure(options.modules[0], None, tests)
    assert not failure, f"without a change fails {failure}"
    trees = {module: ast.parse(path_of(module).read_text("utf-8")) for module in options.modules}
    drawn = [(module, number) for module, tree in trees.items() for number in places(tree)]
    random.Random(options.seed).shuffle(drawn)
    sums: Counter[str] = Counter()
    for module, number in drawn[: options.number]:
        code, where = mutant(module, number)
        failure = first_failure(module, code, tests)
        verdict = "killed" if failure else "SURVIVED"
        sums[verdict] += 1
        print(f"{where}: {verdict} {failure}", flush=True)
    print(f"{len(drawn)} places, seed {options.seed}: {dict(sums)}")


if __name__ == "__main__":
    main()
