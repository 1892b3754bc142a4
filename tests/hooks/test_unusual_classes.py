"""Optimizers of classes that are written in unusual ways, held against their odometers."""

import functools
import gc
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import tensorflow as tf
from support.against_odometers import assert_three_steps, three_steps
from support.odometers import DENSE_METHOD, KINDS, ODOMETERS, Boom, gradients, make_variables

import tracer

pytestmark = pytest.mark.wide(rest="sweep")

kinds = pytest.mark.parametrize("kind", KINDS)
both = pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])


class Slots:
    """Names of the class's own slots."""

    __slots__ = ()


def _slots(base: Any) -> Any:
    class Slotted(Slots, base):  # type: ignore[misc]
        __slots__ = ("extra",)

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            object.__setattr__(self, "extra", 1)

    return Slotted


def _getattr(base: Any) -> Any:
    class Answering(base):  # type: ignore[misc]
        def __getattr__(self, name: str) -> Any:
            if name.startswith("__") or name in ("_self_setattr_tracking", "_hyper"):
                raise AttributeError(name)
            try:
                return super().__getattr__(name)
            except AttributeError:
                if name.startswith("my_"):
                    return name
                raise

    return Answering


def _equal(base: Any) -> Any:
    class Equal(base):  # type: ignore[misc]
        def __bool__(self) -> bool:
            raise RuntimeError("nobody should ask")

        def __len__(self) -> int:
            return 0

        def __repr__(self) -> str:
            raise RuntimeError("nobody should ask")

    if base is not ODOMETERS["legacy"]:  # which keeps its optimizers in a dict itself

        def equal(self: Any, other: object) -> bool:
            raise RuntimeError("nobody should ask")

        Equal.__eq__ = equal  # type: ignore[method-assign]
        Equal.__hash__ = None  # type: ignore[assignment]
    return Equal


def _partial(base: Any) -> Any:
    class Partial(base):  # type: ignore[misc]
        pass

    for name in ("update_step", "_resource_apply_dense"):
        original = getattr(base, name, None)
        if original is not None:

            def method(self: Any, factor: int, *args: Any, f: Any = original, **kwargs: Any) -> Any:
                return f(self, *args, **kwargs)

            setattr(Partial, name, functools.partialmethod(method, 1))
    return Partial


def _written_by_a_hook(base: Any) -> Any:
    class Tagging(base):  # type: ignore[misc]
        def __init_subclass__(cls, tag: str = "", **options: Any) -> None:
            super().__init_subclass__(**options)
            cls.tag = tag

    class Tagged(Tagging, tag="mine"):
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            if self.tag != "mine":
                raise RuntimeError(f"the tag became {self.tag!r}")
            return super().apply_gradients(*args, **kwargs)

    return Tagged


def _super_of_its_class(base: Any) -> Any:
    class Explicit(base):  # type: ignore[misc]
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            assert type(self) is not None  # so that both `super` and `type` are in its code
            return super(self.__class__, self).apply_gradients(*args, **kwargs)

    return Explicit


def _alike(base: Any) -> Any:
    """A class that its metaclass holds equal to another one, which is traced already."""

    class ByName(type(base)):  # type: ignore[misc]
        def __eq__(cls, other: object) -> bool:
            return isinstance(other, type) and cls.__name__ == other.__name__

        def __hash__(cls) -> int:
            return hash(cls.__name__)

    def make(number: int) -> Any:
        class Alike(base, metaclass=ByName):  # type: ignore[misc]
            def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
                if number != 2:
                    raise RuntimeError("this is another class")
                return super().apply_gradients(*args, **kwargs)

        return Alike

    tracer.wrap(make(1)())
    return make(2)


UNUSUAL: dict[str, Callable[[Any], Any]] = {
    "__slots__": _slots,
    "__getattr__": _getattr,
    "__eq__, __bool__, __len__ and __repr__": _equal,
    "partialmethod": _partial,
    "what __init_subclass__ writes": _written_by_a_hook,
    "super(self.__class__, self)": _super_of_its_class,
    "equal to another class": _alike,
}


@kinds
@pytest.mark.parametrize("how", UNUSUAL)
def test_unusual_classes(kind: str, how: str) -> None:
    cls = UNUSUAL[how](ODOMETERS[kind])
    optimizer = cls()
    run_untraced = cls()  # it must work by itself
    run_untraced.apply_gradients(gradients(make_variables(kind)))
    assert tracer.wrap(optimizer) is optimizer
    assert isinstance(optimizer, cls) and optimizer.__class__ is cls
    assert (type(optimizer).__name__, type(optimizer).__module__) == (cls.__name__, cls.__module__)
    assert_three_steps(*three_steps(kind, optimizer))
    assert tracer.unwrap(optimizer) is optimizer
    assert type(optimizer) is cls


def _final(error: type[Exception]) -> Callable[[Any], Any]:
    def make(base: Any) -> Any:
        class Final(base):  # type: ignore[misc]
            def __init_subclass__(cls, **options: Any) -> None:
                raise error("final")

        return Final

    return make


