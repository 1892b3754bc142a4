"""Random programs of optax: `python -m fuzz.optax --seconds 900 --seed 1`, run in `tests`.

Hypothesis draws a program as data and shrinks one that fails. It runs three times: traced, compiled
without the tracer (the arrays have the same bits, or those with a callback of the program, where
XLA compiles a loop that calls Python otherwise), and in plain Python, which is the oracle: loops
and branches are those of Python, the members of a `vmap` come one after the other, and in place of
each `tracer.wrap` stands a transformation that notes which leaves of its updates are not 0. No
transformation that is drawn computes a 0, so a 0 was thrown away or never computed. The arrays of
the oracle are those of the compiled program, NaN included: it looks at what moves the weights.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from fuzz.batch import Node, Updates, Wrong, counted, differ, main
from hypothesis import strategies as st
from jax import lax

import tracer

# What is drawn.


class Function(NamedTuple):
    """How it is compiled, and what it does."""

    way: str
    body: Node


class Program(NamedTuple):
    """A transformation (kind, number, whether it is wrapped, what is in it) and its use."""

    tx: Node
    functions: tuple[Function, ...]
    bad: tuple[bool, ...]
    """In which steps, modulo their number, the gradients are NaN."""
    actions: tuple[str, ...]
    """Call the function with that number; `wrap`, `unwrap` or `look` at the transformation."""


MODELS = (
    {"a": np.zeros(2, np.float32), "b": np.zeros((), np.float32)},
    np.zeros(1, np.float32),
    {"c": {"a": np.zeros(1, np.float32)}, "d": [np.zeros((), np.float32)]},
)
LEAVES = ("sgd", "adam", "square", "decay", "schedule", "clip", "momentum", "inject", "odometer")
GATES = ("accumulate", "skipping", "finite", "every")
AROUND = ("own", "tuple", "injected")
HOLDING = (*GATES, *GATES, *AROUND, *AROUND, "masked", "jitted")
WAYS = ("grad", "jit", "vmap", "vmap_all")
"""Without `jax.checkpoint`, which always leaves a note."""


def transformations(depth: int) -> st.SearchStrategy[Node]:
    to = st.tuples(st.sampled_from((2, 3, 1)), st.booleans())

    def made(kinds: tuple[str, ...], *inner: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
        return st.builds(Node, st.sampled_from(kinds), to, st.tuples(*inner))

    leaf = made(LEAVES)
    if not depth:
        return leaf
    inner = st.just(depth - 1).flatmap(transformations)
    around = made(AROUND, made(GATES, inner))
    several = made(("chain", "partition"), inner, inner)
    return st.one_of(leaf, made(GATES, inner), around, made(HOLDING, inner), several)


def step(model: int = 0) -> Node:
    """One `update` of the parameters of a model."""
    return Node("step", (model,))


def bodies(depth: int) -> st.SearchStrategy[Node]:
    leaf = st.builds(step, st.sampled_from((0, 2, 0, 2, 1)))
    if not depth:
        return leaf
    inner = st.just(depth - 1).flatmap(bodies)
    loop = st.tuples(st.sampled_from(("scan", "fori", "while")), st.integers(1, 3))
    several = st.lists(inner, min_size=1, max_size=2).map(tuple)
    return st.one_of(
        leaf,
        st.builds(Node, st.just("both"), st.just(()), several),
        st.builds(Node, st.just("loop"), loop, st.tuples(inner)),
        st.builds(Node, st.just("choice"), st.tuples(st.integers(0, 2)), several),
        st.builds(Node, st.sampled_from(WAYS), st.just(()), st.tuples(inner)),
    )


def _is_small(body: Node) -> bool:
    """Whether it takes a second or so to compile and to run without JAX."""
    return len(_steps(body)) < 4 and sum(node.does in WAYS for node in body.walk()) < 4


def programs() -> st.SearchStrategy[Program]:
    ways = st.sampled_from(("jit", "jit", "eager", "donate", "aot"))
    function = st.builds(Function, ways, bodies(3).filter(_is_small))
    actions = st.sampled_from(("0",) * 4 + ("1", "wrap", "unwrap", "look"))
    return st.builds(
        Program,
        transformations(2),
        st.lists(function, min_size=1, max_size=2).map(tuple),
        st.lists(st.booleans(), min_size=1, max_size=5).map(tuple),
        st.lists(actions, min_size=2, max_size=5).map(lambda each: ("wrap", "0", *each)),
    )


# Transformations.


def _own(change: Callable[[Any], Any]) -> Any:
    """One that changes each leaf and counts its calls."""
    return optax.GradientTransformation(
        lambda params: jnp.zeros((), jnp.int32),
        lambda updates, state, params=None: (jax.tree.map(change, updates), state + 1),
    )


def _around(tx: Any, *, counts: bool) -> Any:
    """One of the program's own that adds something; with `counts` its state is a tuple."""

    def init(params: Any) -> Any:
        return (tx.init(params), jnp.zeros((), jnp.int32)) if counts else tx.init(params)

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        updates, new = tx.update(updates, state[0] if counts else state, params)
        return jax.tree.map(lambda u: u + 0.7, updates), (new, state[1] + 1) if counts else new

    return optax.GradientTransformation(init, update)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator="/") or "parameter"


