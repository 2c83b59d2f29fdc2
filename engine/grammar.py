"""Grammars that an output must belong to: compiled by `llguidance` for one tokenizer, then followed
token by token. Which grammar a tool call needs is in `parsers`; masks are applied in `sampling`."""

import json
import re
import threading
import time
from collections import OrderedDict
from typing import Any

import numpy as np

from mkport.engine.request import Grammar
from mkport.engine.sampling import RowError
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError
from mkport.extras import install

KEPT = 64  # compiled grammars; an agent sends the same tools with every message
# JSON may be laid out with line breaks and indents, but a model cannot get lost in white space
LAYOUT: Any = {"whitespace_pattern": r"(\x20|\x0A[\x20\x09]{0,32})?"}


# Seconds of the processor that an output's masks may take, and what each adds to them: everybody
# waits meanwhile. One of a JSON schema takes 20 microseconds; of a grammar that reads a text in
# many ways, the more the longer the text is.
ROOM_S, EACH_S = 0.25, 0.002


class GrammarFailed(RowError):
    """A grammar that compiled met a limit while it was followed, or a token that it forbids."""

    own = True


class Matcher:
    """One output's way through a grammar."""

    def __init__(self, matcher: Any) -> None:
        self._matcher = matcher
        self._left = ROOM_S  # seconds for masks

    def mask(self) -> np.ndarray:
        """A bit for each token that may come next, the lowest bit first, int32 [vocab / 32]: what
        `Sampler.choose` takes. Where the output may end, the bits of the tokens that end it are
        set. Raises GrammarFailed where the library gives up, or takes too long."""
        began = time.thread_time()
        words = np.frombuffer(self._matcher.compute_bitmask(), np.int32)
        self._check()
        self._left += EACH_S - (time.thread_time() - began)
        if self._left < 0:
            raise GrammarFailed(
                "The grammar cannot be followed any further: to tell which tokens may come next "
                "takes too long, probably because it reads a text in many ways. Write it so that "
                "there is one."
            )
        return words

    def accept(self, token: int) -> None:
        """Goes on by one token. Raises GrammarFailed for one that `mask` does not allow."""
        if not self._matcher.consume_token(token):
            self._check()
            raise GrammarFailed(f"The grammar does not allow the token {token} here.")

    @property
    def may_stop(self) -> bool:
        """Whether what was accepted so far belongs to the language."""
        return bool(self._matcher.is_accepting())

    @property
    def finished(self) -> bool:
        """Whether nothing can follow: the output is over even if its end token is ignored."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            reason = self._matcher.get_error().partition("\n<state>")[
                0
            ]  # the rest is for debugging
            raise GrammarFailed(f"The grammar cannot be followed any further: {reason}")


class Grammars:
    """Compiles grammars for a tokenizer, and keeps the last ones. Safe to use from any thread.

    `vocab` is the model's vocabulary, which may be larger than the tokenizer's.
    """

    def __init__(self, tokenizer: Tokenizer, vocab: int) -> None:
        self._tokenizer, self._vocab = tokenizer, vocab
        self._lock = threading.Lock()
        self._library: Any = None  # llguidance's tokenizer, made when the first grammar comes
        self._kept: OrderedDict[Grammar, Any] = OrderedDict()

    def matcher(self, grammar: Grammar) -> Matcher:
        """A matcher at the grammar's beginning. Takes milliseconds, the first time of all up to
        seconds, and lets other threads run: call it outside of an engine's loop.

        Raises UserError with the reason when the grammar does not compile.
        """
        with self._lock:
            compiled = self._kept.get(grammar)
            if compiled is not None:
                self._kept.move_to_end(grammar)
                return Matcher(compiled.deep_copy())
            library = self._library = self._library or _for_llguidance(self._tokenizer, self._vocab)
        compiled = _compile(grammar, library)
        with self._lock:
            self._kept[grammar] = compiled
            while len(self._kept) > KEPT:
                self._kept.popitem(last=False)
        return Matcher(compiled.deep_copy())


def _for_llguidance(tokenizer: Tokenizer, vocab: int) -> Any:
    try:
        from llguidance import LLTokenizer
    except ImportError as error:
        raise UserError(
            "Grammars (response_format, forced tool calls) need the package llguidance. Install "
            f"mkport's extra `serve`: {install('serve')}."
        ) from error
    ends = list(tokenizer.eos_ids) or None
    return LLTokenizer(
        tokenizer.to_json(), n_vocab=max(vocab, tokenizer.vocab_size), eos_token=ends
    )


def _compile(grammar: Grammar, library: Any) -> Any:
    from llguidance import LLMatcher

    what = "JSON schema" if grammar.kind == "json_schema" else "grammar"
    try:
        if grammar.kind == "regex":
            text = LLMatcher.grammar_from_regex(grammar.text)
        elif grammar.kind == "lark":
            text = LLMatcher.grammar_from_lark(grammar.text)
        else:
            schema = '{"type": "object"}' if grammar.kind == "json_object" else grammar.text
            text = LLMatcher.grammar_from_json_schema(_checked(schema), overrides=LAYOUT)
        compiled = LLMatcher(library, text, log_level=0)
        reason = compiled.get_error() if compiled.is_error() else ""
        if not reason and not Matcher(compiled.deep_copy()).mask().any():
            reason = "no text belongs to it"
    except GrammarFailed as error:  # it compiles, but nothing can be its beginning
        compiled, reason = None, str(error)
    except Exception as error:  # the library raises several kinds for what it cannot read
        compiled, reason = None, str(error)
    if reason:
        raise UserError(f"The {what} does not compile: {_shortened(reason, grammar)}")
    return compiled


def _shortened(reason: str, grammar: Grammar) -> str:
    """The library's reason; of a long grammar, the beginning of the line where it found the fault
    in place of all lines around it."""
    place = re.match(r"at (\d+)\(\d+\): ", reason)
    if grammar.kind != "lark" or not place:
        return reason.strip()
    number = int(place[1])
    line = "".join(grammar.text.split("\n")[number - 1 : number])
    return f"{reason[place.end() :].splitlines()[0]} (line {number}: {line[:80]})"


def _checked(schema: str) -> str:
    """A schema without the library's own options, which are not a client's to set."""
    value = json.loads(schema)
    if value is True:
        return "{}"
    if not isinstance(value, dict):
        raise ValueError("it must be an object")
    value.pop("x-guidance", None)
    return json.dumps(value, ensure_ascii=False)
