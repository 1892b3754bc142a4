"""Makes a program of a seed: what it is made of is drawn first, then its parts."""

import random
from dataclasses import replace
from typing import Any

from fuzz.programs import (
    Body,
    Build,
    Call,
    Collect,
    Cond,
    Copy,
    Custom,
    Direct,
    Fetch,
    FetchPart,
    Function,
    Fuse,
    GradientKind,
    Held,
    Hold,
    Host,
    Look,
    Loop,
    Map,
    Meet,
    Optimizer,
    Part,
    Program,
    Recompute,
    Renew,
    Replicas,
    Restore,
    Save,
    Statement,
    Step,
    Switch,
    Threads,
    Trace,
    Transform,
    Trip,
    Unwrap,
    Value,
    Wrap,
    has,
    names_of,
    without_unused,
)

KINDS = ("legacy", "keras2", "keras3", "v1")
SHAPES = ("plain", "plain", "loss scale", "options", "override", "override", "applying", "inner")
THEMES = (
    "company",
    "company",
    "branches",
    "gradients",
    "host",
    "late",
    "late",
    "between",
    "failing",
    "threads",
    "XLA",
    "OneDevice",
    "Mirrored",
    "session",
    "raising",
    "starving",
)


def program_of(seed: int) -> Program:
    """The program of a seed: always the same one."""
    return _Maker(seed).program()