def _labels(tree: Any) -> Any:
    """The leaves that are called `b` or `d` are the second half; a lone array is the first."""
    second = ("b", "d/0")
    return jax.tree_util.tree_map_with_path(lambda path, _: int(_name(path) in second), tree)


def _make(tx: Node, inner: list[Any]) -> Any:
    """The transformation itself."""
    first, n = (inner or [None])[0], tx.to[0]
    update = getattr(first, "update", None)
    makers: dict[str, Callable[[], Any]] = {
        "odometer": lambda: _own(jnp.ones_like),
        "square": lambda: _own(lambda u: u * u + 0.5),
        "sgd": lambda: optax.sgd(0.3),
        "adam": lambda: optax.adam(0.1),
        "decay": lambda: optax.chain(optax.add_decayed_weights(0.01), optax.scale(0.7)),
        "schedule": lambda: optax.scale_by_schedule(lambda count: 0.3 + 0.1 * count),
        "clip": lambda: optax.clip(20.0),
        "momentum": lambda: optax.trace(0.5),
        "inject": lambda: optax.inject_hyperparams(optax.sgd)(learning_rate=0.3),
        "chain": lambda: optax.chain(*inner),
        "masked": lambda: optax.masked(
            first, lambda tree: jax.tree.map(lambda n: not n, _labels(tree))
        ),
        "partition": lambda: optax.partition(dict(enumerate(inner)), _labels),
        "accumulate": lambda: optax.MultiSteps(first, n),
        "skipping": lambda: optax.MultiSteps(
            first, n, should_skip_update_fn=optax.transforms.skip_not_finite
        ),
        "finite": lambda: optax.apply_if_finite(first, n),
        "every": lambda: optax.chain(first, optax.apply_every(n)),
        "own": lambda: _around(first, counts=False),
        "tuple": lambda: _around(first, counts=True),
        "injected": lambda: optax.inject_hyperparams(
            lambda rate: optax.chain(first, optax.scale(rate))
        )(rate=0.5),
        "jitted": lambda: first._replace(update=jax.jit(update)),
    }
    return makers[tx.does]()


# What runs a program.


def _steps(body: Node) -> list[int]:
    """The models of the steps in a body."""
    return [node.to[0] for node in body.walk() if node.does == "step"]


def total(params: Any) -> Any:
    return sum(jnp.sum(each * each) for each in jax.tree.leaves(params))


