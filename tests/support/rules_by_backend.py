"""Which rule finds anything where, and why not elsewhere: the table in docs/findings.md.

The tests of each backend have a program for each rule of its column, and no other. Those of
TensorFlow are in `findings/test_rules_in_training.py` and `findings/pains`.
"""

from tracer.findings.catalogue import RULES

BACKENDS = ("TensorFlow", "Keras on JAX", "Keras on PyTorch", "torch.optim")

_METHODS = "its update is no method of Python that a class overrides"

ELSEWHERE = {
    "override-unreached": ("jax torch", _METHODS),
    "wrong-signature": ("jax torch", _METHODS),
    "sparse-missing": ("", "one method has all gradients there"),
    "python-side-effect": ("jax", "PyTorch runs Python in each step"),
    "step-per-variable": ("jax torch", _METHODS),
    "keras-mixed": ("jax torch", "there is one Keras, and of `torch.optim` none"),
    "apply-raised": ("jax torch", "PyTorch tells nothing of a step that raises: a note says so"),
    "not-finite": ("jax torch torch.optim", ""),
    "never-assigned": ("", "what an update assigns is not looked at"),
    "unchanged": ("jax torch torch.optim", ""),
    "replicas-disagree": ("jax torch torch.optim", ""),
    "never-updated": ("jax torch torch.optim", ""),
    "never-handed": ("torch.optim", "the step raises, see `apply-raised`"),
    "frozen-but-updated": ("torch.optim", "JAX raises, Keras on PyTorch reads `trainable` anew"),
    "shared-variable": ("jax torch torch.optim", ""),
    "optimizer-renewed": ("jax torch torch.optim", ""),
    "no-gradient": ("jax torch torch.optim", ""),
    "updates-stopped": ("jax torch torch.optim", ""),
    "updated-twice": ("jax torch torch.optim", ""),
    "densified": ("", "Keras gives no sparse gradients there; `torch.optim` makes none dense"),
    "gradient-missing": ("jax torch torch.optim", ""),
    "apply-gradients-twice": ("jax", "what belongs to one batch only a program shows"),
    "steps-skipped": ("jax torch torch.optim", ""),
    "steps-differ": ("jax torch torch.optim", ""),
    "gradients-left": ("jax torch", "who accumulates by hand says nowhere how many"),
    "never-used": ("jax torch", "it is built for its parameters when it is made"),
    "loss-not-scaled": ("jax torch", "`GradScaler.step` raises then"),
    "ema-unused": ("jax torch", "it keeps no averages"),
    "decay-exclusion": ("jax torch", "what decays is said by its parameter groups"),
    "state-not-loaded": ("jax torch", "`load_state_dict` raises then"),
    "retraced": ("jax", "recompilations of `torch.compile` are not told apart"),
    "traced-again": ("jax", "recompilations of `torch.compile` are not told apart"),
    "graph-never-ran": ("jax", "a program of `torch.compile` runs when it is made"),
}
"""Where else than with TensorFlow, and why not in the rest."""


OF_EFFECTS = {"not-finite", "unchanged"}
"""What is found only with `effects=True`."""


def rules_of(backend: str) -> set[str]:
    """The codes of the rules that can find something with `jax`, `torch` or `torch.optim`."""
    return {code for code, (where, _) in ELSEWHERE.items() if backend in where.split()}


def table() -> str:
    """The table in Markdown."""
    rows: list[tuple[str, ...]] = [("rule", *BACKENDS, "why not"), ("---",) * 6]
    for rule in RULES:
        where, why = ELSEWHERE[rule.code]
        found = ["yes" if each in where.split() else "" for each in ("jax", "torch", "torch.optim")]
        rows.append((f"`{rule.code}`", "yes", *found, why))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
