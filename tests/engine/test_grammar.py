"""Outputs under a grammar belong to it, whatever the model would rather say; what does not compile
is refused with the reason."""

import json
import re
import time
from typing import Any

import numpy as np
import pytest

from mkport.engine.grammar import KEPT, ROOM_S, GrammarFailed, Grammars, Matcher
from mkport.engine.request import Grammar, Sampling
from mkport.engine.sampling import Sampler
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError
from mkport.extras import install

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 5},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["é", "日本", '"']}, "maxItems": 2},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module", params=["demo_tokenizer", "single_bytes"])
def grammars(request: pytest.FixtureRequest) -> tuple[Grammars, Tokenizer]:
    tokenizer = request.getfixturevalue(request.param)
    return Grammars(tokenizer, tokenizer.vocab_size + 40), tokenizer  # padded, as models often are


def follow(matcher: Matcher, tokenizer: Tokenizer, seed: int, limit: int = 400) -> str:
    """Text of an output whose model knows nothing: flat logits, so only the grammar leads it."""
    sampler, ids = Sampler(Sampling(max_tokens=limit), seed=seed), list[int]()
    logits = np.zeros(tokenizer.vocab_size + 40, np.float32)
    while len(ids) < limit and not matcher.finished:
        token = sampler.choose(logits, matcher.mask(), len(ids))
        assert token < tokenizer.vocab_size
        if token in tokenizer.eos_ids:
            assert matcher.may_stop
            break
        matcher.accept(token)
        ids.append(token)
    return b"".join(map(tokenizer.token_bytes, ids)).decode() if matcher.may_stop else ""


def test_a_schema_is_kept_by_a_model_that_knows_nothing(
    grammars: tuple[Grammars, Tokenizer],
) -> None:
    for seed in range(8):
        matcher = grammars[0].matcher(Grammar("json_schema", json.dumps(PERSON)))
        value: dict[str, Any] = json.loads(follow(matcher, grammars[1], seed))
        assert list(value) == ["name", "age", "tags"]
        assert len(value["name"]) <= 5 and 0 <= value["age"] <= 130
        assert len(value["tags"]) <= 2 and set(value["tags"]) <= {"é", "日本", '"'}


def test_patterns_and_free_grammars(grammars: tuple[Grammars, Tokenizer]) -> None:
    pattern = r"(ab|cd){2}-[0-9]{3}"
    for seed in range(4):
        matcher = grammars[0].matcher(Grammar("regex", pattern))
        assert re.fullmatch(pattern, follow(matcher, grammars[1], seed))
        lark = Grammar(
            "lark", 'start: "[" pair ("," pair){1,3} "]"\npair: /[a-z]{1,2}/ "=" /[0-9]/'
        )
        text = follow(grammars[0].matcher(lark), grammars[1], seed)
        assert re.fullmatch(r"\[[a-z]{1,2}=\d(,[a-z]{1,2}=\d){1,3}\]", text)


def test_any_object_begins_with_a_brace_and_ends_only_when_closed(
    grammars: tuple[Grammars, Tokenizer],
) -> None:
    matcher, tokenizer = grammars[0].matcher(Grammar("json_object")), grammars[1]
    end = tokenizer.eos_ids[0]
    assert allowed(matcher, tokenizer) <= {i for i in range(tokenizer.vocab_size) if i != end}
    for token in tokenizer.encode('{"a": [1, {"}": null}]', add_special=False):
        assert not matcher.may_stop and not matcher.finished
        matcher.accept(token)
    assert end not in allowed(matcher, tokenizer)
    for token in tokenizer.encode("}", add_special=False):
        matcher.accept(token)
    assert matcher.may_stop and matcher.finished
    assert allowed(matcher, tokenizer) == {end}


def allowed(matcher: Matcher, tokenizer: Tokenizer) -> set[int]:
    bits = np.unpackbits(matcher.mask().view(np.uint8), bitorder="little")
    assert bits.size >= tokenizer.vocab_size + 40
    return set(np.flatnonzero(bits).tolist())


def test_an_object_may_be_laid_out_over_lines(grammars: tuple[Grammars, Tokenizer]) -> None:
    value = {"a": [1, {"b": "\n\n"}], "c": {}}
    for text in (json.dumps(value, indent=4), json.dumps(value, indent="\t"), json.dumps(value)):
        matcher = grammars[0].matcher(Grammar("json_object"))
        for token in grammars[1].encode(text, add_special=False):
            matcher.accept(token)
        assert matcher.finished


def test_white_space_has_an_end(grammars: tuple[Grammars, Tokenizer]) -> None:
    matcher, tokenizer = grammars[0].matcher(Grammar("json_object")), grammars[1]
    with pytest.raises(GrammarFailed):
        for token in tokenizer.encode('{"a":\n\n1', add_special=False):
            matcher.accept(token)


