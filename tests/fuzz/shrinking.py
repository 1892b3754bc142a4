"""Leaves parts out of a failing program while it still fails."""

import time
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any

from fuzz.programs import Look, Program, Statement, Wrap, without_unused


def shrunk(program: Program, fails: Callable[[Program], bool], seconds: float) -> Program:
    """A smaller program for which `fails` is still true; the search ends after `seconds`."""
    end = time.monotonic() + seconds
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller_programs(program):
            if time.monotonic() > end:
                return program
            if fails(candidate):
                program, smaller = candidate, True
                break
    return program


def _smaller_programs(program: Program) -> Iterator[Program]:
    for actions in _smaller(program.actions):
        if any(isinstance(each, Look) for each in actions):
            yield without_unused(replace(program, actions=actions))
    for number, function in enumerate(program.functions):
        for body in _smaller(function.body):
            changed = replace(function, body=body)
            functions = (*program.functions[:number], changed, *program.functions[number + 1 :])
            yield without_unused(replace(program, functions=functions))
        for plain in ("autograph", "jit"):
            if getattr(function, plain):
                changed = _with(function, plain, False)
                functions = (*program.functions[:number], changed, *program.functions[number + 1 :])
                yield replace(program, functions=functions)
    for optimizer in _smaller_optimizers(program):
        yield without_unused(replace(program, optimizer=optimizer))
    if program.other:
        actions = tuple(
            each
            for each in program.actions
            if not (isinstance(each, Wrap) and each.optimizer == "other")
        )
        yield replace(program, other=False, actions=actions)
    if len(program.variables) > 1:
        yield replace(program, variables=program.variables[:-1])


def _smaller_optimizers(program: Program) -> Iterator[Any]:
    optimizer = program.optimizer
    for name in ("override", "applying", "options"):
        values = getattr(optimizer, name)
        for number in range(len(values)):
            yield _with(optimizer, name, values[:number] + values[number + 1 :])
    for name in ("inner", "fused", "loss_scale"):
        if getattr(optimizer, name):
            yield _with(optimizer, name, False)


def _smaller(value: Any) -> Iterator[Any]:
    """The same with something left out, at any depth."""
    if isinstance(value, tuple):
        for number, each in enumerate(value):
            before, after = value[:number], value[number + 1 :]
            if isinstance(each, Statement) or (isinstance(each, tuple) and len(value) > 1):
                yield before + after
            if isinstance(each, Statement):
                for inside in _bodies(each):
                    yield before + inside + after
            for changed in _smaller(each):
                yield (*before, changed, *after)
    elif is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            for changed in _smaller(getattr(value, field.name)):
                yield _with(value, field.name, changed)


def _with(record: Any, field: str, value: Any) -> Any:
    return replace(record, **{field: value})


def _bodies(statement: Statement) -> Iterator[tuple[Statement, ...]]:
    """What is inside of a statement, to stand in its place."""
    for field in fields(statement):  # type: ignore[arg-type]
        inside = getattr(statement, field.name)
        if isinstance(inside, tuple) and any(isinstance(each, Statement) for each in inside):
            yield inside
