"""Functions that were traced before their optimizer was wrapped: found, and watched.

Their graphs hold no counter, so what they run is not counted. An optimizer's own count of its steps
cannot tell: it stands still while a loss scale skips, it moves when a checkpoint is restored, and
others may move it. So the functions themselves are found when the optimizer is wrapped. A
`tf.function` forgets its graphs, so that its next call traces one that is counted. Others cannot (a
`ConcreteFunction` that the program holds, a function of a SavedModel, a call that is under way), so
the graphs are watched while the optimizer is wrapped: a trace is incomplete if one of them was
called, and only then.

A function uses the optimizer if its graph writes to a variable of the optimizer's own (its
iterations, a slot variable), or if its Python code names the optimizer and one of its methods and
its graph writes to any variable, or, for a v1 optimizer, if its ops have the optimizer's name. It
is watched through what it captures: TensorFlow asks for that at each call
(`ConcreteFunction.captured_inputs`), in eager mode and while another function that calls it is
traced.
"""

import functools
import inspect
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any, NamedTuple
from weakref import ReferenceType, WeakKeyDictionary, ref

from tracer.kinds import kind_of
from tracer.recorder.instances import Living, instances
from tracer.recorder.tensorflow import compat
from tracer.recorder.tensorflow.functions import (
    bound_to,
    concrete_functions,
    feeds_a_dataset,
    function_classes,
    graphs_being_traced,
    is_concrete,
    newest_function,
    ops_in,
    running_functions,
    trace_anew,
)
from tracer.recorder.tensorflow.writes import Write, ops_named, traced_at, writes_of, written_by


def _updates_by(name: str) -> re.Pattern[str]:
    """What the names of the ops by which an optimizer of this name updates have in them.

    A loss scale around it adds to its name (`training/experimental/loss_scale_optimizer.py`).
    """
    return re.compile(rf"(^|/){re.escape(name)}(-wrapped)?(_\d+)?/update")


_UPDATE = re.compile("Apply|AssignAdd|AssignSub|Scatter(Add|Sub)")
"""The types of ops that update a variable, and do not set it, as an initializer does."""

_DEEP = 4
"""How far a function's Python code is followed to the optimizer, from function to function."""


class Older(NamedTuple):
    """A function of an optimizer that was traced before, by their names."""

    optimizer: int
    """The optimizer's index."""
    function: str
    caller: str = ""
    """The function that was traced since and calls it; empty if the program does, `PIPELINE` if
    tf.data does."""


PIPELINE = "tf.data"
"""What calls the function of a dataset."""


