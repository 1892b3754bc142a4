"""The framework is chosen before a program imports it; `test_twins.py` imports the programs."""

import support.framework  # noqa: F401

collect_ignore_glob = ["on_*.py", "with_*.py"]
