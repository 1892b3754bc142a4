"""Tests of Keras on PyTorch, a process of their own: see `support/framework.py`."""

from support.framework import FRAMEWORK

collect_ignore_glob = [] if FRAMEWORK == "torch" else ["test_*.py"]
