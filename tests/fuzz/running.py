"""Runs a program with TensorFlow, and notes after each action the weights, errors and traces.

AutoGraph converts the methods of `Run` as it converts code of users, so they are written for it.
"""

import gc
import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from fuzz import programs as p
from support.libraries import keras3, with_loss_scale
from support.odometers import ODOMETERS, raw, read

import tracer

tf.get_logger().setLevel("ERROR")
CPU = tf.config.list_physical_devices("CPU")[0]


def make_devices() -> None:
    """Let there be three devices, if TensorFlow has not started."""
    if tf.config.get_logical_device_configuration(CPU) is None:
        devices = [tf.config.LogicalDeviceConfiguration()] * 3
        tf.config.set_logical_device_configuration(CPU, devices)


class Tripped(Exception):
    """What an apply method raises when `Limit` says so."""


def gradient(kind: str, value: str = "one", i: Any = None) -> Any:
    """A gradient of a kind and with values as in `Step`."""
    if kind == "none":
        return None
    factor: Any = 1.0
    if value == "inf":
        factor = tf.cast(i, tf.float32) * 0.0 + np.inf  # no constant, which TensorFlow would fold
    elif value != "one":
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
    """A class whose apply methods do `apply(inherited, gradient, variable)`."""
    names = [each for each in ("update_step", "_resource_apply_dense") if hasattr(base, each)]
    if "_resource_apply_dense" in names:
        names = ["_resource_apply_dense", "_resource_apply_sparse"]

    def method(name: str) -> Any:
        def call(self: Any, gradient: Any, variable: Any, *rest: Any, **options: Any) -> Any:
            def inherited() -> Any:
                return getattr(super(made, self), name)(gradient, variable, *rest, **options)

            return apply(inherited, gradient, variable)

        return call

    made = type("Changed", (base,), {name: method(name) for name in names})
    return made


