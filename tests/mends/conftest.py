"""Collect the tests of one framework, which is chosen before anything imports it."""

from support.framework import FRAMEWORK, FRAMEWORKS

collect_ignore = [f"test_{name}.py" for name in FRAMEWORKS if name != FRAMEWORK]
if FRAMEWORK != "tensorflow":
    collect_ignore.append("test_verdicts.py")