class OlderFunctions:
    """How often functions that were traced before were called while their optimizer was traced."""

    def __init__(self) -> None:
        self.calls: Counter[Older] = Counter()
        self._forgetful: list[_Forgetful] = []
        self._watched: list[tuple[int, ref[Any], _Question]] = []
        self._fetched: WeakKeyDictionary[Any, dict[tuple[str, ...], list[int]]] = (
            WeakKeyDictionary()
        )
        self._in_sessions: WeakKeyDictionary[Any, list[tuple[int, set[str]]]] = WeakKeyDictionary()
        self._since: dict[int, int] = {}
        self._spans: dict[int, list[tuple[int, int]]] = defaultdict(list)
        self._in_pipelines: list[tuple[Older, ref[Any]]] = []
        self.unsettled: set[int] = set()
        """The optimizers that are used in graphs that were not finished when they were found."""

    def begin(self, index: int) -> None:
        """What is traced from now on with an optimizer is counted, until it is let go."""
        self._since.setdefault(index, compat.unique_number())

    def watch(
        self,
        index: int,
        optimizer: Any,
        variables: Collection[Any],
        methods: Collection[str],
        scope: str,
        retrace: bool,
    ) -> None:
        """Find the graphs that use `optimizer` uncounted, and count their calls from now on.

        If `retrace`, the functions that they are of forget them. `variables` are the optimizer's
        own, `methods` the names of those by which it updates others; a v1 optimizer names its ops
        under `scope`, empty for the others. A graph may be counted in part: what was added to it
        while the optimizer was traced is counted, wherever it is called.
        """
        self.unsettled.discard(index)
        watched = {id(known()) for at, known, _ in self._watched if at == index}
        forgettable = set()
        handles = {id(handle) for handle in variables}
        functions = _look()
        for function in functions.users_of(optimizer, variables, methods, scope):
            writes = _known_writes(function.graph, handles, scope)
            if not writes:  # it names the optimizer
                writes = list(writes_of(function.graph, None))
            older = [write for write in writes if not self._counted(index, write.time)]
            if not older:
                continue
            graph = function.graph
            own = [write for write in older if not write.called]
            # What was traced meanwhile, and only calls what is older, would call it again.
            anew = bool(own) or not self._counted(index, traced_at(graph))
            name = compat.function_name(graph)
            known = Older(index, name) if anew else Older(index, older[0].function, name)
            if feeds_a_dataset(function):
                self._in_pipelines.append((known._replace(caller=PIPELINE), ref(function)))
            elif id(function) not in watched:
                self._watch(known, function)
            if anew:
                forgettable.add(id(function))
        if forgettable:
            self._forget(index, forgettable, functions.polymorphics_of(forgettable), retrace)
        for graph in graphs_being_traced():
            writes = _writes(graph, handles, scope)
            if any(not self._counted(index, write.time) for write in writes):
                self.calls[Older(index, compat.function_name(compat.called_graph(graph)))] += 1
                self.unsettled.add(index)

    def _counted(self, index: int, time: int) -> bool:
        """Whether what a graph got at this time is counted for an optimizer."""
        since = self._since.get(index)
        return (since is not None and time >= since) or any(
            begin <= time < end for begin, end in self._spans[index]
        )

    def _forget(
        self, index: int, older: Collection[int], polymorphics: Iterable[Any], retrace: bool
    ) -> None:
        """Let the functions forget their graphs that are `older`; say which of them are running."""
        running = {id(function) for function in running_functions()}
        for function in polymorphics:
            graphs = [each for each in concrete_functions(function) if id(each) in older]
            if graphs:
                name = compat.function_name(graphs[0].graph)
                if id(function) in running:
                    self.calls[Older(index, name)] += 1
                known = _Forgetful(Older(index, name), ref(function), _written_by_all(graphs))
                if retrace and trace_anew(function):
                    self._forgetful.append(known)

    def in_pipelines(self) -> list[Older]:
        """The functions of living datasets, which do not ask for what they captured."""
        return list(dict.fromkeys(older for older, f in self._in_pipelines if f() is not None))

    def traced_anew(self) -> Counter[Older]:
        """The functions that were traced again since they forgot their graphs."""
        return Counter(each.older for each in list(self._forgetful) if each.graphs())

    def other_now(self) -> list[Older]:
        """Those of them that no longer write to all of the variables that they wrote to before."""
        return [
            each.older
            for each in list(self._forgetful)
            if (graphs := each.graphs()) and each.written - _written_by_all(graphs)
        ]

    def watch_sessions(self, index: int, name: str, own: bool, graphs: Iterable[Any]) -> None:
        """Count what Sessions run, from now on, of the updates that `graphs` hold already.

        They are those of a `legacy` or a `v1` optimizer called `name`, which puts them under
        `NAME/update...` (`training/optimizer.py`, `optimizer_v2/optimizer_v2.py`). One whose class
        has its `own` step may put them anywhere, so each update is taken for one of them.
        """
        by_name = _updates_by(name)
        for graph in graphs:
            ops = {
                op.name
                for op in graph.get_operations()
                if by_name.search(op.name) or (own and _UPDATE.search(op.type))
            }
            if ops:
                self._in_sessions.setdefault(graph, []).append((index, ops))
                self._fetched.pop(graph, None)
                compat.watch_sessions(self.ran)

    def ran(self, graph: Any, fetched: Sequence[Any]) -> None:
        """A Session has run these ops of `graph`."""
        older = self._in_sessions.get(graph)
        if older:
            known = self._fetched.setdefault(graph, {})
            names = tuple(op.name for op in fetched)
            if names not in known:
                needed = compat.needed_by(fetched)
                known[names] = [index for index, ops in older if not needed.isdisjoint(ops)]
            for index in known[names]:
                self.calls[Older(index, compat.SESSION_GRAPH)] += 1

    def let_go(self, index: int) -> None:
        """Give back what was captured by the functions that are watched for an optimizer."""
        for graph, known in list(self._in_sessions.items()):
            self._in_sessions[graph] = [each for each in known if each[0] != index]
        self._fetched.clear()
        compat.watch_sessions_no_more(self.ran)
        for watched, function, question in self._watched:
            if watched == index:
                question.asked = False
                _give_back(function())
        self._spans[index].append((self._since.pop(index, 0), compat.unique_number()))
        self._in_pipelines = [each for each in self._in_pipelines if each[0].optimizer != index]
        self.unsettled.discard(index)
        self._watched = [each for each in self._watched if each[0] != index]

    def _watch(self, older: Older, function: Any) -> None:
        captured = list(function._captured_inputs)
        if not captured:  # it gets the variable as an argument, and needs nothing else
            return
        question = _Question(captured[0], older, self._called)
        function._captured_inputs = [question, *captured[1:]]
        self._watched.append((older.optimizer, ref(function), question))

    def _called(self, older: Older) -> None:
        """An older function is called: now, or whenever the function that is traced now runs."""
        if not compat.in_eager():
            caller = compat.function_name(compat.current_graph())
            older = older._replace(caller=older.caller or caller)
            self.unsettled.add(older.optimizer)
        self.calls[older] += 1