class _Maker:
    """Draws the parts of one program."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.retracing = random.Random(f"{seed}, retrace")
        self.kind = self.random.choice(KINDS)
        self.shape = self.random.choice(SHAPES)
        self.theme = self.random.choice(THEMES)
        self.variables = tuple("abc"[: self.random.choice((1, 2, 2, 3))])
        self.functions: list[Function] = []
        self.strategy: Any = self.theme if self.theme in ("OneDevice", "Mirrored") else ""
        if self.theme == "threads" and self.kind != "legacy" and self.chance(0.2):
            self.strategy = "OneDevice"
        self.starving = self.theme == "starving"
        if self.theme in ("late", "between", "starving") and self.chance(0.2):
            self.strategy = self.random.choice(("OneDevice", "Mirrored"))
        self.other = not self.strategy and self.chance(0.15)
        self.ways: set[str] = {self.theme, self.shape}
        self.fused = self.theme == "failing"
        if self.theme == "session":
            self.kind = self.random.choice(("legacy", "v1"))
            self.other = False
        self.tripping = self.theme == "raising"
        self.rows = 0
        if self.theme in ("company", "branches", "threads", "gradients") and self.chance(0.2):
            self.rows = self.random.randint(2, 6)
        self.recorded = not self.other and self.chance(0.15)
        self.shared = self.other and self.kind == "legacy" and self.chance(0.4)
        self.resumed = False
        self.inner = False
        self.accumulates = False

    def chance(self, probability: float) -> bool:
        return self.random.random() < probability

    def program(self) -> Program:
        optimizer = self.optimizer()
        if self.starving:
            actions = self.starve()
        elif self.theme == "threads":
            actions, optimizer = self.threads(optimizer)
        elif self.theme == "session":
            actions = self.session()
        else:
            actions = self.actions(optimizer)
        if self.recorded:
            self.ways.add("record")
        if self.shared:
            self.ways.add("shared iterations")
        if self.rows:
            self.ways.add("small ring")
        made = Program(
            optimizer,
            self.other,
            self.strategy,
            self.variables,
            tuple(self.functions),
            actions,
            tuple(sorted(self.ways)),
            session=self.theme == "session",
            recorded=self.recorded,
            resumed=self.resumed,
            shared=self.shared,
            rows=self.rows,
        )
        return without_unused(made)

    # The optimizer.

    def optimizer(self) -> Optimizer:
        found = Optimizer(
            self.kind, fused=self.fused, tripping=self.tripping, waiting=self.starving
        )
        if self.starving:
            self.other = self.shared = False
            self.shape = self.random.choice(("plain", "options", "loss scale"))
        alone = {"XLA": 2, "session": 2, "threads": 1}.get(self.theme, 0)
        if self.shape in ("applying", "inner")[: 2 if self.strategy == "Mirrored" else alone]:
            self.shape = "override"
        if self.theme == "threads" and self.chance(0.5):
            self.shape = self.random.choice(("override", "inner"))
        if self.theme == "session" and self.shape == "loss scale":
            self.shape = "plain"
        if self.shape in ("loss scale", "override", "inner") and self.chance(0.25):
            found = replace(found, options=self.options())
        if self.shape == "loss scale":
            found = replace(found, loss_scale=True)
            if self.theme != "Mirrored" and self.chance(0.3):
                found = replace(found, override=self.override(("super",)))
        elif self.shape == "options":
            found = replace(found, options=self.options())
        elif self.shape == "inner":
            self.inner = True
            found = replace(found, inner=True, override=self.override(("super", "inner")))
        elif self.shape == "override":
            ways = ("super",) if self.strategy else ("super", "own", "own")
            found = replace(found, override=self.override(ways))
        elif self.shape == "applying":
            self.inner = True
            held = self.function([Direct("inner", self.variable())])
            found = replace(found, inner=True, applying=(held,))
        return found

    def options(self) -> tuple[tuple[str, Any], ...]:
        choices: list[tuple[str, Any]] = []
        if self.kind in ("keras2", "keras3"):
            choices += [("use_ema", True), ("clipnorm", 1.0), ("global_clipnorm", 1.0)]
        if self.kind == "legacy":
            choices += [("clipnorm", 1.0), ("clipvalue", 0.5), ("global_clipnorm", 1.0)]
        if self.kind == "keras3" and not (
            self.strategy or self.theme in ("failing", "starving", "threads")
        ):
            choices += [("gradient_accumulation_steps", 2)] * 3
        if not choices:
            return ()
        chosen = self.random.choice(choices)
        self.accumulates = chosen[0] == "gradient_accumulation_steps"
        self.ways.add(chosen[0])
        return (chosen,)

    def override(self, ways: tuple[str, ...]) -> tuple[Part, ...]:
        parts: list[Part] = []
        for _ in range(self.random.choice((1, 1, 2))):
            what: Any = self.random.choice(ways)
            transform: Transform = self.random.choice(("all", "first", "reversed"))
            parts.append(Part(what, transform))
            looks = self.theme in ("company", "host", "between") and self.chance(0.15)
            if looks and self.strategy != "Mirrored":  # each replica would look
                parts.insert(self.random.randint(0, len(parts)), Part("look"))
                self.ways.add("look inside")
            self.ways.add(f"override: {what} {transform}")
        companions = ["company", "branches", "late", "failing", "threads", "raising", "OneDevice"]
        if self.strategy == "Mirrored" or (self.strategy and self.kind in ("legacy", "v1")):
            companions = []
        if self.theme in companions and self.chance(0.6):
            body: list[Statement] = [Direct("base", self.variable())]
            if self.inner and self.chance(0.7):
                body = [Step("inner", self.pairs())]
            elif self.other and self.chance(0.4):
                body = [Step("other", self.pairs())]
            if self.theme == "company" and self.chance(0.15):
                body = [Host(tuple(body))]
                self.ways.add("host inside a step")
            held = Part("call", function=self.function(body))
            alone = self.shape != "loss scale" and self.chance(0.3)
            parts = [held] if alone else [*parts, held]
            self.ways.add("override: function")
        return tuple(parts)

    def function(self, body: list[Statement] | Body, **options: Any) -> str:
        name = f"f{len(self.functions)}"
        self.functions.append(Function(name, tuple(body), **options))
        return name

    # Steps.

    def variable(self) -> str:
        return self.random.choice(self.variables)

    def pairs(self) -> tuple[tuple[str, GradientKind], ...]:
        names = list(self.variables)
        if self.chance(0.3):
            names = self.random.sample(names, self.random.randint(1, len(names)))
        kinds: list[GradientKind] = ["dense"] * 4
        clipped = bool(self.ways & {"clipnorm", "clipvalue", "global_clipnorm"})
        if (
            self.theme != "XLA"
            and not self.accumulates
            and not self.fused
            and not self.starving
            and not (clipped and (self.strategy or self.kind == "keras3"))  # it makes them dense
        ):
            kinds.append("sparse")
        found = [(name, self.random.choice(kinds)) for name in names]
        if len(found) > 1 and self.shape in ("plain", "options") and self.chance(0.1):
            found[-1] = (found[-1][0], "none")
        return tuple(found)

    def step(self) -> Statement:
        optimizer = "o"
        if self.other and self.chance(0.3):
            optimizer = "other"
        elif self.inner and self.chance(0.3):
            optimizer = "inner"
        if self.chance(0.1) and not self.strategy:
            self.ways.add("direct")
            return Direct("base" if optimizer == "o" else optimizer, self.variable())
        value: Value = "one"
        if self.shape == "loss scale" and optimizer == "o":
            value = self.random.choice(("one", "one", "inf", "odd"))
        method = "apply_gradients"
        if self.kind == "keras3" and self.shape != "override" and self.chance(0.15):
            method = "apply"
        return Step(optimizer, self.pairs(), value, method)

    # Statements.

    def body(self, depth: int = 2) -> Body:
        return tuple(self.statement(depth) for _ in range(self.random.choice((1, 1, 2))))

    def statement(self, depth: int) -> Statement:
        if depth <= 0:
            return self.step()
        if self.functions and self.chance(0.4):
            return self.call()
        choices = {
            "company": (),
            "late": (),
            "between": (),
            "failing": ("cond",),
            "branches": ("cond", "cond", "switch", "loop", "loop", "map"),
            "gradients": ("recompute", "custom"),
            "host": ("host",),
            "XLA": ("cond", "loop"),
        }.get(self.theme, ())
        if not choices or self.chance(0.5):
            return self.step()
        what = self.random.choice(choices)
        if what in ("host", "map") and self.accumulates:
            return self.step()  # the order decides which gradients are added up
        self.ways.add(what)
        if what == "cond":
            return Cond(self.body(depth - 1), self.body(depth - 1) if self.chance(0.5) else ())
        if what == "switch":
            return Switch(tuple(self.body(depth - 1) for _ in range(self.random.randint(2, 3))))
        if what == "loop":
            count = self.random.randint(1, 16 if self.rows else 5)
            return Loop(count, self.random.randint(1, count + 1), self.body(depth - 1))
        if what == "map":
            return Map(self.random.randint(1, 3), self.body(depth - 1))
        if what == "recompute":
            return Recompute(self.taped(), self.chance(0.6))
        if what == "custom":
            return Custom(self.taped(), self.taped() if self.chance(0.6) else ())
        return Host(self.body(depth - 1), self.body(depth - 1) if self.chance(0.5) else ())

    def taped(self) -> Body:
        """A body without a tape of its own, which would not record inside of another one."""
        by_name = {each.name: each for each in self.functions}
        free = [
            name
            for name in by_name
            if not any(
                has(by_name[each], Recompute, Custom) for each in names_of(self.functions, [name])
            )
        ]
        if free and self.chance(0.4):
            return (Call(self.random.choice(free)),)
        return (self.step(),)

    def call(self) -> Call:
        key = self.random.randint(1, 2) if self.chance(0.2) else 0
        if key:
            self.ways.add("retrace")
        shift = self.random.randint(1, 3) if self.chance(0.3) else 0
        return Call(self.random.choice(self.functions).name, shift, key)

    def more_functions(self) -> None:
        for _ in range(self.random.choice((1, 2, 2, 3))):
            autograph = self.chance(0.3)
            jit = self.theme == "XLA" and self.chance(0.6)
            body = self.body()
            if self.strategy:
                calls = tuple(each for each in body if isinstance(each, Call))
                body = (Replicas(tuple(each for each in body if not has(each, Call))), *calls)
            self.function(body, autograph=autograph, jit=jit)

    # Actions.

    def actions(self, optimizer: Optimizer) -> Body:
        self.more_functions()
        actions: list[Statement] = [self.action() for _ in range(self.random.randint(3, 7))]
        roots = ["o", "other"] if self.other else ["o"]
        first: list[Statement] = [Wrap(root) for root in roots]
        if self.theme == "late":
            for root in roots:
                actions.insert(self.random.randint(1, len(actions)), self.late_wrap(root))
            if self.chance(0.5) and not self.recorded:
                self._rewrap(actions)
            if self.retracing.random() < 0.25:
                self._hold(actions)
            first = []
        if self.theme == "between":
            self._between(actions, optimizer)
        if self.theme == "failing":
            for _ in range(2):
                at = self.random.randint(0, len(actions) - 1)
                actions[at:at] = [Fuse(self.random.randint(0, 3)), actions[at], Fuse(-1)]
        if self.theme == "raising":
            for _ in range(2):
                at = self.random.randint(0, len(actions) - 1)
                actions[at:at] = [Trip(self.random.randint(0, 3)), actions[at], Trip(-1)]
        if self.theme in ("late", "company", "between") and self.chance(0.3):
            trace = Trace(self.random.choice(self.functions).name)
            actions.insert(self.random.randint(0, len(actions)), trace)
            self.ways.add("traced only")
        while self.chance(0.4):
            actions.insert(self.random.randint(0, len(actions)), Look())
        return (*first, *actions, Look())

    def action(self) -> Statement:
        if self.chance(0.65):
            return self.call()
        statement = self.statement(2)
        if self.strategy and not isinstance(statement, Call):
            if self.strategy == "Mirrored" and self.chance(0.15):
                self.ways.add("direct")
                return Direct("base", self.variable())
            return Replicas((statement,))
        return statement

    def late_wrap(self, root: str) -> Wrap:
        """Wrap an optimizer that was used before; most times what used it is traced anew."""
        if self.recorded or self.retracing.random() < 0.7:
            return Wrap(root)
        self.ways.add("wrap: graphs kept")
        return Wrap(root, retrace=False)

    def _hold(self, actions: list[Statement]) -> None:
        """Hold a graph, which no `wrap` can have traced anew, and call it later."""
        name = self.retracing.choice(self.functions).name
        at = self.retracing.randint(0, len(actions) - 1)
        actions.insert(at, Hold(name))
        for _ in range(self.retracing.randint(1, 2)):
            held = Held(name, self.retracing.randint(0, 2))
            actions.insert(self.retracing.randint(at + 1, len(actions)), held)
        self.ways.add("held")

    def unwrap(self) -> Unwrap:
        """Unwrap the optimizer; sometimes what has counters is traced anew."""
        if self.retracing.random() < 0.6:
            return Unwrap("o")
        self.ways.add("unwrap: graphs forgotten")
        return Unwrap("o", retrace=True)

    def _rewrap(self, actions: list[Statement]) -> None:
        wrapped = max(
            n for n, each in enumerate(actions) if isinstance(each, Wrap) and each.optimizer == "o"
        )
        at = self.random.randint(wrapped + 1, len(actions))
        actions.insert(at, self.unwrap())
        actions.insert(self.random.randint(at + 1, len(actions)), self.late_wrap("o"))
        self.ways.add("unwrap")

    def _between(self, actions: list[Statement], optimizer: Optimizer) -> None:
        what = self.random.choice(
            ("restore", "resumed", "resumed", "unwrap", "copy", "collect", "renew", "renew")
        )
        if what == "resumed" and (optimizer.override or optimizer.applying or self.kind == "v1"):
            what = "restore"
        if what in ("resumed", "copy") and self.strategy:
            what = "restore"
        self.ways.add(what)
        if what == "restore":
            at = self.random.randint(0, len(actions))
            actions.insert(at, Save())
            actions.insert(self.random.randint(at + 1, len(actions)), Restore())
        elif what == "resumed":
            self.resumed = True
            actions.insert(self.random.choice((0, 0, len(actions) // 2)), Restore())
        elif what == "renew":
            name = self.random.choice(self.functions).name
            at = self.random.randint(1, len(actions))
            actions[at:at] = [Renew(name), *([Collect()] if self.chance(0.5) else []), Call(name)]
        elif what == "unwrap" and not self.recorded:
            at = self.random.randint(0, len(actions))
            actions.insert(at, self.unwrap())
            actions.insert(self.random.randint(at + 1, len(actions)), self.late_wrap("o"))
        elif what == "copy" and self.shape == "plain" and self.kind in ("legacy", "keras2"):
            actions.insert(self.random.randint(0, len(actions)), Copy("a"))
        else:
            actions.insert(self.random.randint(0, len(actions)), Collect())

    def starve(self) -> Body:
        """Steps of which the gradients sometimes fail; one in a graph, as graphs have no order."""
        for _ in range(self.random.randint(1, 3)):
            if self.functions and self.chance(0.3):
                self.function([self.call()])
            else:
                value: Value = self.random.choice(("fed", "fed", "fed", "one"))
                self.function(self.placed(Step("o", self.pairs(), value)))
        actions: list[Statement] = []
        for _ in range(self.random.randint(3, 7)):
            if self.chance(0.8):
                actions.append(self.call())
            else:
                actions += self.placed(Step("o", self.pairs(), "fed"))
        return (Wrap("o"), *actions, Look())

    def placed(self, statement: Statement) -> Body:
        """The statement, where a strategy wants it."""
        if self.strategy and not isinstance(statement, Call):
            return (Replicas((statement,)),)
        return (statement,)

    def threads(self, optimizer: Optimizer) -> tuple[Body, Optimizer]:
        """Two threads, which meet in the middle of a step or race."""
        for _ in range(2):
            self.function(self.placed(self.step()))
        same, own = Call(self.functions[-1].name), Call(self.functions[-2].name)
        second = self.random.choice((own, own, same, self.step()))
        bodies: list[Body] = [(same,), self.placed(second)]
        times = self.random.randint(1, 4)
        first = [self.placed(self.step())[0] for _ in range(self.random.randint(0, 2))]
        first += [Call(each.name) for each in self.functions[-2:] if self.chance(0.5)]
        if self.shape != "loss scale" and self.chance(0.7):  # which may not call it
            self.ways.add("meet")
            optimizer, bodies = self._meeting(optimizer)
        threads = Threads(tuple(bodies), times)
        wraps = (Wrap("o"), *((Wrap("other"),) if self.other else ()))
        return (*wraps, *first, threads, Look()), optimizer

    def _meeting(self, optimizer: Optimizer) -> tuple[Optimizer, list[Body]]:
        """One thread is in the middle of a step while the other does something."""
        parts = optimizer.override or (Part("super"),)
        before = self.random.randint(0, len(parts))
        meeting = replace(
            optimizer,
            override=(*parts[:before], Part("meet"), Part("meet"), *parts[before:]),
        )
        step = self.placed(Step("o", self.pairs()))
        long: Body = step if self.chance(0.4) else (Call(self.function(step)),)
        if self.chance(0.4):  # both do such a step
            return meeting, [long, step if self.chance(0.5) else (Call(self.function(step)),)]
        short: Statement = Direct("base", self.variable())
        if self.inner and self.chance(0.7):
            short = Step("inner", self.pairs())
        elif self.other:
            short = Step("other", self.pairs())
        between = self.placed(short)
        if self.chance(0.5):
            between = (Call(self.function(between)),)
        return meeting, [long, (Meet(), *between, Meet())]

    # Sessions.

    def session(self) -> Body:
        """Train ops of a v1 graph, which are run whole or in part."""
        count = self.random.randint(1, 3)
        builds = [Build(f"train_{n}", Step("o", self.pairs())) for n in range(count)]
        names = [each.name for each in builds]
        actions: list[Statement] = []
        for _ in range(self.random.randint(2, 5)):
            if self.shape == "plain" and self.chance(0.25):
                build = self.random.choice(builds)
                dense = [name for name, kind in build.step.pairs if kind == "dense"]
                if dense:
                    actions.append(FetchPart(build.name, self.random.choice(dense)))
                    self.ways.add("part of a step")
                    continue
            size = self.random.choice((1, 1, 1, 2))
            actions.append(Fetch(tuple(self.random.sample(names, min(size, count)))))
        wrapped: list[Statement] = [*builds]
        late = self.chance(0.2)
        if late:
            self.ways.add("late")
        wrapped.insert(self.random.randint(0, count) if late else 0, Wrap("o"))
        return (*wrapped, *actions, Look())
