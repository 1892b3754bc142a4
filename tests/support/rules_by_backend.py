"""Which rule finds anything where, and why not elsewhere: the table in docs/findings.md.

The tests of each backend have a program for each rule of its column, and no other. Those of
TensorFlow are in `findings/test_rules_in_training.py` and `findings/pains`.
"""

from tracer.findings.run_rules import RULES

BACKENDS = ("TensorFlow", "Keras on JAX", "Keras on PyTorch", "torch.optim", "optax")

_METHODS = "its update is no method of Python that a class overrides"

_NEVER_SEES = "optax never sees the weights after it"
_MASK = "what a program decays is not looked at"
_SCHEDULES = "schedules of others are part of the optimizer, and know its steps"
_NOT_KEPT = "only PyTorch keeps gradients from step to step"
_NO_IDENTITY = "what optax updates has a path, and no identity"

ELSEWHERE = {
    "override-unreached": ("jax torch", _METHODS),
    "wrong-signature": ("jax torch", _METHODS),
    "sparse-missing": ("", "one method has all gradients there"),
    "python-side-effect": ("jax", "PyTorch runs Python in each step; of optax no source is read"),
    "step-per-variable": ("jax torch", _METHODS),
    "keras-mixed": ("jax torch", "there is one Keras, and of `torch.optim` and optax none"),
    "apply-raised": (
        "jax torch optax",
        "PyTorch tells nothing of a step that raises: a note says so",
    ),
    "not-finite": ("jax torch torch.optim", _NEVER_SEES),
    "never-assigned": ("", "what an update assigns is not looked at"),
    "unchanged": ("jax torch torch.optim", _NEVER_SEES),
    "replicas-disagree": ("jax torch torch.optim optax", ""),
    "never-updated": ("jax torch torch.optim optax", ""),
    "never-passed": (
        "torch.optim",
        "Keras raises; of optax, what it does not get is not known",
    ),
    "frozen-but-updated": (
        "torch.optim",
        "JAX raises, Keras on PyTorch reads `trainable` each time",
    ),
    "not-finite-kept": ("only optax", "only `apply_if_finite` gives up"),
    "gradient-passed-on": ("only optax", "only optax returns updates"),
    "gradient-always-zero": ("only optax", "others have None where a loss does not depend on it"),
    "shared-variable": ("jax torch torch.optim", _NO_IDENTITY),
    "optimizer-renewed": ("jax torch torch.optim optax", ""),
    "no-gradient": ("jax torch torch.optim optax", ""),
    "updates-stopped": ("jax torch torch.optim optax", ""),
    "updated-twice": ("jax torch torch.optim", "optax returns one update of each leaf"),
    "densified": ("", "Keras gives no sparse gradients there; others make none dense"),
    "gradient-missing": ("jax torch torch.optim optax", ""),
    "apply-gradients-twice": ("jax optax", "what belongs to one batch only a program shows"),
    "steps-skipped": ("jax torch torch.optim optax", ""),
    "steps-differ": ("jax torch torch.optim optax", ""),
    "gradients-left": ("jax torch torch.optim optax", ""),
    "gradients-added": ("only torch.optim", _NOT_KEPT),
    "clipped-late": ("only torch.optim", _NOT_KEPT),
    "never-used": ("jax torch", "`torch.optim` is built when it is made; optax `init` is not seen"),
    "loss-not-scaled": ("jax torch", "`GradScaler.step` raises then; optax scales no loss"),
    "ema-unused": ("jax torch", "they keep no averages of the weights"),
    "decay-exclusion": ("jax torch", "what decays is said by parameter groups, or by a mask"),
    "state-not-loaded": ("jax torch", "`load_state_dict` raises; that of optax is the program's"),
    "retraced": ("jax optax", "recompilations of `torch.compile` are not distinguished"),
    "traced-again": ("jax optax", "recompilations of `torch.compile` are not distinguished"),
    "schedule-pace": ("only torch.optim", _SCHEDULES),
    "schedule-ahead": ("only torch.optim", _SCHEDULES),
    "rate-loaded": ("only torch.optim", "the rate is no part of what others load as a state"),
    "decay-flipped": ("torch.optim optax", _MASK),
    "decay-of-norms": ("torch.optim optax", _MASK),
    "moved-without-gradient": ("only torch.optim", "gradients are not compared"),
    "graph-never-ran": ("jax optax", "a program of `torch.compile` runs when it is made"),
}
"""Where else than with TensorFlow, or `only` there, and why not in the rest."""


IN_PAINS = {
    "schedule-pace",
    "schedule-ahead",
    "rate-loaded",
    "decay-of-norms",
    "moved-without-gradient",
}
"""What `findings/pains` alone has programs of: see `findings/test_rates_in_training.py`."""
OF_EFFECTS = {"not-finite", "unchanged", "moved-without-gradient"}
"""What is found only with `effects=True`."""


def rules_of(backend: str) -> set[str]:
    """The codes of the rules that can find something: `jax`, `torch`, `torch.optim`, `optax`."""
    return {code for code, (where, _) in ELSEWHERE.items() if backend in where.split()}


def table() -> str:
    """The table in Markdown."""
    rows: list[tuple[str, ...]] = [("rule", *BACKENDS, "why not"), ("---",) * 7]
    for rule in RULES:
        where, why = ELSEWHERE[rule.code]
        keys = ("jax", "torch", "torch.optim", "optax")
        found = ["yes" if each in where.split() else "" for each in keys]
        tensorflow = "" if "only" in where.split() else "yes"
        rows.append((f"`{rule.code}`", tensorflow, *found, why))
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def page() -> str:
    """All rules in Markdown, for `docs/findings.md`."""
    return "\n".join(
        f"### `{rule.code}`: {rule.title}\n\n*{rule.severity}.* {rule.explanation}\n\n"
        f"*Why it matters:* {rule.why}\n\n*What to do:* {rule.advice}\n"
        for rule in RULES
    )