class Run:
    """The program as JAX has it; `mark` is put around what is wrapped."""

    def __init__(self, program: Program, traced: bool, *, calls: bool = False) -> None:
        self.program, self.traced, self.calls = program, traced, calls
        self.probes: list[Any] = []
        self.tx = self.original = self.build(program.tx, root=True)
        self.reverse = self.changed = 0
        self.functions: dict[Any, Any] = {}
        self.carry = self.first_carry()

    def build(self, tx: Node, root: bool = False) -> Any:
        made = _make(tx, [self.build(each) for each in tx.parts])
        if isinstance(made, optax.MultiSteps) and not root:
            made = made.gradient_transformation()
        return made if root or not tx.to[1] else self.mark(tx, made)

    def mark(self, tx: Node, made: Any) -> Any:
        made = tracer.wrap(made) if self.traced else made
        self.probes.append(made)
        return made

    def first_carry(self) -> Any:
        models = sorted({model for f in self.program.functions for model in _steps(f.body)})
        params = {str(m): jax.tree.map(jnp.asarray, MODELS[m]) for m in models}
        states = {name: self.original.init(each) for name, each in params.items()}
        numbers = {name: jnp.zeros((), jnp.int32) for name in ("clock", "member")}
        numbers |= {"rate": jnp.ones(()), "seen": jnp.zeros(())}
        return {"params": params, "states": states, **numbers}

    # Actions.

    def act(self, name: str) -> None:
        if name in ("wrap", "unwrap"):
            self.changed += 1
            getattr(self, name)()
        elif name != "look":
            self.call(int(name) % len(self.program.functions))

    def wrap(self) -> None:
        if self.traced and self.tx is self.original:
            self.tx = tracer.wrap(self.original)
            self.probes.append(self.tx)

    def unwrap(self) -> None:
        if self.traced and self.tx is not self.original:
            self.tx = tracer.unwrap(self.tx, retrace=True)

    def call(self, index: int) -> None:
        way, body = self.program.functions[index]
        if way == "eager":
            self.carry = self.body(body, self.carry)
            return
        key = index, self.changed if way == "aot" else 0
        if key not in self.functions:
            donated = {"donate_argnums": 0} if way == "donate" else {}
            made = jax.jit(lambda carry: self.body(body, carry), **donated)
            self.functions[key] = made.lower(self.carry).compile() if way == "aot" else made
        self.carry = self.functions[key](self.carry)

    # Bodies: each takes what is carried, and returns it.

    def body(self, body: Node, carry: Any) -> Any:
        return getattr(self, body.does)(carry, *body.to, *body.parts)

    def step(self, carry: Any, number: int) -> Any:
        model, params, states = str(number), carry["params"], carry["states"]
        bad = jnp.asarray(self.program.bad)[
            (carry["clock"] + carry["member"]) % len(self.program.bad)
        ]
        gradient = jnp.where(bad, jnp.nan, carry["rate"])
        gradients = jax.tree.map(lambda p: jnp.ones_like(p) * gradient, params[model])
        updates, state = self.tx.update(gradients, states[model], params[model])
        if self.calls:
            jax.debug.callback(lambda: None)
        params = {**params, model: optax.apply_updates(params[model], updates)}
        states = {**states, model: state}
        return {**carry, "params": params, "states": states, "clock": carry["clock"] + 1}

    def both(self, carry: Any, *parts: Node) -> Any:
        for part in parts:
            carry = self.body(part, carry)
        return carry

    def loop(self, carry: Any, way: str, times: int, body: Node) -> Any:
        once = partial(self.body, body)
        if way == "scan" or self.reverse:
            return lax.scan(lambda c, _: (once(c), None), carry, None, length=times)[0]
        if way == "fori":
            return lax.fori_loop(0, times, lambda _, c: once(c), carry)
        result = lax.while_loop(
            lambda c: c[1] < times, lambda c: (once(c[0]), c[1] + 1), (carry, 0)
        )
        return result[0]

    def choice(self, carry: Any, shift: int, *bodies: Node) -> Any:
        """The branch is the number of the step and `shift`, modulo the number of branches."""
        branches = [partial(self.body, each) for each in bodies]
        return lax.switch((carry["clock"] + shift) % len(branches), branches, carry)

    def grad(self, carry: Any, body: Node) -> Any:
        def loss(rate: Any) -> Any:
            new = self.body(body, {**carry, "rate": rate})
            return total(new["params"]), new

        self.reverse += 1  # a `while_loop` cannot be differentiated here
        try:
            gradient, new = jax.grad(loss, has_aux=True)(carry["rate"])
        finally:
            self.reverse -= 1
        return {**new, "rate": carry["rate"], "seen": carry["seen"] + gradient}

    def jit(self, carry: Any, body: Node) -> Any:
        return jax.jit(lambda carry: self.body(body, carry))(carry)

    def vmap(self, carry: Any, body: Node, *own: str) -> Any:
        own = ("params", "states", "member", *own)
        stacked = {
            **carry,
            **{name: jax.tree.map(lambda x: jnp.stack([x] * 2), carry[name]) for name in own},
        }
        stacked["member"] = stacked["member"] * 3 + jnp.arange(2)
        axes = {name: 0 if name in own else None for name in carry}
        result = jax.vmap(partial(self.body, body), in_axes=(axes,))(stacked)
        return {**jax.tree.map(lambda x: x[0], result), "member": carry["member"]}

    def vmap_all(self, carry: Any, body: Node) -> Any:
        return self.vmap(carry, body, "rate", "seen", "clock")


# The oracle.


@dataclass
class Event:
    """One step of a transformation."""

    kept: Updates
    zero: Updates
    optional: bool = False
    """Whether nothing needs it, so that JAX may leave it out."""
    unclear: bool = False
    """Whether it is not known which of its updates are kept."""
    diverged: bool = False
    """Whether some members of a `vmap` had it, and others had another or none."""


@dataclass
class Probe:
    """What is known of what is wrapped."""

    tx: Node
    on: bool = True
    events: list[Event] = field(default_factory=list)


