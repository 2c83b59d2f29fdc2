"""Rendering a checkpoint's own chat template. It is code from a stranger, so it runs in jinja2's
immutable sandbox, with the helpers that transformers gives such templates and nothing else.

Source: transformers' utils/chat_template_utils.py.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from mkport.errors import UserError


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model wrote; it renders its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between the tags, as they are; jinja2 calls it behind an opening tag.

        Raises jinja2's TemplateSyntaxError when no closing tag follows.
        """
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now().strftime(form)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML, which no model was trained on
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    return _environment().from_string(source)


@lru_cache(maxsize=8)
def reads(source: str, variable: str) -> bool:
    """Whether a template makes any use of a variable that it is given."""
    environment = _environment()
    try:
        return variable in meta.find_undeclared_variables(environment.parse(source))
    except TemplateError:  # rendering it will say what is wrong
        return True


def render(source: str, variables: Mapping[str, Any]) -> str:
    """The text of a chat template. Raises UserError with the template's own complaint if any."""
    try:
        return _compile(source).render(**variables)
    except Exception as error:  # the template is foreign code and may fail in any way
        raise UserError(
            f"The checkpoint's chat template refused the conversation: "
            f"{type(error).__name__}: {error}. Change the messages (roles, their order, missing "
            f"content), or send plain text without a template."
        ) from error