class Run:
    """A program that runs, with the tracer or without."""

    def __init__(self, program: p.Program, traced: bool) -> None:
        self.program, self.traced, self.kind = program, traced, program.optimizer.kind
        self.errors: list[str | None] = []
        self.weights: list[Any] = []
        self.looks: list[dict[str, Any]] = []
        self.recording: Any = None
        self.wrapped: set[str] = set()
        self.limits: dict[str, Any] = {"trip": -1}
        with ExitStack() as self.open:
            self.make_objects()
            self.functions = {each.name: self.function(each) for each in program.functions}
            for action in program.actions:
                self.act(action)

    # Optimizers and variables.

    def make_objects(self) -> None:
        program, spec = self.program, self.program.optimizer
        if spec.fails == "fuse":
            self.limits["fuse"] = tf.Variable(-1)
        self.strategy: Any = tf.distribute.get_strategy()
        if program.strategy == "OneDevice":
            self.strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
        elif program.strategy == "Mirrored":
            to_one = tf.distribute.ReductionToOneDevice()
            self.strategy = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"], to_one)
        plain, own = self.classes()
        with self.strategy.scope() if program.strategy else nullcontext():
            self.variables = {name: self.variable(name) for name in program.variables}
            made = self.optimizers = self.root(own, plain)
            if program.other:
                made["other"] = plain(name="other")
            for each in made.values():
                self.build(each)
        self.roots = {name: made[name] for name in program.roots}
        self.checkpoint = tf.train.Checkpoint(**self.variables, o=made["o"])
        self.folder = tempfile.mkdtemp()
        self.open.callback(shutil.rmtree, self.folder)

    def variable(self, name: str) -> Any:
        return (keras3 if self.kind == "keras3" else tf).Variable(tf.zeros(2), name=name)

    def root(self, own: Any, plain: Any) -> dict[str, Any]:
        """A root optimizer, by the names that statements have for it and what is in it."""
        spec = self.program.optimizer
        base = own(name="own", **dict(spec.options))
        made = {"base": base, "o": base}
        if spec.inner:
            base.inner = made["inner"] = plain(name="inner")
        if spec.loss_scale:
            made["o"] = with_loss_scale(self.kind, base)
        return made

    def build(self, optimizer: Any) -> None:
        if self.kind in ("keras2", "keras3"):
            optimizer.build(list(self.variables.values()))
            if self.kind == "keras2":
                optimizer._built = True  # which the odometer's own class forgets
        elif self.kind == "legacy":
            assert optimizer.iterations is not None

    def classes(self) -> tuple[Any, Any]:
        """The class of all odometers, and that of the root."""
        spec = self.program.optimizer
        plain = own = ODOMETERS[self.kind]
        if spec.fails:
            change = {"fuse": self.fusing, "trip": self.tripping}
            plain = own = subclass(plain, change[spec.fails])
        if spec.override:
            run = self

            class Own(own):  # type: ignore[misc, valid-type]
                def apply_gradients(self, pairs: Any, *args: Any, **options: Any) -> Any:
                    inherited = super().apply_gradients
                    return run.overriding(self, inherited, list(pairs), args, options)

            own = Own
        return plain, own

    def tripping(self, inherited: Any, gradient: Any, variable: Any) -> Any:
        if self.limits["trip"] == 0:
            raise Tripped
        self.limits["trip"] -= 1
        return inherited()

    def fusing(self, inherited: Any, gradient: Any, variable: Any) -> Any:
        fuse = self.limits["fuse"]
        with tf.control_dependencies([tf.debugging.assert_none_equal(fuse.read_value(), 0)]):
            done = inherited()
        fuse.assign_sub(tf.cast(raw(variable).read_value()[0] * 0, tf.int32) + 1)
        return done

    def overriding(self, own: Any, inherited: Any, pairs: Any, args: Any, options: Any) -> Any:
        """What an `apply_gradients` does that is overridden."""
        done = []
        for part in self.program.optimizer.override:
            chosen = part.chosen(pairs)
            if part.what == "super":
                done += [inherited(chosen, *args, **options)]
            elif part.what == "inner":
                done += [own.inner.apply_gradients(chosen)]
            elif part.what == "own":
                for gradient, variable in chosen:
                    if gradient is not None:
                        done += [direct(self.kind, own, gradient, variable)]
            elif part.what == "call":
                self.functions[part.function](tf.constant(0))
        return done[-1] if done else None

    def function(self, spec: p.Function) -> Any:
        text = self.text_of(spec)
        uses = [each for name, each in self.optimizers.items() if f"optimizer='{name}'" in text]
        step, apply = Run.step, direct

        def run(i: Any, key: int = 0) -> None:
            named = uses, step, apply  # as code of users names them: `wrap` reads that
            self.block(spec.body, spec.autograph, i)
            del named

        return tf.function(run, autograph=spec.autograph, jit_compile=spec.jit or None)

    def text_of(self, spec: p.Function) -> str:
        """A function with all that it calls."""
        text = repr(spec.body)
        called = [f for f in self.program.functions if f"Call(function='{f.name}'" in text]
        return text + "".join(map(self.text_of, called))

    # Actions.

    def act(self, action: p.Statement) -> None:
        if action == p.Do("look"):
            self.look()
        elif isinstance(action, p.Wrap):
            if self.traced:
                self.wrap(action)
        else:
            self.attempt(action)

    def attempt(self, action: p.Statement) -> None:
        error = None
        try:
            self.block((action,), True, tf.constant(0))
        except Exception as caught:
            *_, last = str(caught).rstrip().splitlines() or [""]  # before it, where it was raised
            error = f"{type(caught).__name__}: {last[:200]}"
        self.errors.append(error)
        readings = {name: read(each) for name, each in self.variables.items()}
        self.weights.append({k: tuple(tuple(each) for each in v) for k, v in readings.items()})

    def wrap(self, action: p.Wrap) -> None:
        if not self.program.recorded:
            verb = tracer.wrap if action.on else tracer.unwrap
            verb(self.optimizers[action.optimizer], retrace=action.retrace)
            self.wrapped.add(action.optimizer)
        else:
            self.recording = self.open.enter_context(tracer.record())

    def look(self) -> None:
        if self.traced:
            found = {}
            for name, each in self.roots.items():
                if self.recording or name in self.wrapped:
                    trace = self.recording.trace() if self.recording else tracer.trace_of(each)
                    found[name] = counted(trace, self.variables)
            self.looks.append(found)

    # Statements. `i` is what branches and gradients depend on.

    def block(self, body: p.Body, autograph: bool, i: Any) -> Any:
        for statement in body:
            getattr(self, type(statement).__name__.lower())(statement, autograph, i)
        return i

    def step(self, step: p.Step, autograph: bool, i: Any) -> Any:
        gradients = [gradient(kind, step.value, i) for _, kind in step.pairs]
        variables = [self.variables[name] for name, _ in step.pairs]
        optimizer = self.optimizers[step.optimizer]
        if step.method == "apply":
            return optimizer.apply(gradients, variables)
        return optimizer.apply_gradients(list(zip(gradients, variables, strict=True)))

    def direct(self, each: p.Direct, autograph: bool, i: Any) -> None:
        optimizer, variable = self.optimizers[each.optimizer], self.variables[each.variable]
        apply = partial(direct, self.kind, optimizer, gradient("dense"))
        if self.program.strategy == "Mirrored":
            self.strategy.extended.update(raw(variable), apply, group=False)
        else:
            apply(variable)

    def call(self, call: p.Call, autograph: bool, i: Any) -> None:
        if call.key:
            self.functions[call.function](i + call.shift, call.key)
        else:
            self.functions[call.function](i + call.shift if call.shift else i)

    def cond(self, cond: p.Cond, autograph: bool, i: Any) -> None:
        if not autograph:
            then = partial(self.block, cond.then, autograph, i)
            tf.cond(tf.equal(i % 2, 0), then, partial(self.block, cond.otherwise, autograph, i))
        elif tf.equal(i % 2, 0):
            self.block(cond.then, autograph, i)
        else:
            self.block(cond.otherwise, autograph, i)

    def switch(self, switch: p.Switch, autograph: bool, i: Any) -> None:
        branches = [partial(self.block, each, False, i) for each in switch.branches]
        tf.switch_case(i % len(branches), branches)

    def loop(self, loop: p.Loop, autograph: bool, i: Any) -> None:
        if autograph:
            for turn in tf.range(loop.count):
                if tf.equal(turn, loop.stop):
                    break
                self.block(loop.body, autograph, turn)
        else:
            count = min(loop.count, loop.stop)

            def turned(i: Any) -> Any:
                return [self.block(loop.body, autograph, i) + 1]

            tf.while_loop(lambda i: i < count, turned, [tf.constant(0)])

    def host(self, host: p.Host, autograph: bool, i: Any) -> None:
        called = partial(self.block, host.body, True)
        with tf.control_dependencies([tf.py_function(called, [i], tf.int32)]):
            self.block(host.after, autograph, i)

    def map(self, each: p.Map, autograph: bool, i: Any) -> None:
        tf.map_fn(partial(self.block, each.body, False), tf.range(each.count))

    def recompute(self, recompute: p.Recompute, autograph: bool, i: Any) -> None:
        def again(x: Any) -> Any:
            self.block(recompute.body, autograph, i)
            return x * 2.0

        self.tape(tf.recompute_grad(again), recompute.gradient)

    def custom(self, custom: p.Custom, autograph: bool, i: Any) -> None:
        def shaped(x: Any) -> Any:
            self.block(custom.forward, autograph, i)

            def back(upstream: Any, variables: Any = None) -> Any:
                self.block(custom.backward, autograph, i)
                return (upstream, [None] * len(variables)) if variables else upstream

            return x * 2.0, back

        self.tape(tf.custom_gradient(shaped), True)

    def tape(self, function: Any, wanted: bool) -> None:
        x = tf.constant(1.0)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        if wanted:
            tape.gradient(y, x)

    def replicas(self, each: p.Replicas, autograph: bool, i: Any) -> None:
        self.strategy.run(partial(self.block, each.body, autograph), args=(i,))

    def do(self, do: p.Do, autograph: bool, i: Any) -> None:
        if do.what == "save":
            self.checkpoint.write(self.folder + "/c")
        elif do.what == "restore":
            self.checkpoint.read(self.folder + "/c")
        else:
            gc.collect()

    # Those outside of all functions.

    def limit(self, limit: p.Limit, autograph: bool, i: Any) -> None:
        if limit.of == "fuse":
            self.limits["fuse"].assign(limit.number)
        else:
            self.limits["trip"] = limit.number

    def graphs(self, graphs: p.Graphs, autograph: bool, i: Any) -> None:
        self.functions[graphs.function].get_concrete_function(i)


