"""Random programs of TensorFlow: `python -m fuzz.tensorflow --seconds 600 --seed 1`, in `tests`.

The truth is in the program: its optimizers are odometers, so the weights show the updates of all
steps, and a log in variables of the program has a row for each step. Whether something was built
while the optimizer was wrapped is known when Python builds it. AutoGraph converts the methods of
`Run` as it converts code of users, so they are written for it.
"""

import gc
import re
import shutil
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from fuzz.batch import Node, Updates, counted, differ, main, require
from hypothesis import assume, strategies as st
from support.libraries import keras2, keras3, with_loss_scale
from support.odometers import KINDS, ODOMETERS, raw, read
from support.saved import assert_saved

import tracer

tf.get_logger().setLevel("ERROR")
CPU = tf.config.list_physical_devices("CPU")[0]


class Function(NamedTuple):
    """A `tf.function`."""

    body: tuple[Node, ...]
    autograph: bool = False
    jit: bool = False


class Optimizer(NamedTuple):
    """The root optimizer of a program, from the inside out."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    override: tuple[Node, ...] = ()
    """What its `apply_gradients` does; nothing: it is not overridden."""
    inner: bool = False
    """Whether it has a second one in an attribute, `inner`."""
    fails: str = ""
    """`fuse`: its updates can be made to fail; `trip`: its apply methods can be made to raise."""
    loss_scale: bool = False


class Program(NamedTuple):
    """Optimizers, functions, and what is done with them. The words are the methods of `Run`."""

    optimizer: Optimizer
    functions: tuple[Function, ...]
    actions: tuple[Node, ...]
    variables: str = "ab"
    other: bool = False
    """Whether there is a second root, `other`, of the same kind."""
    strategy: str = ""
    recorded: bool = False
    """Whether `tracer.record` traces it, not `tracer.wrap`."""

    def all_in(self, *bodies: tuple[Node, ...]) -> Iterator[Node]:
        """All statements of some bodies, with those of the functions that they call."""
        for node in (n for body in bodies for statement in body for n in statement.walk()):
            yield node
            if node.does == "call":
                yield from self.all_in(self.functions[node.to[0]].body)


# What is drawn.

SHAPES = ("plain", "plain", "loss scale", "options", "override", "override", "inner")
THEMES = (
    *("company", "company", "branches", "gradients", "host", "late", "late", "between"),
    *("fuse", "trip", "XLA", "OneDevice", "Mirrored"),
)
AROUND = {
    "fuse": ("branch",),
    "branches": ("branch", "branch", "loop", "loop"),
    "gradients": ("recompute",),
    "host": ("host",),
    "XLA": ("branch", "loop"),
}
"""What the steps of a theme may stand in."""
CLIPPED = (("clipnorm", 1.0), ("global_clipnorm", 1.0))
OPTIONS: dict[str, Any] = {
    "legacy": (*CLIPPED, ("clipvalue", 0.5)),
    "keras2": (*CLIPPED, ("use_ema", True)),
    "keras3": (*CLIPPED, ("use_ema", True)),
}


def programs() -> st.SearchStrategy[Program]:
    """Programs that TensorFlow can run."""
    return st.builds(lambda random: Maker(random).program(), st.randoms(use_true_random=False))


class Maker:
    """Draws the parts of one program."""

    def __init__(self, random: Random) -> None:
        self.random, self.choice = random, random.choice
        self.kind, self.shape, self.theme = map(self.choice, (KINDS, SHAPES, THEMES))
        if self.kind == "keras3" and keras3 is None:
            self.kind = "keras2"
        self.variables = "abc"[: self.choice((1, 2, 2, 3))]
        self.functions: list[Function] = []
        self.strategy = self.theme if self.theme in ("OneDevice", "Mirrored") else ""
        if self.theme in ("late", "between") and self.chance(20):
            self.strategy = self.choice(("OneDevice", "Mirrored"))
        if self.shape == "inner" and (self.theme == "XLA" or self.strategy == "Mirrored"):
            self.shape = "override"
        self.other = not self.strategy and self.chance(15)
        self.recorded = not self.other and self.chance(15)
        self.options = self.drawn_options()

    def chance(self, percent: int) -> bool:
        return self.random.randint(0, 99) >= 100 - percent

    def insert(self, actions: list[Node], new: Node, first: int = 0) -> int:
        at = self.random.randint(first, len(actions))
        actions.insert(at, new)
        return at

    def program(self) -> Program:
        optimizer = Optimizer(
            self.kind,
            self.options,
            self.override(),
            self.shape == "inner",
            self.theme if self.theme in ("fuse", "trip") else "",
            self.shape == "loss scale",
        )
        for _ in range(self.choice((1, 2, 2, 3))):
            jit = self.theme == "XLA" and self.chance(60)
            self.functions.append(Function(self.body(), self.chance(30), jit))
        actions = self.actions()
        functions = tuple(self.functions)
        last = self.variables, self.other, self.strategy, self.recorded
        return Program(optimizer, functions, (*actions, Node("look")), *last)

    def drawn_options(self) -> tuple[tuple[str, Any], ...]:
        if self.shape != "options" and (self.shape == "plain" or not self.chance(25)):
            return ()
        choices = [*OPTIONS.get(self.kind, ())]
        if self.kind == "keras3" and not self.strategy and self.theme != "fuse":
            choices += [("gradient_accumulation_steps", 2)] * 3
        return (self.choice(choices),) if choices else ()

    def override(self) -> tuple[Node, ...]:
        ways = {"override": ("super", "own", "own"), "inner": ("super", "inner")}.get(self.shape)
        if self.shape == "loss scale" and self.theme != "Mirrored" and self.chance(30):
            ways = ("super",)
        if ways is None:
            return ()
        ways = ("super",) if self.strategy and self.shape == "override" else ways
        transforms = "all", "first", "reversed"
        parts = [
            Node(self.choice(ways), (self.choice(transforms),))
            for _ in range(self.choice((1, 1, 2)))
        ]
        calling = ("company", "branches", "late", "fuse", "trip", "OneDevice")
        apart = self.strategy == "Mirrored" or (self.strategy and self.kind in ("legacy", "v1"))
        if self.theme in calling and not apart and self.chance(60):
            body = Node("direct", ("base", self.choice(self.variables)))
            if self.shape == "inner" and self.chance(70):
                body = Node("step", ("inner", self.pairs(), "one", "apply_gradients"))
            elif self.other and self.chance(40):
                body = Node("step", ("other", self.pairs(), "one", "apply_gradients"))
            if self.theme == "company" and self.chance(15):
                body = Node("host", (), (body,))
            self.functions.append(Function((body,)))
            alone = self.shape != "loss scale" and self.chance(30)
            parts = [*([] if alone else parts), Node("call", (0, 0, 0))]
        return tuple(parts)

    def pairs(self) -> tuple[tuple[str, str], ...]:
        names = list(self.variables)
        if self.chance(30):
            names = self.random.sample(names, self.random.randint(1, len(names)))
        option = self.options[0][0] if self.options else ""
        densified = "clip" in option and (self.strategy or self.kind == "keras3")
        dense = densified or "accumulation" in option or self.theme in ("XLA", "fuse")
        kinds = ["dense"] * 4 + ([] if dense else ["sparse"])
        found = [(name, self.choice(kinds)) for name in names]
        if len(found) > 1 and self.shape in ("plain", "options") and self.chance(10):
            found[-1] = (found[-1][0], "none")
        return tuple(found)

    def step(self) -> Node:
        optimizer = "o"
        if self.other and self.chance(30):
            optimizer = "other"
        elif self.shape == "inner" and self.chance(30):
            optimizer = "inner"
        if self.chance(10) and not self.strategy:
            name = "base" if optimizer == "o" else optimizer
            return Node("direct", (name, self.choice(self.variables)))
        value = "one"
        if self.shape == "loss scale" and optimizer == "o":
            value = self.choice(("one", "one", "inf", "odd"))
        alone = self.kind == "keras3" and self.shape != "override" and self.chance(15)
        method = "apply" if alone else "apply_gradients"
        return Node("step", (optimizer, self.pairs(), value, method))

    def body(self, depth: int = 2) -> tuple[Node, ...]:
        return tuple(self.statement(depth) for _ in range(self.choice((1, 1, 2))))

    def statement(self, depth: int) -> Node:
        if depth and self.functions and self.chance(40):
            return self.call()
        choices = AROUND.get(self.theme, ())
        if not depth or not choices or self.chance(50):
            return self.step()
        what = self.choice(choices)
        if what == "host" and "gradient_accumulation_steps" in str(self.options):
            return self.step()  # the order decides which gradients are added up
        to: tuple[Any, ...] = ()
        if what == "loop":
            to = self.random.randint(1, 5), self.random.randint(1, 6)
        elif what == "recompute":
            return Node(what, (self.chance(60),), (self.step(),))
        return Node(what, to, self.body(depth - 1))

    def call(self) -> Node:
        key = self.random.randint(1, 2) if self.chance(20) else 0
        shift = self.random.randint(1, 3) if self.chance(30) else 0
        return Node("call", (self.random.randrange(len(self.functions)), shift, key))

    def actions(self) -> list[Node]:
        actions = [self.action() for _ in range(self.random.randint(3, 7))]
        what = self.choice(("collect", "restore", "unwrap")) if self.theme == "between" else ""
        first = [Node("wrap", (root, True)) for root in ("o", "other")[: 1 + self.other]]
        if self.theme == "late":
            for wrap in first:
                at = self.insert(actions, self.late(wrap), first=1)
            if self.chance(50) and not self.other:
                what, first = "unwrap", []
            first = []
        if what == "unwrap" and not self.recorded:
            at = at if self.theme == "late" else -1
            at = self.insert(actions, Node("unwrap", ("o", self.chance(40))), first=at + 1)
            self.insert(actions, self.late(Node("wrap", ("o", True))), first=at + 1)
        elif what == "restore":
            at = self.insert(actions, Node("save"))
            self.insert(actions, Node("restore"), first=at + 1)
        elif what == "collect":
            self.insert(actions, Node("collect"))
        for _ in range(2 if self.theme in ("fuse", "trip") else 0):
            at = self.random.randint(0, len(actions) - 1)
            limits = (Node("limit", (number,)) for number in (self.random.randint(0, 3), -1))
            actions[at:at] = [next(limits), actions[at], next(limits)]
        if self.theme in ("late", "company", "between") and self.chance(30):
            self.insert(actions, Node("trace", (self.random.randrange(len(self.functions)),)))
        while self.chance(40):
            self.insert(actions, Node("look"))
        return [*first, *actions]

    def action(self) -> Node:
        if self.chance(65):
            return self.call()
        if self.strategy == "Mirrored" and self.chance(5):
            return Node("direct", ("base", self.choice(self.variables)))
        return self.statement(2)

    def late(self, wrap: Node) -> Node:
        """Most times what used the optimizer is traced again."""
        return wrap._replace(to=(wrap.to[0], self.recorded or not self.chance(30)))


# What ran.

ROWS = 250
"""How many steps a program may have; one with more is not drawn."""


class Log:
    """A row for each step of a root, on each device; row 0 has what ran outside of steps."""

    def __init__(self, variables: str, devices: int) -> None:
        kinds = ("dense", "sparse")
        self.columns = [("begun", "", True), ("begun", "", False), ("ended", "", True)]
        self.columns += [
            (v, kind, seen) for v in variables for kind in kinds for seen in (False, True)
        ]
        size = ROWS * len(self.columns)
        self.places = [
            [tf.Variable(tf.zeros(size, tf.int32), trainable=False), *map(_number, (0, 0))]
            for _ in range(devices)
        ]

    def here(self) -> Any:
        """The cells, the rows, and how deep in steps it is, on the device that this runs on."""
        second = len(self.places) > 1 and tf.constant(0).device.endswith(":1")
        return self.places[second]

    def add(self, column: tuple[str, str, bool], amount: Any = 1) -> Any:
        cells, rows, depth = self.here()
        row = rows * tf.cast(depth > 0, tf.int32)
        at = row * len(self.columns) + self.columns.index(column)
        return cells.assign_add(tf.one_hot(at, ROWS * len(self.columns), dtype=tf.int32) * amount)

    def begin(self, seen: bool) -> None:
        _, rows, depth = self.here()
        depth.assign_add(1)
        is_outermost = tf.cast(tf.equal(depth, 1), tf.int32)
        rows.assign_add(is_outermost)
        self.add(("begun", "", seen), is_outermost)

    def end(self) -> None:
        depth = self.here()[-1]
        self.add(("ended", "", True), tf.cast(tf.equal(depth, 1), tf.int32))
        depth.assign_sub(1)

    def leave(self) -> None:
        """No step runs any more, though one may have failed."""
        for *_, depth in self.places:
            depth.assign(0)

    def ran(self) -> "Ran":
        """What it says."""
        found = Ran()
        for replica, (cells, rows, _) in enumerate(self.places):
            assume(int(rows) < ROWS)
            steps: list[Updates] = []
            table = cells.numpy().reshape(ROWS, -1)[: int(rows) + 1]
            for number, values in enumerate(table.tolist()):
                row = dict(zip(self.columns, values, strict=True))
                begun, missed, ended = (row.pop(column) for column in self.columns[:3])
                of: dict[bool, Updates] = {False: Counter(), True: Counter()}
                for (variable, kind, seen), times in row.items():
                    of[bool(seen)][variable, kind, replica] += times
                found.missed += missed + of[False].total()
                found.all += of[False] + of[True]
                if not number:
                    found.outside += of[True]
                elif ended or (+of[True] + of[False]):
                    found.all_steps += not replica
                    found.loose |= bool(missed and +of[True])
                    if begun:
                        steps.append(of[True])
            for number, step in enumerate(steps):
                if not replica:
                    found.steps.append(Counter())
                found.steps[number] += step
        return found


def _number(value: int) -> Any:
    return tf.Variable(value, trainable=False)


@dataclass
class Ran:
    """What ran of a root; what was built while it was not wrapped is missed."""

    steps: list[Updates] = field(default_factory=list)
    outside: Updates = field(default_factory=Counter)
    all: Updates = field(default_factory=Counter)
    all_steps: int = 0
    missed: int = 0
    loose: bool = False
    """Whether a missed step has updates that are counted, so nobody knows what is right."""


def faults(run: "Run", name: str, trace: Any) -> Iterator[str]:
    """What a trace says otherwise than what ran."""
    program, ran = run.program, run.logs[name].ran()
    found = counted(trace, run.variables, ("kind", "replica"))
    if not trace.complete:
        overridden = bool(program.optimizer.override)
        past = overridden and ran.all_steps and not (sum(ran.steps, Counter()) + ran.outside)
        hosts = any(n.does == "host" for n in program.all_in(program.optimizer.override))
        older = any(n.does == "unwrap" or n.to[1:] == (False,) for n in program.actions)
        if not (run.may[name] or run.must[name] or past or hosts or older or run.fails):
            yield f"said to be incomplete, and was not: {trace.notes}"
        if more := found[0] - ran.all:
            yield f"incomplete, but with more than ran: {more}"
        if trace.steps > ran.all_steps:
            yield f"incomplete, but {trace.steps} steps of {ran.all_steps}"
        return
    if run.must[name]:
        yield "complete, but what was built before `wrap` ran"
    elif not ran.loose:
        nodes = list(program.all_in(*(f.body for f in program.functions)))
        in_steps = any(n.does == "host" for n in program.all_in(program.optimizer.override))
        if in_steps:  # counted as called by the program itself: see docs/limits.md
            whole = sum(ran.steps, ran.outside)
            yield "" if found[0] == whole else f"updates {found[0]}, and {whole} ran"
        else:
            ordered = not any(node.does == "host" for node in nodes)
            yield differ(trace, found, ran.steps, ran.outside, ordered=ordered)
        if len(set(trace.steps_by_replica().values())) > 1:
            yield f"steps of replicas {trace.steps_by_replica()}"


# What runs a program.


def make_devices() -> None:
    """Let there be three devices, if TensorFlow has not started."""
    if tf.config.get_logical_device_configuration(CPU) is None:
        devices = [tf.config.LogicalDeviceConfiguration()] * 3
        tf.config.set_logical_device_configuration(CPU, devices)


class Tripped(Exception):
    """What an apply method raises when `limit` says so."""


def gradient(kind: str, value: str = "one", i: Any = None) -> Any:
    """A gradient; `odd` ones are infinite where `i` is odd."""
    if kind == "none":
        return None
    factor: Any = 1.0
    if value == "inf":
        factor = tf.cast(i, tf.float32) * 0.0 + np.inf  # no constant, which TensorFlow would fold
    elif value == "odd":
        factor = tf.where(i % 2 == 1, np.inf, 1.0)
    if kind == "dense":
        return tf.ones(2) * factor
    return tf.IndexedSlices(tf.ones(2) * factor, tf.constant([1, 1]), tf.constant([2]))


def direct(kind: str, optimizer: Any, gradient: Any, variable: Any) -> Any:
    """Call the apply method of `optimizer` itself."""
    if kind == "keras3":
        done = optimizer.update_step(gradient, raw(variable), 0.1)
    elif kind == "keras2":
        done = optimizer.update_step(gradient, variable)
    elif isinstance(gradient, tf.IndexedSlices):
        done = optimizer._resource_apply_sparse(gradient.values, variable, gradient.indices)
    else:
        done = optimizer._resource_apply_dense(gradient, variable)
    return done


def subclass(base: Any, apply: Callable[..., Any]) -> Any:
    """A class whose apply methods do `apply(optimizer, kind, variable, inherited)`."""
    names = "update_step", "_resource_apply_dense", "_resource_apply_sparse"

    def method(name: str) -> Any:
        def call(self: Any, gradient: Any, variable: Any, *rest: Any, **options: Any) -> Any:
            def inherited() -> Any:
                return getattr(super(made, self), name)(gradient, variable, *rest, **options)

            is_sparse = "sparse" in name or isinstance(gradient, tf.IndexedSlices)
            return apply(self, "sparse" if is_sparse else "dense", variable, inherited)

        return call

    members = {name: method(name) for name in names if hasattr(base, name)}
    made = type("Changed", (base,), members)
    return made


class Run:
    """A program that runs, with the tracer or without."""

    def __init__(self, program: Program, traced: bool) -> None:
        self.program, self.traced, self.kind = program, traced, program.optimizer.kind
        self.fails = program.optimizer.fails
        self.errors: list[str] = []
        self.weights: list[Any] = []
        self.recording: Any = None
        self.wrapped: set[str] = set()
        self.ever: set[str] = set()
        self.trip = -1
        self.fuse = _number(-1)
        self.notes: Counter[str] = Counter()
        with ExitStack() as self.open:
            self.make_objects()
            self.functions = [self.function(each) for each in program.functions]
            for action in program.actions:
                self.act(action)

    def make_objects(self) -> None:
        program, spec = self.program, self.program.optimizer
        self.roots = ("o", "other") if program.other else ("o",)
        devices = 2 if program.strategy == "Mirrored" else 1
        self.logs = {root: Log(program.variables, devices) for root in self.roots}
        self.may, self.must = dict.fromkeys(self.roots, False), dict.fromkeys(self.roots, False)
        self.strategy: Any = tf.distribute.get_strategy()
        if program.strategy == "OneDevice":
            self.strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        elif program.strategy == "Mirrored":
            to_one = tf.distribute.ReductionToOneDevice()
            self.strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], to_one)
        plain = own = subclass(ODOMETERS[self.kind], self.applying)
        if spec.override:
            own = self.overridden(plain)
        with self.strategy.scope() if program.strategy else nullcontext():
            make = keras3.Variable if self.kind == "keras3" else tf.Variable
            self.variables = {name: make(tf.zeros(2), name=name) for name in program.variables}
            made = self.optimizers = {"base": own(name="own", **dict(spec.options))}
            if spec.inner:
                made["base"].inner = made["inner"] = plain(name="inner")
            made["o"] = made["base"]
            if spec.loss_scale:
                made["o"] = with_loss_scale(self.kind, made["base"])
            if program.other:
                made["other"] = plain(name="other")
            for each in made.values():
                self.build(each)
        self.base = {name: (0, 0) for name in program.variables}  # what a checkpoint changed
        self.checkpoint = tf.train.Checkpoint(**self.variables, o=made["o"])
        self.folder = tempfile.mkdtemp()
        self.open.callback(shutil.rmtree, self.folder)

    def build(self, optimizer: Any) -> None:
        if self.kind in ("keras2", "keras3"):
            optimizer.build(list(self.variables.values()))
            if self.kind == "keras2":
                optimizer._built = True  # which the odometer's own class forgets
        elif self.kind == "legacy":
            assert optimizer.iterations is not None

    def log_of(self, optimizer: str) -> tuple[Log, bool]:
        """The log of an optimizer's root, and whether that is wrapped now."""
        root = "other" if optimizer == "other" else "o"
        return self.logs[root], root in self.wrapped

    def applying(self, optimizer: Any, kind: str, variable: Any, inherited: Any) -> Any:
        """An apply method: counts, and fails if it shall."""
        if self.trip == 0:
            raise Tripped
        self.trip -= 1
        log, seen = self.log_of("other" if optimizer is self.optimizers.get("other") else "o")
        column = (variable.name[0], kind, seen)
        if self.fails == "fuse":
            has_burnt = tf.debugging.assert_none_equal(self.fuse.read_value(), 0)
            with tf.control_dependencies([has_burnt] if has_burnt is not None else []):
                done = inherited()
        else:
            done = inherited()
        with tf.control_dependencies([raw(variable).read_value()]):
            added = log.add(column)
        if self.fails == "fuse":
            with tf.control_dependencies([added]):
                self.fuse.assign_sub(1)
        return done

    def overridden(self, base: Any) -> Any:
        run = self

        class Own(base):  # type: ignore[misc]
            def apply_gradients(self, pairs: Any, *args: Any, **options: Any) -> Any:
                inherited = super().apply_gradients
                return run.overriding(self, inherited, list(pairs), args, options)

        return Own

    def overriding(self, own: Any, inherited: Any, pairs: Any, args: Any, options: Any) -> Any:
        """What an `apply_gradients` does that is overridden."""
        done = []
        for part in self.program.optimizer.override:
            chosen = {"first": pairs[:1], "reversed": pairs[::-1]}.get(part.to[0], pairs)
            if part.does == "super":
                done += [inherited(chosen, *args, **options)]
            elif part.does == "inner":
                done += [own.inner.apply_gradients(chosen)]
            elif part.does == "own":
                for gradient, variable in chosen:
                    if gradient is not None:
                        done += [direct(self.kind, own, gradient, variable)]
            elif part.does == "call":
                self.functions[part.to[0]](tf.constant(0))
        return done[-1] if done else None

    def function(self, spec: Function) -> Any:
        named = {n.to[0] for n in self.program.all_in(spec.body) if n.does in ("step", "direct")}
        uses = [each for name, each in self.optimizers.items() if name in named]
        step, apply = Run.step, direct

        def run(i: Any, key: int = 0) -> None:
            names = uses, step, apply  # as code of users names them: `wrap` reads that
            self.outer(spec.body, spec.autograph, i)
            del names

        return tf.function(run, autograph=spec.autograph, jit_compile=spec.jit or None)

    # Actions.

    def act(self, action: Node) -> None:
        if action.does in ("look", "wrap", "unwrap"):
            if action.does != "look" or self.traced:
                getattr(self, action.does)(*action.to)
            return
        error = ""
        missed = {root: self.logs[root].ran().missed for root in self.roots}
        try:
            self.outer((action,), True, tf.constant(0))
        except Exception as caught:
            *_, last = str(caught).rstrip().splitlines() or [""]  # before it, where it was raised
            error = f"{type(caught).__name__}: {last[:200]}"
        # TensorFlow gives numbers to functions and ops.
        self.errors.append(re.sub(r"0x[0-9a-f]+|[0-9]+", "", error))
        self.weights.append({k: tuple(map(tuple, read(v))) for k, v in self.variables.items()})
        for root, log in self.logs.items():
            log.leave()
            if log.ran().missed > missed[root]:
                self.must[root] |= root in self.wrapped
                self.may[root] |= root in self.ever
        if action.does == "restore":
            now, ran = self.weights[-1], self.all_ran()
            self.base = {
                v: tuple(
                    now[v][0][k] - ran[v, kind, 0] for k, kind in enumerate(("dense", "sparse"))
                )
                for v in now
            }
        self.hold_log()

    def all_ran(self) -> Updates:
        return sum((log.ran().all for log in self.logs.values()), Counter())

    def hold_log(self) -> None:
        """The odometers show what the log says."""
        ran = self.all_ran()
        for name, copies in self.weights[-1].items():
            for replica, copy in enumerate(copies):
                logged = [ran[name, kind, replica] for kind in ("dense", "sparse")]
                shown = [a + b for a, b in zip(logged, self.base[name], strict=True)]
                assert list(copy) == shown, f"the log is wrong: {shown}, and the weights {copy}"

    def wrap(self, optimizer: str, retrace: bool) -> None:
        self.wrapped.add(optimizer)
        self.ever.add(optimizer)
        if self.traced and self.program.recorded:
            self.recording = self.open.enter_context(tracer.record())
        elif self.traced:
            tracer.wrap(self.optimizers[optimizer], retrace=retrace)

    def unwrap(self, optimizer: str, retrace: bool) -> None:
        self.wrapped.discard(optimizer)
        if self.traced:
            tracer.unwrap(self.optimizers[optimizer], retrace=retrace)

    def look(self) -> None:
        for name in self.roots:
            if name in self.ever:
                root = self.optimizers[name]
                trace = self.recording.trace() if self.recording else tracer.trace_of(root)
                require(f"trace of {name}: {each}" for each in faults(self, name, trace) if each)
                assert_saved(trace)
                self.notes[f"complete: {trace.complete}"] += 1

    # Statements. `i` is what branches and gradients depend on.

    def outer(self, body: tuple[Node, ...], autograph: bool, i: Any) -> None:
        """Run statements, those that a strategy wants so on each replica."""
        for statement in body:
            if self.program.strategy and statement.does in ("step", "branch", "loop"):
                self.strategy.run(partial(self.block, (statement,), autograph), args=(i,))
            else:
                self.block((statement,), autograph, i)

    def block(self, body: tuple[Node, ...], autograph: bool, i: Any) -> Any:
        for statement in body:
            getattr(self, statement.does)(*statement.to, *statement.parts, autograph=autograph, i=i)
        return i

    def step(self, name: str, pairs: Any, value: str, method: str, autograph: bool, i: Any) -> None:
        gradients = [gradient(kind, value, i) for _, kind in pairs]
        variables = [self.variables[variable] for variable, _ in pairs]
        optimizer, (log, seen) = self.optimizers[name], self.log_of(name)
        log.begin(seen)
        if method == "apply":
            optimizer.apply(gradients, variables)
        else:
            optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))
        with tf.control_dependencies([raw(each).read_value() for each in variables]):
            log.end()

    def direct(self, name: str, variable: str, autograph: bool, i: Any) -> None:
        apply = partial(direct, self.kind, self.optimizers[name], gradient("dense"))
        if self.program.strategy == "Mirrored":
            self.strategy.extended.update(raw(self.variables[variable]), apply, group=False)
        else:
            apply(self.variables[variable])

    def call(self, function: int, shift: int, key: int, autograph: bool, i: Any) -> None:
        if key:
            self.functions[function](i + shift, key)
        else:
            self.functions[function](i + shift if shift else i)

    def branch(self, *branches: Node, autograph: bool, i: Any) -> None:
        """One of the branches, by `i`; the last one may do nothing."""
        if len(branches) > 1:
            bodies = [partial(self.block, (each,), False, i) for each in branches]
            tf.switch_case(i % len(branches), bodies)
        elif autograph:
            if tf.equal(i % 2, 0):
                self.block(branches, autograph, i)
        else:
            tf.cond(tf.equal(i % 2, 0), partial(self.block, branches, autograph, i), lambda: i)

    def loop(self, count: int, stop: int, *body: Node, autograph: bool, i: Any) -> None:
        """`i` is 0, 1, ... and stops before `stop` if that comes before `count`."""
        if autograph:
            for turn in tf.range(count):
                if tf.equal(turn, stop):
                    break
                self.block(body, autograph, turn)
        else:
            limit = min(count, stop)

            def turned(i: Any) -> Any:
                return [self.block(body, autograph, i) + 1]

            tf.while_loop(lambda i: i < limit, turned, [tf.constant(0)])

    def host(self, *body: Node, autograph: bool, i: Any) -> None:
        """A `py_function`; it waits for nothing, and nothing for it, so here the logs do.

        The number of a row is read when cells of it are written, so it waits for both.
        """
        logged = [each for log in self.logs.values() for each in log.here()]
        with tf.control_dependencies([each.read_value() for each in logged]):
            done = tf.py_function(partial(self.block, body, True), [i], tf.int32)
        with tf.control_dependencies([done]):
            for each in logged:
                each.assign_add(tf.zeros_like(each))

    def recompute(self, wanted: bool, *body: Node, autograph: bool, i: Any) -> None:
        """`recompute_grad`: the body runs once, and again if there is a gradient."""

        def again(x: Any) -> Any:
            self.block(body, autograph, i)
            return x * 2.0

        x = tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.recompute_grad(again)(x)
        if wanted:
            tape.gradient(y, x)

    # Those outside of all functions.

    def save(self, autograph: bool, i: Any) -> None:
        self.checkpoint.write(self.folder + "/c")

    def restore(self, autograph: bool, i: Any) -> None:
        self.checkpoint.read(self.folder + "/c")

    def collect(self, autograph: bool, i: Any) -> None:
        gc.collect()

    def limit(self, number: int, autograph: bool, i: Any) -> None:
        """So many updates can be made from here on, or calls; below 0 none fails."""
        if self.fails == "fuse":
            self.fuse.assign(number)
        else:
            self.trip = number

    def trace(self, function: int, autograph: bool, i: Any) -> None:
        self.functions[function].get_concrete_function(i)


def check(program: Program) -> Counter[str]:
    """Run a program twice; raises `Wrong` if the tracer counts wrong or changes it."""
    untraced, traced = Run(program, traced=False), Run(program, traced=True)
    for what in ("errors", "weights"):
        pairs = zip(getattr(untraced, what), getattr(traced, what), strict=True)
        require(
            f"{what} after action {number}: untraced {before}, traced {after}"
            for number, (before, after) in enumerate(pairs)
            if before != after
        )
    seen = traced.notes
    # Their classes live on and hold them: a block of `record` in the next program would find parts.
    vars(untraced).clear()
    vars(traced).clear()
    gc.collect()
    return seen


def clean() -> None:
    """Give the next programs a Keras and a memory that are nearly new."""
    if keras3 is not None:
        keras3.backend.clear_session(free_memory=False)
    keras2.backend.clear_session()
    gc.collect()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    make_devices()
    gc.freeze()  # what was imported is swept no more, by nobody: that took half of the time
    main(programs(), check, clean)
