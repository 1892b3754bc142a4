"""What a random program is: some optimizers, some functions and what is done with them.

A program is data, so that three can read it: `oracle` works out what must be counted, `shrinking`
leaves parts out, and `source` writes the plain Python that is run, and printed if it fails.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

GradientKind = Literal["dense", "sparse", "none"]
Value = Literal["one", "inf", "odd", "fed"]
"""What is in the gradients of a step; where `i` is odd, `odd` ones are infinite, and `fed` ones
never come."""


class Statement:
    """Something that a program does, in a function or outside of all."""


Body = tuple[Statement, ...]


@dataclass(frozen=True)
class Step(Statement):
    """Call `apply_gradients` (or `apply`) of an optimizer with a gradient for each variable."""

    optimizer: str
    pairs: tuple[tuple[str, GradientKind], ...]
    value: Value = "one"
    method: str = "apply_gradients"


@dataclass(frozen=True)
class Direct(Statement):
    """Call the apply method of an optimizer itself."""

    optimizer: str
    variable: str
    kind: GradientKind = "dense"


@dataclass(frozen=True)
class Call(Statement):
    """Call a function; `key` is a Python number, so that each one is another graph."""

    function: str
    shift: int = 0
    key: int = 0


@dataclass(frozen=True)
class Cond(Statement):
    """One of two branches, by whether `i` is even."""

    then: Body
    otherwise: Body


@dataclass(frozen=True)
class Switch(Statement):
    """One of some branches, by `i`."""

    branches: tuple[Body, ...]


@dataclass(frozen=True)
class Loop(Statement):
    """A loop that sets `i` to 0, 1, ... and stops before `stop` if that comes before `count`."""

    count: int
    stop: int
    body: Body


@dataclass(frozen=True)
class Host(Statement):
    """A `py_function`, and what comes after it."""

    body: Body
    after: Body = ()


@dataclass(frozen=True)
class Map(Statement):
    """A `map_fn` that sets `i` to 0, 1, ..."""

    count: int
    body: Body


@dataclass(frozen=True)
class Recompute(Statement):
    """`recompute_grad`: the body runs once, and again if there is a gradient."""

    body: Body
    gradient: bool


@dataclass(frozen=True)
class Custom(Statement):
    """A `custom_gradient` that does something on its way there, and on its way back."""

    forward: Body
    backward: Body


@dataclass(frozen=True)
class Replicas(Statement):
    """`strategy.run` of the body."""

    body: Body


@dataclass(frozen=True)
class Meet(Statement):
    """Wait here for the other thread, if there is one."""


# What is done outside of all functions only.


@dataclass(frozen=True)
class Wrap(Statement):
    """Begin to trace an optimizer, or go on; functions are traced anew if `retrace`."""

    optimizer: str
    retrace: bool = True


@dataclass(frozen=True)
class Unwrap(Statement):
    """Trace an optimizer no more; functions with counters are traced anew if `retrace`."""

    optimizer: str
    retrace: bool = False


@dataclass(frozen=True)
class Look(Statement):
    """Read the traces of all optimizers that were wrapped."""


@dataclass(frozen=True)
class Save(Statement):
    """Write a checkpoint of variables and optimizer."""


@dataclass(frozen=True)
class Restore(Statement):
    """Read it again."""


@dataclass(frozen=True)
class Copy(Statement):
    """Make another optimizer of the config, which is not traced, and do a step with it."""

    variable: str


@dataclass(frozen=True)
class Fuse(Statement):
    """From here on `updates` updates can be made and the next one fails; below 0, none fails."""

    updates: int


@dataclass(frozen=True)
class Trip(Statement):
    """From here on `calls` calls of apply methods can be made and the next one raises."""

    calls: int


@dataclass(frozen=True)
class Trace(Statement):
    """Trace a function to a graph, and do not run it."""

    function: str


@dataclass(frozen=True)
class Hold(Statement):
    """Get the `ConcreteFunction` of a function now, and hold it."""

    function: str


@dataclass(frozen=True)
class Held(Statement):
    """Call the one that is held, whatever its function was traced to since."""

    function: str
    shift: int = 0


@dataclass(frozen=True)
class Collect(Statement):
    """Collect the garbage."""


@dataclass(frozen=True)
class Renew(Statement):
    """Make a function anew: it has no graphs then; graphs that called the old one go on to."""

    function: str


@dataclass(frozen=True)
class Build(Statement):
    """Build a train op in the graph of a session."""

    name: str
    step: Step


@dataclass(frozen=True)
class Fetch(Statement):
    """Run train ops in one call of the session."""

    names: tuple[str, ...]


@dataclass(frozen=True)
class FetchPart(Statement):
    """Run only the op of a train op that updates one of its variables."""

    name: str
    variable: str


@dataclass(frozen=True)
class Threads(Statement):
    """Each body on a thread of its own, at the same time."""

    bodies: tuple[Body, ...]
    times: int = 1


@dataclass(frozen=True)
class Function:
    """A `tf.function`."""

    name: str
    body: Body
    autograph: bool = False
    jit: bool = False


Transform = Literal["all", "first", "reversed"]


@dataclass(frozen=True)
class Part:
    """What an override of `apply_gradients` does with its pairs; those after `own` need none."""

    what: Literal["super", "inner", "own", "call", "meet", "look"]
    transform: Transform = "all"
    function: str = ""


@dataclass(frozen=True)
class Optimizer:
    """The root optimizer of a program, from the inside out."""

    kind: str
    options: tuple[tuple[str, Any], ...] = ()
    override: tuple[Part, ...] = ()
    """What its `apply_gradients` does; nothing: it is not overridden."""
    applying: tuple[str, ...] = ()
    """The functions that its apply method calls after it has updated."""
    inner: bool = False
    """Whether it has a second one in an attribute, `inner`."""
    fused: bool = False
    """Whether its updates can be made to fail, by `Fuse`."""
    waiting: bool = False
    """Whether its updates wait for their gradients, as those of other optimizers do."""
    tripping: bool = False
    """Whether its apply methods can be made to raise, by `Trip`."""
    loss_scale: bool = False
    built: bool = True


@dataclass(frozen=True)
class Program:
    """All of it. `actions` are done one after the other."""

    optimizer: Optimizer
    other: bool
    """Whether there is a second root, `other`, of the same kind."""
    strategy: Literal["", "OneDevice", "Mirrored"]
    variables: tuple[str, ...]
    functions: tuple[Function, ...]
    actions: Body
    ways: tuple[str, ...] = ()
    """What it was made of, for the count of cells."""
    session: bool = False
    """Whether all is in a graph that a v1 session runs."""
    recorded: bool = False
    """Whether `tracer.record` traces it, not `tracer.wrap`."""
    resumed: bool = False
    """Whether the checkpoint that is restored is that of an earlier training, of 3 steps."""
    shared: bool = False
    """Whether both roots have the same `iterations`."""
    rows: int = 0
    """How many rows the rings have; 0: as many as ever."""

    @property
    def roots(self) -> tuple[str, ...]:
        """The optimizers that have a trace of their own."""
        return ("o", "other") if self.other else ("o",)

    @property
    def replicas(self) -> int:
        """How many replicas each step has."""
        return 2 if self.strategy == "Mirrored" else 1


def parts_of(value: Any) -> Iterator[Any]:
    """A program and everything in it, at any depth."""
    yield value
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from parts_of(getattr(value, field.name))
    elif isinstance(value, tuple):
        for each in value:
            yield from parts_of(each)


def children_of(statement: Statement) -> Iterator[Statement]:
    """The statements that are directly in a statement."""
    for field in fields(statement):  # type: ignore[arg-type]
        todo = [getattr(statement, field.name)]
        while todo:
            value = todo.pop(0)
            if isinstance(value, Statement):
                yield value
            elif isinstance(value, tuple):
                todo += value


def has(value: Any, *kinds: type) -> bool:
    """Whether something of these classes is in it."""
    return any(isinstance(each, kinds) for each in parts_of(value))


def names_of(functions: Iterable[Function], first: Iterable[str]) -> set[str]:
    """The names of these functions and of all that they reach."""
    by_name = {each.name: each for each in functions}
    todo, found = list(first), set()
    while todo:
        name = todo.pop()
        if name not in found:
            found.add(name)
            todo += [each.function for each in parts_of(by_name[name]) if isinstance(each, Call)]
    return found


def without_unused(program: Program) -> Program:
    """The program without the functions that it never calls."""
    optimizer = program.optimizer
    used_by = (Call, Renew, Trace, Hold, Held)
    called = [each.function for each in parts_of(program.actions) if isinstance(each, used_by)]
    called += [part.function for part in optimizer.override if part.function]
    used = names_of(program.functions, [*called, *optimizer.applying])
    return replace(
        program, functions=tuple(each for each in program.functions if each.name in used)
    )


# The program as Python.

PREAMBLE = '''
import contextlib
import gc
import os
import shutil
import sys
import tempfile
import threading

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "16")

import tensorflow as tf
from support.libraries import keras3, with_loss_scale
from support.odometers import ODOMETERS, raw, read, reading

import tracer
from tracer.backends.tensorflow import ledger

tf.get_logger().setLevel("ERROR")
CPU = tf.config.list_physical_devices("CPU")[0]
if tf.config.get_logical_device_configuration(CPU) is None:
    tf.config.set_logical_device_configuration(CPU, [tf.config.LogicalDeviceConfiguration()] * 3)


def dense(value=1.0):
    return tf.ones(2) * value


def sparse(value=1.0):
    return tf.IndexedSlices(tf.ones(2) * value, tf.constant([1, 1]), tf.constant([2]))


def endless(i):
    return tf.cast(i, tf.float32) * 0.0 + float("inf")  # no constant, which TensorFlow would fold


def fed(i):
    return tf.debugging.check_numerics(odd(i), "no gradient")


def odd(i):
    return tf.where(i % 2 == 1, float("inf"), 1.0)


class Tripped(Exception):
    """What an apply method raises when it is told to."""


def direct(kind, optimizer, gradient, variable):
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


class Diary:
    """What happened in a run of the program: after each action the weights, errors and traces."""

    def __init__(self, traced):
        self.traced = traced
        self.variables = {}
        self.held = {}
        self.weights = []
        self.errors = []
        self.looks = []
        self.barrier = None
        self.session = None
        self.recording = None
        self.wrapped = set()
        self.open = contextlib.ExitStack()

    def read(self, variable):
        if self.session is None:
            return tuple(tuple(each) for each in read(variable))
        return (tuple(reading(self.session.run(variable))),)

    def do(self, action):
        error = None
        try:
            action()
        except Exception as caught:
            *_, last = str(caught).rstrip().splitlines() or [""]  # before it, where it was raised
            error = f"{type(caught).__name__}: {last[:200]}"
        self.errors.append(error)
        self.weights.append({name: self.read(each) for name, each in self.variables.items()})

    def look(self, optimizers):
        if self.traced:
            found = {}
            for name, each in optimizers.items():
                if self.recording or name in self.wrapped:
                    trace = self.recording.trace() if self.recording else tracer.trace_of(each)
                    found[name] = counted(trace, self.variables)
            self.looks.append(found)

    def look_inside(self, optimizers):
        if tf.executing_eagerly():
            self.look(optimizers)

    def rows(self, number):
        """Let rings have `number` rows until the program ends."""
        if self.traced:
            make = ledger.Ledger.__init__
            self.open.callback(setattr, make, "__defaults__", make.__defaults__)
            make.__defaults__ = (number,)

    def part_of(self, train, variable):
        """The op of a train op that adds to a variable."""
        todo, seen = [train], set()
        while todo:
            op = todo.pop()
            op = getattr(op, "op", op)
            if op not in seen:
                seen.add(op)
                if op.type == "AssignAddVariableOp" and op.inputs[0].name == variable.handle.name:
                    return op
                todo += [*op.control_inputs, *(each.op for each in op.inputs)]

    def wait(self):
        barrier = self.barrier
        if barrier is not None:
            barrier.wait(20)

    def meet(self):
        if tf.executing_eagerly():
            self.wait()
        else:
            tf.py_function(self.wait, [], [])

    def threads(self, *bodies):
        errors, start = [], threading.Barrier(len(bodies))

        def run(body):
            try:
                start.wait(20)
                body()
            except Exception as error:
                errors.append(error)

        self.barrier = threading.Barrier(len(bodies))
        threads = [threading.Thread(target=run, args=(body,)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.barrier = None
        if errors:
            raise errors[0]


def counted(trace, variables):
    """What a trace says: steps on each replica, updates in all and in each step."""
    totals, by_step = {}, {}
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
    return {
        "complete": trace.complete,
        "notes": list(trace.notes),
        "steps": trace.steps,
        "replicas": sorted(set(trace.steps_by_replica().values())),
        "updates": {key: n for key, n in totals.items() if n},
        "all": trace.updates(),
        "by_step": by_step,
        "apply_gradients": outer,
        "loaded": saved_and_loaded(trace) == trace,
    }


def saved_and_loaded(trace):
    with tempfile.TemporaryDirectory() as folder:
        trace.save(folder + "/trace.json")
        return tracer.load(folder + "/trace.json")
'''

TAIL = """