class _Forgetful(NamedTuple):
    """A `tf.function` that was let forget its graphs."""

    older: Older
    function: ref[Any]
    written: frozenset[int]
    """The ids of the handles that its graphs wrote to."""

    def graphs(self) -> list[Any]:
        """What it was traced to since."""
        function = self.function()
        return [] if function is None else concrete_functions(function)


def _written_by_all(functions: Iterable[Any]) -> frozenset[int]:
    """The ids of the handles that the graphs of these concrete functions write to."""
    return frozenset().union(*(written_by(each.graph).captured for each in functions))


class _Question:
    """Stands among what a function captured for `first`, and tells when that is asked for.

    Several recorders may watch one function: then `first` is the question of another one.
    """

    def __init__(self, first: Any, older: Older, called: Callable[[Older], None]) -> None:
        self.first = first
        self.older = older
        self.called = called
        self.asked = True

    def __call__(self) -> Any:
        if self.asked:
            self.called(self.older)
        return self.first() if callable(self.first) else [self.first]


def _give_back(function: Any) -> None:
    """Give a function what it captured, but for the questions that are still asked of it."""
    if function is not None and isinstance(function._captured_inputs[0], _Question):
        first, *others = function._captured_inputs
        while isinstance(first, _Question) and not first.asked:
            first = first.first
        function._captured_inputs = [first, *others]


def forget_graphs_with(handles: Iterable[Any]) -> None:
    """Let each `tf.function` one of whose graphs captured one of `handles` be traced anew."""
    wanted = {id(handle) for handle in handles}
    for function in _functions()[1]:
        if any(_captures(each, wanted) for each in concrete_functions(function)):
            trace_anew(function)


def _captures(function: Any, handles: Collection[int]) -> bool:
    """Whether the graph of a concrete function captured a tensor with one of these ids."""
    return any(id(outer) in handles for outer, _ in function.graph.captures)


def outermost(names: Iterable[str]) -> list[str]:
    """The names of functions, each once, without those of functions inside another one of them.

    >>> outermost(["train/step", "train", "test"])
    ['test', 'train']
    """
    known = set(names)
    return sorted(
        name for name in known if not any(name.startswith(f"{other}/") for other in known)
    )


