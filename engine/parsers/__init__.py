"""Reading what chat models write: reasoning, content and tool calls, in each format that a
checkpoint may have been taught; and which format that is."""

from collections.abc import Callable
from dataclasses import dataclass

from mkport.engine import template
from mkport.engine.parsers import cohere, grammars, hermes, llama3
from mkport.engine.parsers.cohere import CohereParser
from mkport.engine.parsers.deltas import Call, Delta, Parser, Reply, joined
from mkport.engine.parsers.grammars import Wanted
from mkport.engine.parsers.hermes import HermesParser
from mkport.engine.parsers.llama3 import Llama3Parser
from mkport.engine.parsers.plain import PlainParser
from mkport.engine.request import Grammar
from mkport.errors import UserError

__all__ = ["FORMATS", "Call", "Delta", "Format", "Parser", "Reply", "Wanted", "choose", "joined"]


@dataclass(frozen=True)
class Format:
    """One way to write a reply.

    `parser(thinking=, names=)` makes a parser for one choice; `grammar(wanted)` what the reply must
    belong to, None if anything will do; `markers` are texts that the parser must see even where
    they are special tokens; `opened` is how a prompt ends that has opened the reasoning.
    """

    name: str
    parser: Callable[..., Parser]
    grammar: Callable[[Wanted], Grammar | None]
    markers: tuple[str, ...] = ()
    opened: str | None = None


FORMATS = {
    form.name: form
    for form in (
        Format("plain", PlainParser, grammars.plain_grammar),
        Format(
            "hermes",
            HermesParser,
            grammars.hermes_grammar,
            (hermes.THINK, hermes.END_THINK, hermes.CALL, hermes.END_CALL),
            hermes.THINK,
        ),
        Format("llama3", Llama3Parser, grammars.llama3_grammar, (llama3.TAG,)),
        Format("cohere", CohereParser, grammars.cohere_grammar, cohere.MARKERS, cohere.THINKING),
    )
}

# The first whose sign is in a chat template.
_SIGNS = (
    (cohere.ACTION, "cohere"),
    (cohere.THINKING, "cohere"),
    (hermes.CALL, "hermes"),
    (llama3.TAG, "llama3"),
    ("<|start_header_id|>", "llama3"),
)


def choose(chat_template: str | None, name: str | None = None) -> Format:
    """The format that a checkpoint writes, by its chat template; or the one called `name`.

    A template that takes no tools gets them in Hermes' form; one of an unknown form is "plain".
    Raises UserError for a name that is none.
    """
    if name is not None:
        if name not in FORMATS:
            raise UserError(f"There is no parser {name!r}; there are {', '.join(FORMATS)}.")
        return FORMATS[name]
    if chat_template is None:
        return FORMATS["plain"]
    for sign, form in _SIGNS:
        if sign in chat_template:
            return FORMATS[form]
    return FORMATS["plain" if template.reads(chat_template, "tools") else "hermes"]
