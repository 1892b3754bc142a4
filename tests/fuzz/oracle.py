"""What must be: runs a program in plain Python, without TensorFlow and without the tracer.

The model knows what the words of DESIGN mean: a step is one execution of the outermost step method
of a root on one replica, an update one execution of the outermost apply method, both decided when
it runs. What it says of the weights is held against the odometers, after each action, so that a
mistake in the model shows as one.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fuzz import programs as p

Update = tuple[str, str, int]
"""A variable, the kind of its gradient, and a replica."""


_RAISED = "an apply method raised"


class Failed(Exception):
    """The program fails here."""


@dataclass
class RunningStep:
    """A step, as it runs."""

    seen: bool
    updates: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    ran: bool = False
    """Whether an update ran in it, seen or not."""
    method_calls: int = 0
    """As in `Root`: they count when it has ended."""


@dataclass
class Root:
    """What the trace of a root must say."""

    wrapped: bool = False
    ever: bool = False
    steps: list[RunningStep] = field(default_factory=list)
    outside: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    inside: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    """Updates in steps, by another way of counting them."""
    started: int = 0
    """How many steps began, those that then failed too."""
    all_steps: int = 0
    all_updates: "Counter[tuple[str, str]]" = field(default_factory=Counter)
    """What ran in all, seen or not."""
    must: set[str] = field(default_factory=set)
    """Why the trace must say that it is incomplete."""
    may: set[str] = field(default_factory=set)
    """Why it may."""
    loose: bool = False
    """Whether what is right is not known: only that nothing is counted that never ran."""
    partly: bool = False
    """Whether parts of steps ran alone, of which nobody can say which step they are of."""
    method_calls: int = 0
    """Executions of `apply_gradients`, those inside of others too."""


@dataclass(frozen=True)
class Graph:
    """A graph: whether it was traced while each root was wrapped, and the graphs it calls."""

    seen: dict[str, bool]
    calls: dict[tuple[str, int], "Graph"] = field(default_factory=dict)
    uses: set[str] = field(default_factory=set)
    """The roots that step or update in it, besides what it calls."""

    def counts(self, root: str, *, seen: bool) -> bool:
        """Whether it, or what it calls, uses a root with counters (`seen`), or without them."""
        own = root in self.uses and self.seen[root] == seen
        return own or any(each.counts(root, seen=seen) for each in self.calls.values())


@dataclass(frozen=True)
class Place:
    """Where a statement is executed."""

    i: int = 0
    graph: Graph | None = None
    steps: dict[str, RunningStep | None] = field(default_factory=dict)


class Model:
    """A program, as it must run."""

    def __init__(self, program: p.Program) -> None:
        self.program = program
        self.functions = {each.name: each for each in program.functions}
        self.roots = {name: Root() for name in program.roots}
        self.graphs: dict[tuple[str, int], Graph] = {}
        self.weights = {name: [0, 0] for name in program.variables}
        self.saved: tuple[dict[str, list[int]], int] | None = None
        self.iterations = 0
        self.fuse = self.trip = -1
        self.unordered = False
        self.looks: list[dict[str, dict[str, Any]]] = []
        self.errors: list[bool] = []
        self.readings: list[dict[str, tuple[int, int]]] = []

    def run(self) -> "Model":
        """Do all actions; returns itself."""
        for action in self.program.actions:
            if action == p.Do("look"):
                self.look()
            elif isinstance(action, p.Wrap):
                self.wrap(action)
            else:
                self._action(action)
        return self

    def wrap(self, action: p.Wrap) -> None:
        """Wrap or unwrap; functions forget their graphs, and are traced anew at their next call.

        At a `wrap` those forget that hold uncounted uses, at an `unwrap` those with counters. A
        graph that is counted itself stays, and goes on to call what it called.
        """
        name, begins = action.optimizer, action.on
        root = self.roots[name]
        if action.retrace and begins != root.wrapped:
            forgetful = {
                key[0]
                for key, graph in self.graphs.items()
                if graph.counts(name, seen=not begins) and not (begins and graph.seen[name])
            }
            for key in [each for each in self.graphs if each[0] in forgetful]:
                del self.graphs[key]
        root.wrapped = begins
        root.ever |= begins

    def look(self) -> None:
        """Note what each trace must say now."""
        self.looks.append({name: self._expected(r) for name, r in self.roots.items() if r.ever})

    def _action(self, action: p.Statement) -> None:
        failed = False
        try:
            self.execute(action, Place(steps=dict.fromkeys(self.roots)))
        except Failed:
            failed = True
        self.errors.append(failed)
        self.readings.append({name: (d, s) for name, (d, s) in self.weights.items()})

    def _expected(self, root: Root) -> dict[str, Any]:
        replicas = range(self.program.replicas)

        def spread(counts: "Counter[tuple[str, str]]") -> dict[Update, int]:
            return {(*key, id): n for key, n in counts.items() for id in replicas if n}

        total: Counter[tuple[str, str]] = Counter(root.outside)
        for step in root.steps:
            total.update(step.updates)
        may = set(root.may)
        if self.program.optimizer.override and root.steps and not total:
            may.add("gradients went past the apply methods")  # perhaps to the other root
        return {
            "steps": len(root.steps),
            "updates": spread(total),
            "all": total.total() * len(replicas),
            "by_step": {n: spread(s.updates) for n, s in enumerate(root.steps, 1) if s.updates},
            "apply_gradients": None
            if self.program.optimizer.loss_scale
            else root.method_calls * len(replicas),
            "ran_steps": root.all_steps,
            "ran_updates": spread(root.all_updates),
            "must": sorted(root.must),
            "may": sorted(may),
            "loose": root.loose,
            "partly": root.partly,
            "unordered": self.unordered,
        }

    # Statements.

    def block(self, body: p.Body, place: Place) -> None:
        for statement in body:
            self.execute(statement, place)

    def execute(self, statement: p.Statement, place: Place) -> None:
        match statement:
            case p.Step():
                self.step(statement.optimizer, statement.pairs, statement, place)
            case p.Direct():
                try:
                    self.apply(statement.optimizer, statement.variable, "dense", place)
                except Failed:
                    if place.graph is None:
                        self.roots[self.root_of(statement.optimizer)].may.add(_RAISED)
                    raise
            case p.Call():
                function = self.functions[statement.function]
                self.call(function, statement.key, place.i + statement.shift, place)
            case p.Cond():
                self.block(statement.otherwise if place.i % 2 else statement.then, place)
            case p.Switch():
                self.block(statement.branches[place.i % len(statement.branches)], place)
            case p.Loop():
                for i in range(min(statement.count, statement.stop)):
                    self.block(statement.body, replace(place, i=i))
            case p.Map():
                self.unordered = True
                for i in range(statement.count):
                    self.block(statement.body, replace(place, i=i))
            case p.Host():
                self.unordered |= place.graph is not None  # it waits for nothing before it
                for name, step in place.steps.items():
                    if step is not None:
                        self.roots[name].may.add("a host call inside a step")
                        # It counts as called by the program itself: see docs/limits.md.
                        self.roots[name].partly = True
                self.block(statement.body, replace(place, graph=None))
                self.block(statement.after, place)
            case p.Recompute():
                for _ in range(1 + statement.gradient):
                    self.block(statement.body, place)
            case p.Custom():
                self.block(statement.forward, place)
                self.block(statement.backward, place)
            case p.Replicas():
                self.block(statement.body, place)
            case p.Limit():
                setattr(self, statement.of, statement.number)
            case p.Graphs():
                self.graph_of(self.functions[statement.function], 0)
            case p.Do("save"):
                weights = {name: list(each) for name, each in self.weights.items()}
                self.saved = weights, self.iterations
            case p.Do("restore"):
                assert self.saved is not None
                weights, self.iterations = self.saved
                self.weights = {name: list(each) for name, each in weights.items()}
            case p.Do():
                pass
            case _:
                raise TypeError(statement)

    def call(self, function: p.Function, key: int, i: int, place: Place) -> None:
        if place.graph is None:
            graph = self.graph_of(function, key)
            self._note_stale(graph)
        else:
            graph = place.graph.calls[function.name, key]
        self.run_graph(function, graph, i, place)

    def run_graph(self, function: p.Function, graph: Graph, i: int, place: Place) -> None:
        """Run a graph of a function."""
        stepping = place.graph is None and any(place.steps.values())
        before = {name: (r.started, r.all_updates.total()) for name, r in self.roots.items()}
        try:
            self.block(function.body, replace(place, graph=graph, i=i))
        except Failed:
            for name, root in self.roots.items():
                ran = (root.started, root.all_updates.total()) != before[name]
                if ran or (stepping and graph.counts(name, seen=True)):
                    root.may.add("a graph that failed half way")
            raise

    def graph_of(self, function: p.Function, key: int) -> Graph:
        """The graph of a function, which is traced now if it never was."""
        graph = self.graphs.get((function.name, key))
        if graph is None:
            seen = {name: root.wrapped for name, root in self.roots.items()}
            graph = Graph(seen)
            self.trace(function.body, graph)
            self.graphs[function.name, key] = graph
        return graph

    def _note_stale(self, graph: Graph) -> None:
        """A stale graph is called; what is stale in it may not even run."""
        for name, root in self.roots.items():
            if root.wrapped and graph.counts(name, seen=False):
                root.may.add("a stale graph was called")

    # Graph tracing: Python goes through all branches, once.

    def trace(self, body: Iterable[p.Statement], graph: Graph) -> None:
        """Trace statements into a graph, and what they call into graphs of their own."""
        for each in body:
            match each:
                case p.Call():
                    self._trace_call(each.function, each.key, graph)
                case p.Step():
                    self._trace_step(each.optimizer, each.pairs, each, graph)
                case p.Direct():
                    self._trace_apply(each.optimizer, graph)
                case p.Host():
                    self.trace(each.after, graph)  # the other part runs in eager mode
                case p.Recompute():
                    self.trace(each.body * (1 + each.gradient), graph)
                case _:
                    self.trace(p.children_of(each), graph)

    def _trace_call(self, name: str, key: int, graph: Graph) -> None:
        graph.calls[name, key] = self.graph_of(self.functions[name], key)
        self._note_stale(graph.calls[name, key])

    def _trace_step(self, optimizer: str, pairs: Any, how: p.Step, graph: Graph) -> None:
        self._use(optimizer, graph)
        spec = self.program.optimizer
        given = [variable for variable, kind in pairs if kind != "none"]
        if not given:
            raise Failed
        if optimizer == "o" and spec.loss_scale:
            self._trace_step("base", pairs, self._scaled(how), graph)
        elif optimizer in ("o", "base") and spec.override and how.method == "apply_gradients":
            for part in spec.override:
                chosen = part.chosen(pairs)
                if part.what == "inner":
                    self._trace_step("inner", chosen, how, graph)
                elif part.what == "call":
                    self._trace_call(part.function, 0, graph)
                elif part.what in ("super", "own"):
                    for _, kind in chosen:
                        if kind != "none":
                            self._trace_apply("base", graph)
        else:
            for _ in given:
                self._trace_apply(optimizer, graph)

    def _trace_apply(self, optimizer: str, graph: Graph) -> None:
        self._use(optimizer, graph)
        self._python()

    def _use(self, optimizer: str, graph: Graph) -> None:
        """A graph uses a root."""
        graph.uses.add(self.root_of(optimizer))

    def _python(self) -> None:
        """Python calls an apply method."""
        if self.trip == 0:
            raise Failed
        self.trip -= 1

    def _scaled(self, how: p.Step) -> p.Step:
        """How a loss scale calls the optimizer inside."""
        keras3 = self.program.optimizer.kind == "keras3"
        return replace(how, method="apply" if keras3 else "apply_gradients")

    # Optimizers.

    def root_of(self, optimizer: str) -> str:
        return "other" if optimizer == "other" else "o"

    def _seen(self, name: str, place: Place) -> bool:
        """Whether what runs here is seen; if not, the trace may have to say so."""
        root = self.roots[name]
        if place.graph is None:
            if root.ever and not root.wrapped:
                root.may.add("ran while it was not wrapped")
            return root.wrapped
        if place.graph.seen[name]:
            return True
        if root.wrapped:
            root.must.add("a stale graph ran")
        elif root.ever:
            root.may.add("ran while it was not wrapped")
        return False

    def step(self, optimizer: str, pairs: Any, how: p.Step, place: Place) -> None:
        """A call of a step method."""
        name = self.root_of(optimizer)
        root, outer = self.roots[name], place.steps[name]
        step = outer or RunningStep(self._seen(name, place))
        root.started += 1
        inside = replace(place, steps={**place.steps, name: step})
        failed = False
        ran = root.all_updates.total()
        try:
            self.behave(optimizer, pairs, how, inside)
        except Failed:
            failed = True
            raise
        finally:
            if (not failed or root.all_updates.total() > ran) and how.method == "apply_gradients":
                step.method_calls += self._seen(name, place)
            if failed and place.graph is None:
                root.may.add(_RAISED)
            if failed and place.graph is not None:  # nobody knows what had started
                for each in self.roots.values():
                    each.may.add("a graph that failed half way")
            if outer is None:
                root.method_calls += step.method_calls
            if outer is None and (step.ran or not failed):
                root.all_steps += 1
                if step.seen:
                    root.steps.append(step)

    def behave(self, optimizer: str, pairs: Any, how: p.Step, place: Place) -> None:
        """What `apply_gradients` of an optimizer does."""
        spec = self.program.optimizer
        if optimizer == "o" and spec.loss_scale:
            if all(kind == "none" for _, kind in pairs):
                raise Failed
            if how.value != "inf" and not (how.value == "odd" and place.i % 2):
                self.step("base", pairs, self._scaled(how), place)
            return
        if optimizer in ("o", "base") and spec.override and how.method == "apply_gradients":
            self.override(pairs, how, place)
        else:
            self.inherited(optimizer, pairs, place)

    def override(self, pairs: Any, how: p.Step, place: Place) -> None:
        for part in self.program.optimizer.override:
            chosen = part.chosen(pairs)
            if part.what == "super":
                self.inherited("base", chosen, place)
            elif part.what == "inner":
                self.step("inner", chosen, replace(how, method="apply_gradients"), place)
            elif part.what == "own":
                for variable, kind in chosen:
                    if kind != "none":
                        self.apply("base", variable, kind, place)
            elif part.what == "call":
                self.call(self.functions[part.function], 0, 0, place)

    def inherited(self, optimizer: str, pairs: Any, place: Place) -> None:
        """The `apply_gradients` of an odometer."""
        given = [(variable, kind) for variable, kind in pairs if kind != "none"]
        if not given:
            raise Failed
        every = dict(self.program.optimizer.options).get("gradient_accumulation_steps", 1)
        if optimizer in ("o", "base"):
            self.iterations += 1
            if self.iterations % every:
                return
        for variable, kind in given:
            self.apply(optimizer, variable, kind if every == 1 else "dense", place)

    def apply(self, optimizer: str, variable: str, kind: p.GradientKind, place: Place) -> None:
        """A call of an apply method."""
        if place.graph is None:
            self._python()
        if self.fuse == 0:
            raise Failed
        self.fuse -= 1
        name = self.root_of(optimizer)
        self.weights[variable][kind == "sparse"] += 1
        self._update(name, variable, kind, place)

    def _update(self, name: str, variable: str, kind: str, place: Place) -> None:
        root, step = self.roots[name], place.steps[name]
        root.all_updates[variable, kind] += 1
        if step is not None:
            step.ran = True
        if not self._seen(name, place):
            return
        if step is None:
            root.outside[variable, kind] += 1
        elif step.seen:
            step.updates[variable, kind] += 1
        else:
            root.loose = True


@dataclass(frozen=True)
class Fault:
    """Something that is not as it must be."""

    what: str
    """One of a few words, by which faults are counted."""
    text: str


def faults(model: Model, untraced: Any, traced: Any) -> Iterator[Fault]:
    """What is wrong in a run of the program, twice; `traced` may be None."""
    yield from _model_faults(model, untraced)
    if traced is None:
        return
    for number, (left, right) in enumerate(zip(untraced.errors, traced.errors, strict=True)):
        if _message(left) != _message(right):
            yield Fault("error", f"action {number}: untraced {left}, traced {right}")
    for number, (before, after) in enumerate(zip(untraced.weights, traced.weights, strict=True)):
        if before != after:
            yield Fault("weights", f"after action {number}: untraced {before}, traced {after}")
    for number, (expected, found) in enumerate(zip(model.looks, traced.looks, strict=True)):
        for name in expected:
            for fault in _trace_faults(expected[name], found[name]):
                yield Fault(fault.what, f"trace {number} of {name}: {fault.text}")


def _message(error: str | None) -> str:
    """An error without the numbers that TensorFlow gives to functions and ops."""
    return re.sub(r"0x[0-9a-f]+|[0-9]+", "", error or "")


def _model_faults(model: Model, run: Any) -> Iterator[Fault]:
    """Where the model is wrong: not the tracer's fault."""
    copies = model.program.replicas
    for number, (failed, error) in enumerate(zip(model.errors, run.errors, strict=True)):
        if failed != (error is not None):
            yield Fault("model", f"action {number} should {'' if failed else 'not '}fail: {error}")
            return
    for number, (expected, found) in enumerate(zip(model.readings, run.weights, strict=True)):
        shown = {name: tuple(tuple(each) for each in read) for name, read in found.items()}
        wanted = {name: (reading,) * copies for name, reading in expected.items()}
        if shown != wanted:
            yield Fault("model", f"after action {number} weights {wanted}, but {shown}")
            return