def note_of(older: Older, name: str, calls: int) -> str:
    """What a trace says of `calls` of a function of the optimizer `name`."""
    if older.caller == PIPELINE:
        return (
            f"{name}: {older.function!r}, which a dataset runs, was traced before the tracer came: "
            "what it does is not counted; wrap the optimizer before the dataset is made"
        )
    if older.caller:
        return (
            f"{name}: {older.function!r}, a function traced before the tracer came, is called by "
            f"{older.caller!r}: what it does there is not counted; wrap the optimizer before it "
            "trains"
        )
    if older.function == compat.SESSION_GRAPH:
        often = "once" if calls == 1 else f"{calls:,} times"
        return (
            f"{name}: a Session ran updates {often} that were in its graph before the tracer came, "
            "and are not counted; wrap the optimizer before apply_gradients"
        )
    times = "1 call" if calls == 1 else f"{calls:,} calls"
    return (
        f"{name}: {times} of {older.function!r}, a function traced before the tracer came, "
        f"{'is' if calls == 1 else 'are'} not counted; wrap the optimizer before it trains"
    )


_known_functions: tuple[int, list[ReferenceType[Any]]] = (-1, [])
_living = Living()
_listening = False


def listen() -> None:
    """Be told of each function from now on, so that no walk over all objects looks for new ones."""
    global _listening
    if not _listening:
        _listening = True
        for cls in function_classes():
            _living.tell_of(cls)


def _functions() -> tuple[list[Any], list[Any]]:
    """Every living `ConcreteFunction`, and every `tf.function`.

    To look for them takes a walk over all objects, so they are kept, weakly, as long as TensorFlow
    knows of no new function; unless somebody listens.
    """
    global _known_functions
    if _listening:
        functions = _living.all()
    else:
        known = newest_function()
        if known != _known_functions[0]:
            functions = instances(function_classes())
            _known_functions = (known, [ref(each) for each in functions])
        functions = [each for known in _known_functions[1] if (each := known()) is not None]
    concretes = [each for each in functions if is_concrete(each)]
    return concretes, [each for each in functions if not is_concrete(each)]


_known: WeakKeyDictionary[Any, dict[tuple[frozenset[int], str], list[Write]]] = WeakKeyDictionary()


def _known_writes(graph: Any, handles: Collection[int], scope: str) -> list[Write]:
    """The same of the finished graph of a function: asked again, it is known."""
    captured = frozenset(id(outer) for outer, _ in graph.captures if id(outer) in handles)
    known = _known.setdefault(graph, {})
    writes = known.get((captured, scope))
    if writes is None:
        writes = known[captured, scope] = _writes(graph, captured, scope)
    return writes


def _writes(graph: Any, handles: Collection[int], scope: str) -> list[Write]:
    """What in a graph writes to `handles`, or has the name of an optimizer, `scope`."""
    named = ops_named(graph, _updates_by(scope)) if scope else ()
    return [*writes_of(graph, handles), *named]


class _Functions:
    """The functions that are alive at one moment, asked which of them use an optimizer."""

    def __init__(self) -> None:
        self.concretes, self.polymorphics = _functions()
        self._reached: dict[int, _Reached] = {}
        self._graphs_of = [(each, concrete_functions(each)) for each in self.polymorphics]
        self._by_handle: dict[int, list[Any]] = {}
        for function in self.concretes:
            for handle in written_by(function.graph).captured:
                self._by_handle.setdefault(handle, []).append(function)

    def users_of(
        self, optimizer: Any, variables: Collection[Any], methods: Collection[str], scope: str
    ) -> Iterator[Any]:
        """The concrete functions that use `optimizer`, each once."""
        users = [each for handle in variables for each in self._by_handle.get(id(handle), ())]
        if scope:
            by_name = _updates_by(scope)
            for function in self.concretes:
                if any(by_name.search(op.name) for op in ops_in(function.graph)):
                    users.append(function)
        seen: set[int] = set()
        for function in users:
            if id(function) not in seen:
                seen.add(id(function))
                yield function
        names = frozenset({*methods, "minimize"})
        for polymorphic, graphs in self._graphs_of:
            writing = [
                function
                for function in graphs
                if id(function) not in seen and written_by(function.graph).anything
            ]
            if writing and self._reach(polymorphic).uses(optimizer, names):
                seen.update(map(id, writing))
                yield from writing

    def polymorphics_of(self, concretes: Collection[int]) -> Iterator[Any]:
        """The `tf.function`s with one of these concrete functions, given by their `id`."""
        for polymorphic, graphs in self._graphs_of:
            if any(id(function) in concretes for function in graphs):
                yield polymorphic

    def _reach(self, polymorphic: Any) -> "_Reached":
        reached = self._reached.get(id(polymorphic))
        if reached is None:
            reached = self._reached[id(polymorphic)] = _reached_from(polymorphic.python_function)
        return reached