def _one_class(base: Any) -> Any:
    class OneOfAName(type(base)):  # type: ignore[misc]
        known: dict[str, Any] = {}  # noqa: RUF012

        def __new__(mcs, name: str, *args: Any) -> Any:
            if name not in mcs.known:
                mcs.known[name] = super().__new__(mcs, name, *args)
            return mcs.known[name]

    class One(base, metaclass=OneOfAName):  # type: ignore[misc]
        pass

    return One


def _super_of_type(base: Any) -> Any:
    class Recursive(base):  # type: ignore[misc]
        def apply_gradients(self, *args: Any, **kwargs: Any) -> Any:
            return super(type(self), self).apply_gradients(*args, **kwargs)

    return Recursive


UNSUPPORTED: dict[str, Callable[[Any], Any]] = {
    "no subclass, TypeError": _final(TypeError),
    "a metaclass that makes no second class of a name": _one_class,
    "super(type(self), self)": _super_of_type,
}


@kinds
@pytest.mark.parametrize("how", UNSUPPORTED)
def test_classes_that_allow_no_subclass_are_refused(kind: str, how: str) -> None:
    optimizer = UNSUPPORTED[how](ODOMETERS[kind])()
    with pytest.raises(tracer.UnsupportedOptimizer, match="it cannot be subclassed") as caught:
        tracer.wrap(optimizer)
    with tracer.record() as recording:
        optimizer.apply_gradients(gradients(make_variables(kind)))  # it is as it was
    (note,) = (each for each in recording.trace().notes if "it cannot be subclassed" in each)
    assert note.endswith("what it does is not counted") and not recording.trace().complete
    with pytest.raises(ValueError, match="never wrapped"):
        tracer.trace_of(optimizer)
    del optimizer, caught
    gc.collect()  # a recording of another test would meet it


@kinds
def test_a_class_that_is_changed_while_it_is_traced(kind: str) -> None:
    base: Any = ODOMETERS[kind]

    class Other(base):  # type: ignore[misc]
        pass

    optimizer = tracer.wrap(ODOMETERS[kind]())
    optimizer.__class__ = Other
    assert optimizer.__class__ is Other
    assert_three_steps(*three_steps(kind, optimizer))
    assert type(tracer.unwrap(optimizer)) is Other


@kinds
def test_a_method_that_is_mocked_while_it_is_traced(kind: str) -> None:
    cls: Any = ODOMETERS[kind]
    optimizer, variables = tracer.wrap(cls()), make_variables(kind)
    with mock.patch.object(cls, "apply_gradients") as mocked:
        optimizer.apply_gradients(gradients(variables))
    assert mocked.call_count == 1
    trace = tracer.trace_of(optimizer)
    assert trace.updates() == 0
    assert not any("failed" in note for note in trace.notes), trace.notes
    optimizer.apply_gradients(gradients(variables))
    assert tracer.trace_of(optimizer).updates(variable=variables["kernel"]) == 1


@kinds
def test_threads_that_wrap_the_first_object_of_a_class(kind: str) -> None:
    class Slow(type(ODOMETERS[kind])):  # type: ignore[misc]
        def __init__(cls, *args: Any) -> None:
            super().__init__(*args)
            time.sleep(0.05)

    class Own(ODOMETERS[kind], metaclass=Slow):  # type: ignore[misc, valid-type]
        pass

    optimizers = [Own() for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(tracer.wrap, optimizers))
    assert len({type(each) for each in optimizers}) == 1
    for each in optimizers:
        assert_three_steps(*three_steps(kind, each, compiled=False))


@kinds
@both
def test_the_traceback_of_an_exception_is_the_users(kind: str, compiled: bool) -> None:
    """One frame of ours for each method that is intercepted, no exception chained to it."""
    base: Any = ODOMETERS[kind]
    name = DENSE_METHOD[kind]

    def tracebacks(traced: bool) -> tuple[list[str], BaseException]:
        class Broken(base):  # type: ignore[misc]
            pass

        def apply(self: Any, *args: Any, **kwargs: Any) -> Any:
            raise Boom("in the user's line")

        setattr(Broken, name, apply)
        optimizer = Broken()
        if traced:
            tracer.wrap(optimizer)
        kernel = make_variables(kind)["kernel"]

        def step() -> None:
            optimizer.apply_gradients([(tf.ones((2, 2)), kernel)])

        with pytest.raises(Boom) as caught:
            (tf.function(step, autograph=False) if compiled else step)()
        if traced:
            trace = tracer.trace_of(optimizer)
            assert (trace.calls(name), trace.executions(name), trace.steps) == (1, 0, 0)
            assert trace.complete is compiled, "in eager mode it may have written"
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert frames[-1].line == 'raise Boom("in the user\'s line")'
        return [frame.filename for frame in frames], caught.value

    plain, _ = tracebacks(False)
    traced, error = tracebacks(True)
    ours = [path for path in traced if Path(path).is_relative_to(Path(tracer.__file__).parent)]
    assert [path for path in traced if path not in ours] == plain
    # apply_gradients, in Keras 3 its apply, the group of its apply methods, the apply method
    assert len(ours) == {"keras3": 4, "v1": 2}.get(kind, 3)
    assert error.__cause__ is None