def _trace_faults(expected: dict[str, Any], found: dict[str, Any]) -> Iterator[Fault]:
    if not found["loaded"]:
        yield Fault("file", "the trace that was saved and loaded is another one")
    if not found["complete"]:
        if not expected["must"] and not expected["may"]:
            yield Fault("not incomplete", f"said to be incomplete, and was not: {found['notes']}")
        more = _more(found["updates"], expected["ran_updates"])
        if more:
            yield Fault("too many", f"incomplete, but with more than ran: {more}")
        if found["steps"] > expected["ran_steps"]:
            text = f"incomplete, but {found['steps']} steps of {expected['ran_steps']}"
            yield Fault("too many", text)
        return
    if expected["must"]:
        yield Fault("in silence", f"complete, but {', '.join(expected['must'])}")
    elif expected["partly"] and not expected["loose"]:
        yield from _differ(expected, found, ("updates", "all"))
    elif not expected["loose"]:
        yield from _differ(expected, found, ("steps", "updates", "all", "apply_gradients"))
        left, right = expected["by_step"], found["by_step"]
        if expected["unordered"]:
            left, right = _bag(left), _bag(right)
        if left != right:
            yield Fault("steps", f"complete, updates in steps: expected {left}, counted {right}")
        if len(found["replicas"]) > 1:
            yield Fault("steps", f"complete, steps of replicas: {found['replicas']}")


def _differ(
    expected: dict[str, Any], found: dict[str, Any], names: Sequence[str]
) -> Iterator[Fault]:
    state = "complete" if found["complete"] else "incomplete"
    for name in names:
        if expected[name] is not None and expected[name] != found[name]:
            text = f"{state}, {name}: expected {expected[name]}, counted {found[name]}"
            yield Fault("totals", text)


def _more(found: dict[Update, int], ran: dict[Update, int]) -> dict[Update, tuple[int, int]]:
    """Where more was counted than ran."""
    return {key: (n, ran.get(key, 0)) for key, n in found.items() if n > ran.get(key, 0)}


def _bag(by_step: dict[int, dict[Update, int]]) -> list[list[tuple[Update, int]]]:
    return sorted(sorted(each.items()) for each in by_step.values())