class Oracle(Run):
    """The program in plain Python."""

    def __init__(self, program: Program) -> None:
        self.all: list[Probe] = []
        super().__init__(program, traced=False)
        self.watch_root(on=False)

    def watch_root(self, on: bool) -> None:
        self.root = Probe(self.program.tx, on)
        self.all.append(self.root)
        self.tx = self.probing(self.root, self.original)

    def build(self, tx: Node, root: bool = False) -> Any:
        if tx.does == "jitted":
            tx = tx._replace(does="chain")  # of one
        made = super().build(tx, root)
        return self.gate(made) if tx.does in ("accumulate", "skipping") else made

    def mark(self, tx: Node, made: Any) -> Any:
        probe = Probe(tx)
        self.probes.append(probe)
        self.all.append(probe)
        return self.probing(probe, made)

    def probing(self, probe: Probe, made: Any) -> Any:
        def update(updates: Any, state: Any, params: Any = None) -> Any:
            was_zero = not _is_traced(updates) and bool(_kept(updates)[1])
            updates, state = made.update(updates, state, params)
            if probe.on and not _is_traced(updates):
                kept, zero = _kept(updates)
                if was_zero and not _has(probe.tx, *GATES):
                    kept, zero = kept + zero, []  # what it made of a 0 is 0
                unclear = was_zero and bool(zero)
                nothing = not (kept or zero)  # JAX leaves out a branch that returns nothing
                probe.events.append(Event(Counter(kept), Counter(zero), nothing, unclear))
            return updates, state

        return optax.GradientTransformation(made.init, update)

    def gate(self, made: Any) -> Any:
        """A `MultiSteps`: what it holds counts for nothing in the steps that it multiplies by 0."""

        def update(updates: Any, state: Any, params: Any = None) -> Any:
            before = self.lengths()
            updates, new = made.update(updates, state, params)
            if not _is_traced(updates) and new.gradient_step == state.gradient_step:
                of_nan, _ = _kept(updates)
                for event in self.since(before):
                    thrown = Counter({k: n for k, n in event.kept.items() if k not in of_nan})
                    event.kept -= thrown
                    event.zero += thrown
            return updates, new

        return optax.GradientTransformation(made.init, update)

    def lengths(self) -> list[int]:
        return [len(each.events) for each in self.all]

    def since(self, lengths: list[int]) -> list[Event]:
        return [e for p, n in zip(self.all, lengths, strict=True) for e in p.events[n:]]

    def wrap(self) -> None:
        if self.root.on:
            return
        if self.root.events:  # unwrapped before: another trace begins
            self.watch_root(on=True)
        self.root.on = True
        self.probes.append(self.root)

    def unwrap(self) -> None:
        self.root.on = False

    def call(self, index: int) -> None:
        with mock.patch.object(lax, "cond", _cond):
            self.carry = self.body(self.program.functions[index].body, self.carry)

    def loop(self, carry: Any, way: str, times: int, body: Node) -> Any:
        for _ in range(times):
            carry = self.body(body, carry)
        return carry

    def choice(self, carry: Any, shift: int, *bodies: Node) -> Any:
        return self.body(bodies[(int(carry["clock"]) + shift) % len(bodies)], carry)

    def grad(self, carry: Any, body: Node) -> Any:
        return self.body(body, carry)

    jit = grad

    def vmap(self, carry: Any, body: Node, *own: str) -> Any:
        before, results, members = self.lengths(), [], []
        for member in range(2):
            start = self.lengths()
            results.append(self.body(body, {**carry, "member": carry["member"] * 3 + member}))
            members.append([p.events[n:] for p, n in zip(self.all, start, strict=True)])
            for probe, length in zip(self.all, before, strict=True):
                del probe.events[length:]
        for probe, *of_members in zip(self.all, *members, strict=True):
            probe.events += _together(of_members)
        return {**results[0], "member": carry["member"]}

    vmap_all = vmap


COND = lax.cond


def _cond(
    predicate: Any, yes: Callable[..., Any], no: Callable[..., Any], *of: Any, **one: Any
) -> Any:
    """`lax.cond` in Python, so that what it calls has arrays; JAX's own where JAX traces it."""
    if _is_traced(predicate):
        return COND(predicate, yes, no, *of, **one)
    return (yes if predicate else no)(*of, *one.values())


def _together(members: list[list[Event]]) -> list[Event]:
    """The steps of all members, each of which is one step if all have it."""
    if len({len(each) for each in members}) > 1:
        longest = max(members, key=len)
        for event in longest:
            event.diverged = True
        return longest
    return [
        Event(
            a.kept + b.kept,
            a.zero + b.zero,
            a.optional or b.optional,
            a.unclear or b.unclear,
            a.diverged or b.diverged,
        )
        for a, b in zip(*members, strict=True)
    ]


