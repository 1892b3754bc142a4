"""The templates of the page and of the picture, filled in."""

from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from tracer.layout import cut, shown


def render(name: str, **values: Any) -> str:
    """The template with these values, each of them escaped, control characters too."""
    return _environment().get_template(name).render(values)


@cache
def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tracer.reporters"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: shown(value) if type(value) is str else value,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    environment.filters.update(
        number="{:,}".format, cut=lambda text, width: cut(shown(text), width, width // 2)
    )
    return environment


def source(name: str) -> str:
    """The text of a file that is put into the page as it is."""
    return (files("tracer.reporters") / "templates" / name).read_text(encoding="utf-8")