_at_this_moment: _Functions | None = None


@contextmanager
def one_moment() -> Iterator[None]:
    """Several optimizers are wrapped at one moment: the functions are looked at once."""
    global _at_this_moment
    _at_this_moment = _Functions()
    try:
        yield
    finally:
        _at_this_moment = None


def _look() -> _Functions:
    return _at_this_moment or _Functions()


class _Reached(NamedTuple):
    """What the code of a function reaches."""

    objects: frozenset[int]
    """The ids of the objects that it names, and functions that it calls."""
    bound: frozenset[int]
    """The ids of those of which it calls a method that is a `tf.function`."""
    names: frozenset[str]
    """The names in its code, and in that of the functions that it calls."""

    def uses(self, optimizer: Any, methods: Collection[str]) -> bool:
        """Whether it names the optimizer, and one of the methods by which it updates."""
        by_name = id(optimizer) in self.objects and not self.names.isdisjoint(methods)
        return by_name or id(optimizer) in self.bound


def _reached_from(function: Any) -> _Reached:
    todo: list[tuple[Any, int]] = [(function, 0)]
    seen: dict[int, Any] = {}  # with the objects, so that no other one gets the id meanwhile
    bound, every_name = set(), set[str]()
    while todo:
        value, depth = todo.pop()
        if id(value) in seen:
            continue
        seen[id(value)] = value
        owner = bound_to(value)
        if owner is not None:
            bound.add(id(owner))
        elif isinstance(value, functools.partial):
            todo += [(held, depth) for held in (value.func, *value.args, *value.keywords.values())]
        elif inspect.ismethod(value):
            todo += [(value.__self__, depth), (value.__func__, depth)]
        elif isinstance(value, ref):
            todo.append((value(), depth))
        elif isinstance(value, list | tuple) and len(value) <= 100:
            todo += [(held, depth) for held in value]
        elif isinstance(value, FunctionType) and depth < _DEEP:
            names = _code_names(value.__code__)
            every_name |= names
            used = [*_cells(value), *_globals(value, names), *(value.__defaults__ or ())]
            used.append(getattr(value, "__wrapped__", None))
            for user in used:
                todo.append((user, depth + 1))
                todo += [(held, depth + 1) for held in _attributes(user, names)]
        elif kind_of(type(value)) is None:  # an optimizer is where the way ends
            inner = getattr(value, "python_function", None) if depth < _DEEP else None
            if inspect.isroutine(inner):
                todo.append((inner, depth + 1))
    return _Reached(frozenset(seen), frozenset(bound), frozenset(every_name))


def _code_names(code: CodeType) -> set[str]:
    """The names of globals and attributes in a function's code and the functions inside it."""
    names = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            names |= _code_names(constant)
    return names


def _cells(function: FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it is not filled yet
            continue


def _globals(function: FunctionType, names: Collection[str]) -> Iterator[Any]:
    yield from (function.__globals__[name] for name in names if name in function.__globals__)


def _attributes(value: Any, names: Collection[str]) -> Iterator[Any]:
    """What hangs on an object under one of these names; no property of a foreign class is run."""
    own = getattr(type(value), "__dict__", None) and getattr(value, "__dict__", None)
    if isinstance(own, dict) and not inspect.ismodule(value):
        yield from (own[name] for name in names & own.keys())