def counted(trace: Any, variables: dict[str, Any]) -> dict[str, Any]:
    """What a trace says: steps on each replica, updates in all and in each step."""
    totals: dict[Any, int] = {}
    by_step: dict[int, dict[Any, int]] = {}
    for name, variable in variables.items():
        try:
            whole = trace.count("updates", by=("kind", "replica"), variable=variable)
            split = trace.count("updates", by=("step", "kind", "replica"), variable=variable)
        except tracer.UnknownName:
            continue
        for (kind, replica), number in whole.items():
            totals[name, kind, replica] = number
        for (step, kind, replica), number in split.items():
            if number:
                by_step.setdefault(step, {})[name, kind, replica] = number
    try:
        outer = trace.executions("apply_gradients")
    except tracer.UnknownName:
        outer = 0
    with tempfile.TemporaryDirectory() as folder:
        trace.save(folder + "/trace.json")
        loaded = tracer.load(folder + "/trace.json") == trace
    return {
        "complete": trace.complete,
        "notes": list(trace.notes),
        "steps": trace.steps,
        "replicas": sorted(set(trace.steps_by_replica().values())),
        "updates": {key: n for key, n in totals.items() if n},
        "all": trace.updates(),
        "by_step": by_step,
        "apply_gradients": outer,
        "loaded": loaded,
    }
