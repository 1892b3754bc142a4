"""Draws a program: what it is made of first, then its parts."""

from dataclasses import replace
from random import Random
from typing import Any

from fuzz import programs as p
from hypothesis import strategies as st

KINDS = ("legacy", "keras2", "keras3", "v1")
SHAPES = ("plain", "plain", "loss scale", "options", "override", "override", "inner")
THEMES = (
    *("company", "company", "branches", "gradients", "host", "late", "late", "between"),
    *("failing", "XLA", "OneDevice", "Mirrored", "raising"),
)
BRANCHES = {
    "failing": ("cond",),
    "branches": ("cond", "cond", "switch", "loop", "loop", "map"),
    "gradients": ("recompute", "custom"),
    "host": ("host",),
    "XLA": ("cond", "loop"),
}
"""What the steps of a theme may stand in."""


def programs() -> st.SearchStrategy[p.Program]:
    """Programs that TensorFlow can run."""
    return st.builds(lambda random: _Maker(random).program(), st.randoms(use_true_random=False))


class _Maker:
    """Draws the parts of one program."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.choice: Any = random.choice
        self.kind = self.choice(KINDS)
        self.shape = self.choice(SHAPES)
        self.theme = self.choice(THEMES)
        self.variables = tuple("abc"[: self.choice((1, 2, 2, 3))])
        self.functions: list[p.Function] = []
        self.taping: set[str] = set()
        """The functions that have a tape, or call one that has."""
        self.strategy: Any = self.theme if self.theme in ("OneDevice", "Mirrored") else ""
        if self.theme in ("late", "between") and self.chance(0.2):
            self.strategy = self.choice(("OneDevice", "Mirrored"))
        self.other = not self.strategy and self.chance(0.15)
        self.recorded = not self.other and self.chance(0.15)
        self.inner = self.accumulates = False
        self.ways = {self.theme, self.shape}

    def chance(self, probability: float) -> bool:
        return self.random.randint(0, 99) >= 100 - 100 * probability

    def insert(self, actions: list[p.Statement], *new: p.Statement, first: int = 0) -> None:
        at = self.random.randint(first, len(actions))
        actions[at:at] = new

    def program(self) -> p.Program:
        optimizer = self.optimizer()
        actions = self.actions(optimizer)
        self.ways |= {"record"} if self.recorded else set()
        return p.Program(
            optimizer,
            self.other,
            self.strategy,
            self.variables,
            tuple(self.functions),
            actions,
            tuple(sorted(self.ways)),
            recorded=self.recorded,
        )

    # The optimizer.

    def optimizer(self) -> p.Optimizer:
        fails: dict[str, Any] = {"failing": "fuse", "raising": "trip"}
        found = p.Optimizer(self.kind, fails=fails.get(self.theme, ""))
        if self.shape == "inner" and (self.theme == "XLA" or self.strategy == "Mirrored"):
            self.shape = "override"
        some = self.shape in ("loss scale", "override", "inner") and self.chance(0.25)
        if self.shape == "options" or some:
            found = replace(found, options=self.options())
        if self.shape == "loss scale":
            found = replace(found, loss_scale=True)
            if self.theme != "Mirrored" and self.chance(0.3):
                found = replace(found, override=self.override(("super",)))
        elif self.shape == "inner":
            self.inner = True
            found = replace(found, inner=True, override=self.override(("super", "inner")))
        elif self.shape == "override":
            ways = ("super",) if self.strategy else ("super", "own", "own")
            found = replace(found, override=self.override(ways))
        return found

    def options(self) -> tuple[tuple[str, Any], ...]:
        choices: list[tuple[str, Any]] = []
        if self.kind in ("keras2", "keras3"):
            choices += [("use_ema", True), ("clipnorm", 1.0), ("global_clipnorm", 1.0)]
        if self.kind == "legacy":
            choices += [("clipnorm", 1.0), ("clipvalue", 0.5), ("global_clipnorm", 1.0)]
        apart = self.strategy or self.theme == "failing"
        if self.kind == "keras3" and not apart:
            choices += [("gradient_accumulation_steps", 2)] * 3
        if not choices:
            return ()
        chosen = self.choice(choices)
        self.accumulates = chosen[0] == "gradient_accumulation_steps"
        self.ways.add(chosen[0])
        return (chosen,)

    def override(self, ways: tuple[str, ...]) -> tuple[p.Part, ...]:
        parts: list[p.Part] = []
        for _ in range(self.choice((1, 1, 2))):
            parts.append(p.Part(self.choice(ways), self.choice(("all", "first", "reversed"))))
            self.ways.add(f"override: {parts[-1].what} {parts[-1].transform}")
        calling = ("company", "branches", "late", "failing", "raising", "OneDevice")
        apart = self.strategy == "Mirrored" or (self.strategy and self.kind in ("legacy", "v1"))
        if self.theme in calling and not apart and self.chance(0.6):
            body: p.Body = (p.Direct("base", self.variable()),)
            if self.inner and self.chance(0.7):
                body = (p.Step("inner", self.pairs()),)
            elif self.other and self.chance(0.4):
                body = (p.Step("other", self.pairs()),)
            if self.theme == "company" and self.chance(0.15):
                body = (p.Host(body),)
                self.ways.add("host inside a step")
            held = p.Part("call", function=self.function(body))
            alone = self.shape != "loss scale" and self.chance(0.3)
            parts = [held] if alone else [*parts, held]
            self.ways.add("override: function")
        return tuple(parts)

    def function(self, body: p.Body, **options: Any) -> str:
        name = f"f{len(self.functions)}"
        self.functions.append(p.Function(name, body, **options))
        text = str(body)
        called = [each for each in self.taping if f"Call(function='{each}'" in text]
        if called or "Recompute(" in text or "Custom(" in text:
            self.taping.add(name)
        return name

    # Steps.

    def variable(self) -> str:
        return str(self.choice(self.variables))

    def pairs(self) -> p.Pairs:
        names = list(self.variables)
        if self.chance(0.3):
            names = self.random.sample(names, self.random.randint(1, len(names)))
        kinds: list[p.GradientKind] = ["dense"] * 4
        clipped = self.ways & {"clipnorm", "clipvalue", "global_clipnorm"}
        densified = clipped and (self.strategy or self.kind == "keras3")
        if self.theme not in ("XLA", "failing"):
            kinds += [] if self.accumulates or densified else ["sparse"]
        found = [(name, self.choice(kinds)) for name in names]
        if len(found) > 1 and self.shape in ("plain", "options") and self.chance(0.1):
            found[-1] = (found[-1][0], "none")
        return tuple(found)

    def step(self) -> p.Statement:
        optimizer = "o"
        if self.other and self.chance(0.3):
            optimizer = "other"
        elif self.inner and self.chance(0.3):
            optimizer = "inner"
        if self.chance(0.1) and not self.strategy:
            self.ways.add("direct")
            return p.Direct("base" if optimizer == "o" else optimizer, self.variable())
        value: p.Value = "one"
        if self.shape == "loss scale" and optimizer == "o":
            value = self.choice(("one", "one", "inf", "odd"))
        method = "apply_gradients"
        if self.kind == "keras3" and self.shape != "override" and self.chance(0.15):
            method = "apply"
        return p.Step(optimizer, self.pairs(), value, method)

    # Statements.

    def body(self, depth: int = 2) -> p.Body:
        return tuple(self.statement(depth) for _ in range(self.choice((1, 1, 2))))

    def after(self, depth: int) -> p.Body:
        return self.body(depth) if self.chance(0.5) else ()

    def statement(self, depth: int) -> p.Statement:
        if depth <= 0:
            return self.step()
        if self.functions and self.chance(0.4):
            return self.call()
        choices = BRANCHES.get(self.theme, ())
        if not choices or self.chance(0.5):
            return self.step()
        what = self.choice(choices)
        if what in ("host", "map") and self.accumulates:
            return self.step()  # the order decides which gradients are added up
        self.ways.add(what)
        depth -= 1
        if what == "cond":
            return p.Cond(self.body(depth), self.after(depth))
        if what == "switch":
            return p.Switch(tuple(self.body(depth) for _ in range(self.random.randint(2, 3))))
        if what == "loop":
            count = self.random.randint(1, 5)
            return p.Loop(count, self.random.randint(1, count + 1), self.body(depth))
        if what == "map":
            return p.Map(self.random.randint(1, 3), self.body(depth))
        if what == "recompute":
            return p.Recompute(self.taped(), self.chance(0.6))
        if what == "custom":
            return p.Custom(self.taped(), self.taped() if self.chance(0.6) else ())
        return p.Host(self.body(depth), self.after(depth))

    def taped(self) -> p.Body:
        """A body without a tape of its own, which would not record inside of another one."""
        free = [each.name for each in self.functions if each.name not in self.taping]
        if free and self.chance(0.4):
            return (p.Call(self.choice(free)),)
        return (self.step(),)

    def call(self) -> p.Call:
        key = self.random.randint(1, 2) if self.chance(0.2) else 0
        if key:
            self.ways.add("retrace")
        shift = self.random.randint(1, 3) if self.chance(0.3) else 0
        return p.Call(self.choice(self.functions).name, shift, key)

    def more_functions(self) -> None:
        for _ in range(self.choice((1, 2, 2, 3))):
            autograph = self.chance(0.3)
            jit = self.theme == "XLA" and self.chance(0.6)
            body = self.body()
            if self.strategy:
                others = tuple(each for each in body if "Call(" not in str(each))
                calls = (each for each in body if isinstance(each, p.Call))
                body = (p.Replicas(others), *calls)
            self.function(body, autograph=autograph, jit=jit)

    # Actions.

    def actions(self, optimizer: p.Optimizer) -> p.Body:
        self.more_functions()
        actions: list[p.Statement] = [self.action() for _ in range(self.random.randint(3, 7))]
        first: list[p.Statement] = self.wraps()
        if self.theme == "late":
            for root in ("o", "other") if self.other else ("o",):
                self.insert(actions, self.late_wrap(root), first=1)
            if self.chance(0.5) and not self.recorded:
                (wrapped,) = (n for n, each in enumerate(actions) if _wraps(each))
                self.rewrap(actions, wrapped + 1)
                self.ways.add("unwrap")
            first = []
        if self.theme == "between":
            self.between(actions)
        if self.theme in ("failing", "raising"):
            of: Any = optimizer.fails
            for _ in range(2):
                at = self.random.randint(0, len(actions) - 1)
                limit = p.Limit(of, self.random.randint(0, 3))
                actions[at:at] = [limit, actions[at], p.Limit(of, -1)]
        if self.theme in ("late", "company", "between") and self.chance(0.3):
            self.insert(actions, p.Graphs(self.choice(self.functions).name))
            self.ways.add("traced only")
        while self.chance(0.4):
            self.insert(actions, p.Do("look"))
        return (*first, *actions, p.Do("look"))

    def wraps(self) -> list[p.Statement]:
        return [p.Wrap(root, True) for root in ("o", "other")[: 1 + self.other]]

    def action(self) -> p.Statement:
        if self.chance(0.65):
            return self.call()
        statement = self.statement(2)
        if self.strategy == "Mirrored" and not isinstance(statement, p.Call) and self.chance(0.15):
            self.ways.add("direct")
            return p.Direct("base", self.variable())
        return self.placed(statement)

    def placed(self, statement: p.Statement) -> p.Statement:
        """The statement, where a strategy wants it."""
        apart = self.strategy and not isinstance(statement, p.Call)
        return p.Replicas((statement,)) if apart else statement

    def late_wrap(self, root: str) -> p.Wrap:
        """Wrap an optimizer that was used before; most times what used it is traced anew."""
        kept = not self.recorded and self.chance(0.3)
        if kept:
            self.ways.add("wrap: graphs kept")
        return p.Wrap(root, retrace=not kept)

    def rewrap(self, actions: list[p.Statement], first: int) -> None:
        """Unwrap it, sometimes so that what has counters is traced anew, and wrap it again."""
        at = self.random.randint(first, len(actions))
        forgets = self.chance(0.4)
        if forgets:
            self.ways.add("unwrap: graphs forgotten")
        actions.insert(at, p.Wrap("o", retrace=forgets, on=False))
        self.insert(actions, self.late_wrap("o"), first=at + 1)

    def between(self, actions: list[p.Statement]) -> None:
        what = self.choice(("collect", "restore", "restore", "unwrap"))
        self.ways.add(what)
        if what == "restore":
            at = self.random.randint(0, len(actions))
            actions.insert(at, p.Do("save"))
            self.insert(actions, p.Do("restore"), first=at + 1)
        elif what == "unwrap" and not self.recorded:
            self.rewrap(actions, 0)
        else:
            self.insert(actions, p.Do("collect"))


def _wraps(action: p.Statement) -> bool:
    return isinstance(action, p.Wrap) and action.optimizer == "o"
