"""Which rule finds anything with which backend: the table in docs/findings.md.

`twins` has a program for each rule that finds something without TensorFlow. Those of TensorFlow
alone are in `findings/test_rules_in_training.py`.
"""

NAMES = {
    "tensorflow": "TensorFlow",
    "jax": "Keras on JAX",
    "torch": "Keras on PyTorch",
    "torch.optim": "torch.optim",
    "optax": "optax",
}

BACKENDS = {
    "tensorflow jax torch torch.optim optax": (
        "replicas-disagree never-updated no-gradient updates-stopped "
        "optimizer-renewed steps-skipped gradients-left"
    ),
    "tensorflow jax torch torch.optim": "not-finite unchanged updated-twice",
    "tensorflow jax torch optax": "apply-raised",
    "tensorflow jax torch": "override-unreached never-used loss-not-scaled",
    "tensorflow jax optax": "retraced graph-never-ran",
    "tensorflow torch.optim": "never-passed frozen-but-updated",
    "tensorflow": "sparse-missing never-assigned densified",
    "torch.optim": "gradients-added",
}
"""The rules that can find something, by the backends on which they can."""


def rules_of(backend: str) -> set[str]:
    """The codes of the rules that can find something: `jax`, `torch`, `torch.optim`, `optax`."""
    every = BACKENDS.items()
    return {code for names, of in every if backend in names.split() for code in of.split()}


def table() -> str:
    """The table in Markdown."""
    rows = ["| with | rules |", "| --- | --- |"]
    for names, of in BACKENDS.items():
        which = [NAMES[each] for each in names.split()]
        backends = "every backend" if len(which) == len(NAMES) else ", ".join(which)
        rows.append(f"| {backends} | {', '.join(f'`{code}`' for code in of.split())} |")
    return "\n".join(rows)