def _kept(updates: Any) -> tuple[list[tuple[str]], list[tuple[str]]]:
    """The leaves that are not 0, and those that are."""
    flat = jax.tree_util.tree_flatten_with_path(updates)[0]
    names = [((_name(path),), bool(np.any(leaf != 0))) for path, leaf in flat]
    return [name for name, kept in names if kept], [name for name, kept in names if not kept]


def _is_traced(tree: Any) -> bool:
    return any(isinstance(each, jax.core.Tracer) for each in jax.tree.leaves(tree))


def _has(tx: Node, *kinds: str) -> bool:
    return any(each.does in kinds for each in tx.walk())


# What is compared.


def check(program: Program) -> Counter[str]:
    """Run a program; raises `Wrong` if the tracer counts wrong or changes it."""
    oracle, plain = Oracle(program), Run(program, traced=False)
    try:
        _run(plain)
    except Exception as error:
        with pytest.raises(type(error)):
            _run(Run(program, traced=True))
        return Counter({f"refused: {type(error).__name__}": 1})
    seen: Counter[str] = Counter()
    traced = Run(program, traced=True)
    for name in program.actions:
        traced.act(name)
        oracle.act(name)
        if name == "look":
            seen += _compare(traced, oracle)
    for name in ("clock", "params"):
        pairs = zip(*(jax.tree.leaves(run.carry[name]) for run in (oracle, plain)), strict=True)
        if not all(np.allclose(a, b, rtol=1e-2, atol=1e-2, equal_nan=True) for a, b in pairs):
            raise AssertionError("the oracle is wrong: it did not do what JAX does")
    if _bits(plain.carry) != _bits(traced.carry):
        # XLA compiles a loop that calls Python otherwise, whatever it calls: see `docs/limits.md`.
        calling = Run(program, traced=False, calls=True)
        _run(calling)
        if _bits(calling.carry) != _bits(traced.carry):
            raise Wrong("the arrays have other bits while it is traced")
        seen["other bits, as with a callback of the program"] += 1
    return seen + _compare(traced, oracle)


def _run(run: Run) -> None:
    for name in run.program.actions:
        run.act(name)


def _bits(carry: Any) -> list[bytes]:
    return [np.asarray(each).tobytes() for each in jax.tree.leaves(carry)]


def _compare(traced: Run, oracle: Oracle) -> Counter[str]:
    seen: Counter[str] = Counter()
    # Steps that do not depend on each other have no order in a program.
    ordered = len({model for f in oracle.program.functions for model in _steps(f.body)}) == 1
    for wrapped, probe in zip(traced.probes, oracle.probes, strict=True):
        trace = tracer.trace_of(wrapped)
        if not trace.complete:
            if not trace.notes:
                raise Wrong(f"{probe.tx}: incomplete without a note")
            seen.update(f"incomplete: {note[:90]}" for note in trace.notes)
            continue
        optional = any(event.optional for event in probe.events)
        seen["complete, with steps" if probe.events else "complete, without steps"] += 1
        seen["... of which some may be left out"] += optional
        if text := _difference(trace, probe, ordered):
            raise Wrong(f"{probe.tx}: {text}; notes: {trace.notes}")
    return seen


def _difference(trace: Any, probe: Probe, ordered: bool) -> str:
    """What a complete trace says otherwise than what ran."""
    events = probe.events
    if any(event.optional for event in events):
        least = sum(not event.optional for event in events)
        fits = least <= trace.steps <= len(events)
        return "" if fits else f"{trace.steps} steps, and {least} to {len(events)} ran"
    if any(event.diverged for event in events):
        return "members of a vmap did not do the same"
    if any(event.unclear for event in events):
        return "" if trace.steps == len(events) else f"{trace.steps} steps, and {len(events)} ran"
    names = {name: name for event in events for (name,) in event.kept}
    kept = [event.kept for event in events]
    if text := differ(trace, counted(trace, names), kept, ordered=ordered):
        return text
    thrown = sum((event.zero for event in events), Counter())
    discarded = {key: n for key, n in trace.count("discarded", by="variable").items() if n}
    exact = not _has(probe.tx, "finite", "every", "skipping")
    if exact and discarded != thrown:
        return f"{discarded} discarded, and {dict(thrown)} were"
    return ""


if __name__ == "__main__":
    main(programs(), check, jax.clear_caches)