if __name__ == "__main__":
    from pprint import pprint

    untraced, traced = main(False), main(True)
    print("weights and errors as without the tracer:",
          untraced.weights == traced.weights and untraced.errors == traced.errors)
    for number, (expected, found) in enumerate(zip(EXPECTED, traced.looks)):
        for name in expected:
            print(f"--- trace {number} of {name}: expected")
            pprint(expected[name])
            print("--- counted")
            pprint(found.get(name))
"""


def source(program: Program, title: str, expected: object = None) -> str:
    """The program as a Python script that needs only TensorFlow, `tracer` and the odometers."""
    body = _Writer(program).main()
    lines = [f'"""{title}"""', PREAMBLE.strip("\n"), "", "", *body]
    lines += ["", "", f"EXPECTED = {expected!r}"]
    return "\n".join(lines) + TAIL


class _Writer:
    """Writes the function `main` of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.lines: list[str] = []
        self.in_session = False
        self.started = False
        self.depth = 0
        self.number = 0
        self.autograph = True

    def put(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def name(self, stem: str) -> str:
        self.number += 1
        return f"{stem}_{self.number}"

    def main(self) -> list[str]:
        self.put("def main(traced):")
        self.depth += 1
        self.put("diary = Diary(traced)")
        self.put(f"kind = {self.program.optimizer.kind!r}")
        if self.program.rows:
            self.put(f"diary.rows({self.program.rows})")
        self.write_classes()
        self.write_objects()
        for function in self.program.functions:
            self.write_function(function)
        for action in self.program.actions:
            self.write_action(action)
        if self.in_session:
            self.depth -= 1
        self.put("diary.open.close()")
        self.put("return diary")
        return self.lines

    # Optimizers and variables.

    def write_classes(self) -> None:
        optimizer = self.program.optimizer
        if optimizer.fused:
            self.put("fuse = tf.Variable(-1)")
        self.put("")
        base = "ODOMETERS[kind]"
        if optimizer.waiting:
            self.put("")
            self.put(f"class Waiting({base}):")
            self.depth += 1
            for name in self.apply_methods():
                self.put(f"def {name}(self, gradient, variable, *rest, **options):")
                self.put("    with tf.control_dependencies([gradient]):")
                self.put(f"        return super().{name}(gradient, variable, *rest, **options)")
                self.put("")
            self.depth -= 1
            base = "Waiting"
        if optimizer.tripping:
            self.put("trip = [-1]")
            self.put("")
            self.put(f"class Tripping({base}):")
            self.depth += 1
            for name in self.apply_methods():
                self.put(f"def {name}(self, gradient, variable, *rest, **options):")
                self.put("    if trip[0] == 0:")
                self.put("        raise Tripped")
                self.put("    trip[0] -= 1")
                self.put(f"    return super().{name}(gradient, variable, *rest, **options)")
                self.put("")
            self.depth -= 1
            base = "Tripping"
        if optimizer.fused:
            self.put(f"class Fused({base}):")
            self.depth += 1
            for name in self.apply_methods():
                self.put(f"def {name}(self, gradient, variable, *rest, **options):")
                self.put("    with tf.control_dependencies(")
                self.put("        [tf.debugging.assert_none_equal(fuse.read_value(), 0)]")
                self.put("    ):")
                self.put(f"        done = super().{name}(gradient, variable, *rest, **options)")
                self.put(
                    "    fuse.assign_sub(tf.cast(raw(variable).read_value()[0] * 0, tf.int32) + 1)"
                )
                self.put("    return done")
                self.put("")
            self.depth -= 1
            base = "Fused"
        self.base = self.plain = base
        if not (optimizer.override or optimizer.applying):
            return
        self.put(f"class Own({base}):")
        self.depth += 1
        if optimizer.override:
            self.write_override()
        if optimizer.applying:
            for name in self.apply_methods():
                self.put(f"def {name}(self, gradient, variable, *rest, **options):")
                self.put(f"    done = super().{name}(gradient, variable, *rest, **options)")
                for function in optimizer.applying:
                    self.put(f"    {function}(tf.constant(0))")
                self.put("    return done")
                self.put("")
        self.depth -= 1
        self.base = "Own"

    def apply_methods(self) -> Sequence[str]:
        if self.program.optimizer.kind in ("keras2", "keras3"):
            return ("update_step",)
        return ("_resource_apply_dense", "_resource_apply_sparse")

    def write_override(self) -> None:
        self.put("def apply_gradients(self, grads_and_vars, *args, **options):")
        self.put("    pairs, done = list(grads_and_vars), []")
        for part in self.program.optimizer.override:
            pairs = {"all": "pairs", "first": "pairs[:1]", "reversed": "pairs[::-1]"}
            chosen = pairs[part.transform]
            if part.what == "super":
                self.put(f"    done += [super().apply_gradients({chosen}, *args, **options)]")
            elif part.what == "inner":
                self.put(f"    done += [self.inner.apply_gradients({chosen})]")
            elif part.what == "own":
                self.put(f"    for gradient, variable in {chosen}:")
                self.put("        if gradient is not None:")
                self.put("            done += [direct(kind, self, gradient, variable)]")
            elif part.what == "call":
                self.put(f"    {part.function}(tf.constant(0))")
            elif part.what == "look":
                self.put("    diary.look_inside(roots)")
            else:
                self.put("    diary.meet()")
        if self.program.session:
            self.put("    return tf.group(*done)")
        else:
            self.put("    return done[-1] if done else None")
        self.put("")

    def write_objects(self) -> None:
        program, optimizer = self.program, self.program.optimizer
        strategies = {
            "": "tf.distribute.get_strategy()",
            "OneDevice": 'tf.distribute.OneDeviceStrategy("/cpu:0")',
            "Mirrored": "tf.distribute.MirroredStrategy(\n"
            '        ["/cpu:0", "/cpu:1"], '
            "cross_device_ops=tf.distribute.ReductionToOneDevice()\n    )",
        }
        if program.strategy:
            self.put(f"strategy = {strategies[program.strategy]}")
            self.put("with strategy.scope():")
            self.depth += 1
        if program.session:
            self.put("v1 = tf.compat.v1")
            self.put("with tf.Graph().as_default():")
            self.depth += 1
            self.in_session = True
        make = "keras3.Variable" if optimizer.kind == "keras3" else "tf.Variable"
        for name in program.variables:
            made_of = f'{make}(tf.zeros(2), name="{name}")'
            if program.session:
                made_of = f'v1.get_variable("{name}", (2,), initializer=v1.zeros_initializer())'
            self.put(f'{name} = diary.variables["{name}"] = {made_of}')
        options = "".join(f", {name}={value!r}" for name, value in optimizer.options)
        self.put(f'o = base = {self.base}(name="own"{options})')
        odometer = self.plain
        made = ["o"]
        if optimizer.inner:
            self.put(f'base.inner = inner = {odometer}(name="inner")')
            made.append("inner")
        if optimizer.loss_scale:
            self.put("o = with_loss_scale(kind, base)")
        if program.other:
            self.put(f'other = {odometer}(name="other")')
            made.append("other")
        if program.shared:
            self.put("other.iterations = o.iterations")
        if program.resumed:
            made.append("past")
            past = "with_loss_scale(kind, {})" if optimizer.loss_scale else "{}"
            self.put("past = " + past.format(f'{self.base}(name="own"{options})'))
            if optimizer.inner:
                before = "past.inner_optimizer" if optimizer.loss_scale else "past"
                self.put(f'{before}.inner = {odometer}(name="inner")')
        if optimizer.built and not program.session:
            for name in made:
                if optimizer.kind in ("keras2", "keras3"):
                    self.put(f"{name}.build([{', '.join(program.variables)}])")
                    if optimizer.kind == "keras2":
                        self.put(f"{name}._built = True  # which the odometer's own class forgets")
                        if optimizer.loss_scale and name == "o":
                            self.put("base._built = True")
                elif optimizer.kind == "legacy":
                    self.put(f"{name}.iterations")
        if program.strategy:
            self.depth -= 1
        if has(program, Save, Restore):
            found = ", ".join(f"{name}={name}" for name in program.variables)
            self.put(f"checkpoint = tf.train.Checkpoint({found}, o=o)")
            self.put("folder = tempfile.mkdtemp()")
            self.put("diary.open.callback(shutil.rmtree, folder)")
        if program.resumed:
            self.write_past()
        self.put(f"roots = {{{', '.join(f'{name!r}: {name}' for name in program.roots)}}}")
        self.put("")

    def write_past(self) -> None:
        """An earlier training, which wrote the checkpoint."""
        variables = self.program.variables
        found = ", ".join(f"{name}={name}" for name in variables)
        self.put(f"earlier = tf.train.Checkpoint({found}, o=past)")
        self.put("for _ in range(3):")
        self.put(f"    past.apply_gradients([{', '.join(f'(dense(), {n})' for n in variables)}])")
        self.put("earlier.write(folder + '/c')")
        for name in variables:
            self.put(f"raw({name}).assign(tf.zeros(2))")

    # Functions and actions.

    def write_function(self, function: Function) -> None:
        renewed = any(
            isinstance(each, Renew) and each.function == function.name
            for each in parts_of(self.program.actions)
        )
        if renewed:
            self.put(f"def make_{function.name}():")
            self.depth += 1
        options = f"autograph={function.autograph}"
        if function.jit:
            options += ", jit_compile=True"
        self.put(f"@tf.function({options})")
        self.put(f"def {function.name}(i, key=0):")
        self.autograph = function.autograph
        self.write_body(function.body)
        self.put("")
        if renewed:
            self.put(f"return {function.name}")
            self.depth -= 1
            self.put("")
            self.put(f"{function.name} = make_{function.name}()")

    def write_action(self, action: Statement) -> None:
        if isinstance(action, Look):
            self.put("diary.look(roots)")
            return
        if isinstance(action, Wrap | Unwrap):
            verb = "wrap" if isinstance(action, Wrap) else "unwrap"
            usual = action.retrace == isinstance(action, Wrap)
            option = "" if usual else f", retrace={action.retrace}"
            self.put("if traced:")
            if not self.program.recorded:
                self.put(f"    tracer.{verb}({action.optimizer}{option})")
                if verb == "wrap":
                    self.put(f'    diary.wrapped.add("{action.optimizer}")')
            elif verb == "wrap":
                self.put("    diary.recording = diary.open.enter_context(tracer.record())")
            else:
                self.put("    diary.open.close()")
            return
        if isinstance(action, Build):
            self.put(f"{action.name} = \\")
            self.write(action.step)
            self.lines[-2:] = [self.lines[-2].removesuffix("\\") + self.lines[-1].strip()]
            return
        if self.program.session and not self.started:
            self.started = True
            self.put("diary.session = v1.Session()")
            self.put("diary.open.callback(diary.session.close)")
            self.put("diary.session.run(v1.global_variables_initializer())")
        self.autograph = True
        name = self.name("action")
        self.put("")
        self.put(f"def {name}():")
        self.depth += 1
        if not self.program.session:
            self.put("i = tf.constant(0)")
        self.write(action)
        self.depth -= 1
        self.put("")
        self.put(f"diary.do({name})")

    def write_body(self, body: Body) -> None:
        self.depth += 1
        for statement in body:
            self.write(statement)
        if not body:
            self.put("pass")
        self.depth -= 1

    def write_def(self, name: str, body: Body, last: str = "") -> None:
        """A function of `i` that is no `tf.function`."""
        self.put(f"def {name}(i=i):")
        self.write_body(body)
        if last:
            self.put(f"    {last}")

    def write(self, statement: Statement) -> None:
        getattr(self, f"write_{type(statement).__name__.lower()}")(statement)

    def write_step(self, step: Step) -> None:
        value = {"one": "", "inf": "endless(i)", "odd": "odd(i)", "fed": "fed(i)"}[step.value]
        made = {"dense": f"dense({value})", "sparse": f"sparse({value})", "none": "None"}
        if step.method == "apply":
            gradients = ", ".join(made[kind] for _, kind in step.pairs)
            variables = ", ".join(name for name, _ in step.pairs)
            self.put(f"{step.optimizer}.apply([{gradients}], [{variables}])")
        else:
            pairs = ", ".join(f"({made[kind]}, {name})" for name, kind in step.pairs)
            self.put(f"{step.optimizer}.apply_gradients([{pairs}])")

    def write_direct(self, direct: Direct) -> None:
        gradient = f"{direct.kind}()"
        if self.program.strategy == "Mirrored":
            self.put(
                f"strategy.extended.update(raw({direct.variable}), lambda v: "
                f"direct(kind, {direct.optimizer}, {gradient}, v), group=False)"
            )
        else:
            self.put(f"direct(kind, {direct.optimizer}, {gradient}, {direct.variable})")

    def write_call(self, call: Call) -> None:
        shift = f" + {call.shift}" if call.shift else ""
        key = f", {call.key}" if call.key else ""
        self.put(f"{call.function}(i{shift}{key})")

    def write_cond(self, cond: Cond) -> None:
        if self.autograph:
            self.put("if tf.equal(i % 2, 0):")
            self.write_body(cond.then)
            self.put("else:")
            self.write_body(cond.otherwise)
            return
        then, otherwise = self.name("then"), self.name("otherwise")
        self.write_def(then, cond.then, "return 0")
        self.write_def(otherwise, cond.otherwise, "return 0")
        self.put(f"tf.cond(tf.equal(i % 2, 0), {then}, {otherwise})")

    def write_switch(self, switch: Switch) -> None:
        names = [self.name("branch") for _ in switch.branches]
        for name, body in zip(names, switch.branches, strict=True):
            self.write_def(name, body, "return 0")
        self.put(f"tf.switch_case(i % {len(names)}, [{', '.join(names)}])")

    def write_loop(self, loop: Loop) -> None:
        if self.autograph:
            before = self.name("before")
            self.put(f"{before} = i")
            self.put(f"for i in tf.range({loop.count}):")
            self.depth += 1
            self.put(f"if tf.equal(i, {loop.stop}):")
            self.put("    break")
            self.depth -= 1
            self.write_body(loop.body)
            self.put(f"i = {before}")
            return
        name = self.name("turn")
        self.write_def(name, loop.body, "return [i + 1]")
        count = min(loop.count, loop.stop)
        self.put(f"tf.while_loop(lambda i: i < {count}, {name}, [tf.constant(0)])")

    def write_host(self, host: Host) -> None:
        name = self.name("host")
        before, self.autograph = self.autograph, True
        self.write_def(name, host.body, "return i")
        self.autograph = before
        self.put(f"with tf.control_dependencies([tf.py_function({name}, [i], tf.int32)]):")
        self.write_body(host.after)

    def write_map(self, each: Map) -> None:
        name = self.name("each")
        self.write_def(name, each.body, "return i")
        self.put(f"tf.map_fn({name}, tf.range({each.count}))")

    def write_recompute(self, recompute: Recompute) -> None:
        name = self.name("again")
        self.put("x = tf.constant(1.0)")
        self.put("@tf.recompute_grad")
        self.put(f"def {name}(x, i=i):")
        self.write_body(recompute.body)
        self.put("    return x * 2.0")
        self._write_tape(name, recompute.gradient)

    def write_custom(self, custom: Custom) -> None:
        name = self.name("shaped")
        self.put("x = tf.constant(1.0)")
        self.put("@tf.custom_gradient")
        self.put(f"def {name}(x, i=i):")
        self.write_body(custom.forward)
        self.put("    def back(upstream, variables=None):")
        self.depth += 1
        self.write_body(custom.backward)
        self.put("    return (upstream, [None] * len(variables)) if variables else upstream")
        self.depth -= 1
        self.put("    return x * 2.0, back")
        self._write_tape(name, True)

    def _write_tape(self, name: str, gradient: bool) -> None:
        self.put("with tf.GradientTape() as tape:")
        self.put("    tape.watch(x)")
        self.put(f"    y = {name}(x)")
        if gradient:
            self.put("tape.gradient(y, x)")

    def write_replicas(self, replicas: Replicas) -> None:
        name = self.name("replica")
        self.put(f"def {name}(i):")
        self.write_body(replicas.body)
        self.put(f"strategy.run({name}, args=(i,))")

    def write_meet(self, _: Meet) -> None:
        self.put("diary.meet()")

    def write_save(self, _: Save) -> None:
        self.put("checkpoint.write(folder + '/c')")

    def write_restore(self, _: Restore) -> None:
        self.put("checkpoint.read(folder + '/c')")

    def write_copy(self, each: Copy) -> None:
        self.put("twin = o.__class__.from_config(o.get_config())")
        self.put(f"twin.apply_gradients([(dense(), {each.variable})])")

    def write_fuse(self, fuse: Fuse) -> None:
        self.put(f"fuse.assign({fuse.updates})")

    def write_trip(self, trip: Trip) -> None:
        self.put(f"trip[0] = {trip.calls}")

    def write_trace(self, trace: Trace) -> None:
        self.put(f"{trace.function}.get_concrete_function(i)")

    def write_hold(self, hold: Hold) -> None:
        self.put(f"diary.held[{hold.function!r}] = {hold.function}.get_concrete_function(i)")

    def write_held(self, held: Held) -> None:
        shift = f" + {held.shift}" if held.shift else ""
        self.put(f"diary.held[{held.function!r}](i{shift})")

    def write_collect(self, _: Collect) -> None:
        self.put("gc.collect()")

    def write_renew(self, renew: Renew) -> None:
        self.put(f"nonlocal {renew.function}")
        self.put(f"{renew.function} = make_{renew.function}()")

    def write_fetch(self, fetch: Fetch) -> None:
        self.put(f"diary.session.run([{', '.join(fetch.names)}])")

    def write_fetchpart(self, fetch: FetchPart) -> None:
        self.put(f"diary.session.run(diary.part_of({fetch.name}, {fetch.variable}))")

    def write_threads(self, threads: Threads) -> None:
        names = []
        for body in threads.bodies:
            name = self.name("thread")
            names.append(name)
            self.put(f"def {name}(i=i):")
            self.put(f"    for _ in range({threads.times}):")
            self.depth += 1
            self.write_body(body)
            self.depth -= 1
        self.put(f"diary.threads({', '.join(names)})")
