"""Tests of PyTorch's own optimizers: none of them is collected where PyTorch is not installed."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("torch") else ["*"]