def test_outputs_do_not_share_their_way(grammars: tuple[Grammars, Tokenizer]) -> None:
    grammar = Grammar("regex", "ab")
    one, two = grammars[0].matcher(grammar), grammars[0].matcher(grammar)
    before = allowed(two, grammars[1])
    one.accept(grammars[1].encode("a", add_special=False)[0])
    assert allowed(two, grammars[1]) == before != allowed(one, grammars[1])


def test_a_forbidden_token_ends_that_output_with_a_short_reason(
    grammars: tuple[Grammars, Tokenizer],
) -> None:
    matcher = grammars[0].matcher(Grammar("regex", "ab"))
    with pytest.raises(GrammarFailed) as failure:
        matcher.accept(grammars[1].encode("x", add_special=False)[0])
    assert len(str(failure.value)) < 300
    with pytest.raises(GrammarFailed):
        matcher.mask()


def test_a_grammar_that_reads_a_text_in_many_ways_takes_nobody_s_time(
    grammars: tuple[Grammars, Tokenizer],
) -> None:
    text = 'start: s\ns: s s | "a" | "b" | " "'
    matcher, (token, *_) = grammars[0].matcher(Grammar("lark", text)), grammars[1].encode("a")
    began = time.thread_time()
    with pytest.raises(GrammarFailed, match="in many ways|Too many items"):
        for _ in range(2000):
            matcher.mask()
            matcher.accept(token)
    assert time.thread_time() - began < 2


def test_long_json_is_far_from_taking_too_long(grammars: tuple[Grammars, Tokenizer]) -> None:
    schema = json.dumps({"type": "array", "items": PERSON})
    matcher, tokenizer = grammars[0].matcher(Grammar("json_schema", schema)), grammars[1]
    person = json.dumps({"name": "Ada", "age": 36, "tags": ["é"]}, ensure_ascii=False)
    for token in tokenizer.encode(f"[{', '.join([person] * 30)}]", add_special=False):
        matcher.mask()
        matcher.accept(token)
    assert matcher.may_stop and matcher._left > ROOM_S


DEEP = '{"type": "array", "items": ' * 500 + "{}" + "}" * 500


@pytest.mark.parametrize(
    ("kind", "text", "reason"),
    [
        ("json_schema", '{"type": "text"}', "Invalid type: text"),
        ("json_schema", '{"$ref": "#/nowhere"}', "'/nowhere' does not exist"),
        ("json_schema", '{"$ref": "http://example.org/x"}', "example.org"),
        ("json_schema", '{"not": {"type": "string"}}', 'Unimplemented keys: ["not"]'),
        ("json_schema", '{"x-guidance": {"lenient": true}, "not": {}}', "Unimplemented keys"),
        ("json_schema", '{"type": "string", "pattern": "(?=a)b"}', "look-around"),
        ("json_schema", '{"type": "integer", "minimum": 5, "maximum": 1}', "Unsatisfiable"),
        ("json_schema", "false", "must be an object"),
        ("json_schema", "[]", "must be an object"),
        ("json_schema", "{", "Expecting property name"),
        ("json_schema", DEEP, "recursion limit"),
        ("json_schema", '{"title": "\\ud800"}', "not JSON serializable"),
        ("regex", "(", "unclosed group"),
        ("lark", "start: nothing", 'unknown name: "nothing"'),
        ("json_schema", '{"$ref": "#"}', "cannot be followed"),
        ("regex", r"[^\s\S]", "cannot be followed"),
        ("lark", "start: start", "cannot be followed"),
    ],
)
def test_what_does_not_compile_is_refused_with_the_reason(
    single_bytes: Tokenizer, kind: Any, text: str, reason: str
) -> None:
    with pytest.raises(UserError, match="(?s)does not compile: .*" + re.escape(reason)):
        Grammars(single_bytes, 300).matcher(Grammar(kind, text))


def test_compiled_grammars_are_kept_and_the_oldest_dropped(
    single_bytes: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mkport.engine import grammar as module

    compiled: list[Grammar] = []
    compile_ = module._compile

    def counted(grammar: Grammar, library: Any) -> Any:
        compiled.append(grammar)
        return compile_(grammar, library)

    monkeypatch.setattr(module, "_compile", counted)
    grammars = Grammars(single_bytes, 300)
    many = [Grammar("regex", f"a{{{i}}}") for i in range(1, KEPT + 2)]
    for grammar in [*many[:KEPT], many[0], many[KEPT], many[0], many[1]]:
        grammars.matcher(grammar)
    assert compiled == [*many, many[1]]


def test_without_the_library_the_fix_is_named(
    single_bytes: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "llguidance", None)
    with pytest.raises(UserError, match=re.escape(install("serve"))):
        Grammars(single_bytes, 300).matcher(Grammar("json_object"))
