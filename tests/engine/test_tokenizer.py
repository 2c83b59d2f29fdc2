"""Text, ids and conversations go back and forth exactly as in transformers."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mkport.engine.gguf_file import convert_gguf
from mkport.engine.text import StreamDecoder
from mkport.engine.tokenizer import Tokenizer
from mkport.errors import UserError

TEXTS = [
    "",
    " ",
    "Hello world",
    "  two  spaces\n\n\nand\ttabs \r\n trailing   ",
    "1234567 3.14159, 12:30, 0x1F",
    "٣٤ １２ ½ ² Ⅷ 三",
    "it's we'll I'd CAN'T",
    "naïve café — “quotes” … £€¥",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 ｆｕｌｌ e\u0301 \u200b\u00a0\u3000|",
    "👩‍👩‍👧 🇫🇷 🏴‍☠️ 🤷🏽",
    "日本語と한국어とالعربية और हिन्दी",
    "def f(x: int) -> int:\n    return x ** 2  # ok\n",
    '{"a": [1, 2.5e-3, null], "b": "\\u00e9"}',
    "<|im_start|>user\nhi<|im_end|>\n<|endoftext|><repo_name>x",
    "<|im_start|",
    "\x00\x01\x7f\ufffd\ufeff",
    "a" * 200,
]

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2 + 2?\n"},
    {"role": "assistant", "content": "4 <b>&amp;</b> \u2713"},
    {"role": "user", "content": ""},
]


@pytest.fixture(scope="module")
def ours(demo_f32: Path) -> Tokenizer:
    return Tokenizer.load(demo_f32)


@pytest.fixture(scope="module")
def theirs(demo_f32: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(demo_f32)


@pytest.mark.parametrize("text", TEXTS)
def test_ids_and_text_are_those_of_transformers(text: str, ours: Tokenizer, theirs: Any) -> None:
    ids = ours.encode(text)
    assert ids == theirs.encode(text)
    assert ours.encode(text, add_special=False) == theirs.encode(text, add_special_tokens=False)
    assert ours.decode(ids, skip_special=False) == theirs.decode(ids) == text
    assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True)


@given(text=st.text())
def test_any_text_streams_in_whole_characters(ours: Tokenizer, theirs: Any, text: str) -> None:
    ids = ours.encode(text)  # the demo's vocabulary lacks some bytes, so not all text comes back
    assert ids == theirs.encode(text)
    assert_streams(ours, ids)


@given(ids=st.lists(st.integers(0, 49151), max_size=40))
def test_any_ids_stream_to_their_text(ours: Tokenizer, ids: list[int]) -> None:
    assert_streams(ours, ids)


def assert_streams(tokenizer: Tokenizer, ids: list[int]) -> None:
    for skip in (True, False):
        stream = StreamDecoder(tokenizer, skip_special=skip)
        pieces = [stream.push(token) for token in ids]
        assert "".join(pieces) + stream.finish() == tokenizer.decode(ids, skip_special=skip)


def test_a_character_of_several_tokens_is_held_back(ours: Tokenizer) -> None:
    ids = ours.encode("🦤")
    assert len(ids) > 1
    stream = StreamDecoder(ours)
    assert [stream.push(token) for token in ids] == [""] * (len(ids) - 1) + ["🦤"]
    half = StreamDecoder(ours)
    assert half.push(ids[0]) == "" and half.finish() == "\ufffd" and half.finish() == ""


def test_splitting_is_that_of_llama_cpp(ours: Tokenizer) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    from mkport.engine.source import demo_file

    model = llama_cpp.Llama(str(demo_file()), vocab_only=True, verbose=False)
    for text in TEXTS:
        if "\x00" not in text:
            ids = model.tokenize(text.encode(), add_bos=False, special=True)
            assert ids == ours.encode(text), text


def test_generation_ends_at_the_checkpoints_own_tokens(ours: Tokenizer, theirs: Any) -> None:
    assert ours.eos_ids == (theirs.eos_token_id,) == (2,)
    assert ours.vocab_size == len(theirs) == 49152


@pytest.mark.parametrize("prompted", [True, False])
@pytest.mark.parametrize("messages", [CHAT, CHAT[1:], CHAT[:1]])
def test_chats_are_written_as_transformers_writes_them(
    messages: list[dict[str, str]], prompted: bool, ours: Tokenizer, theirs: Any
) -> None:
    text = theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompted)
    assert ours.render_chat(messages, add_generation_prompt=prompted) == text


TEMPLATES = [
    "{{ messages | tojson(indent=2) }}|{{ tools | tojson }}|{{ bos_token }}{{ eos_token }}",
    "{% for m in messages %}\n  {% if m.role == 'system' %}{% continue %}{% endif %}\n"
    "{% generation %}{{ m['content'] }}{% endgeneration %}\n{% endfor %}",
    "{%- set ns = namespace(n=0) -%}{%- for m in messages -%}{%- set ns.n = ns.n + 1 -%}"
    "{{ ns.n }}{%- endfor -%}{% if tools is not none %}{{ tools[0].name }}{% endif %}",
    "{{ strftime_now('%Y') }}{{ unknown is defined }}{{ dict(a=1) }}{{ documents }}",
]


@pytest.mark.parametrize("source", TEMPLATES)
def test_the_helpers_of_templates_are_those_of_transformers(
    source: str, demo_f32: Path, theirs: Any, tmp_path: Path
) -> None:
    ours = with_template(demo_f32, tmp_path, source)
    tools = [{"name": "f", "text": "<é>"}]
    given_tools: list[list[dict[str, str]] | None] = [None, *([tools] if "tools" in source else [])]
    for given_tool in given_tools:
        text = theirs.apply_chat_template(
            CHAT, tools=given_tool, chat_template=source, tokenize=False
        )
        assert ours.render_chat(CHAT, given_tool, add_generation_prompt=False) == text


def with_template(demo: Path, tmp_path: Path, source: Any) -> Tokenizer:
    """The demo's tokenizer with another chat_template in its tokenizer_config.json."""
    for name in ("tokenizer.json", "generation_config.json"):
        (tmp_path / name).write_text((demo / name).read_text())
    config = json.loads((demo / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": source}))
    return Tokenizer.load(tmp_path)


def test_named_templates_and_a_template_file(demo_f32: Path, tmp_path: Path) -> None:
    named = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]
    tokenizer = with_template(demo_f32, tmp_path, named)
    assert tokenizer.render_chat([]) == "D"
    assert tokenizer.render_chat([], tools=[{"name": "f"}]) == "T"
    (tmp_path / "chat_template.jinja").write_text("{{ mood }}")
    assert Tokenizer.load(tmp_path).render_chat([], mood="file") == "file"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(UserError, match="chat_template.jinja"):
        Tokenizer.load(tmp_path)


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ messages[0].missing.deeper }}", "UndefinedError"),
        ("{{ 'a' + none }}", "TypeError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{{ range(10 ** 9) | list }}", "OverflowError"),
        (None, "no chat template"),
        ([{"name": "x"}], "chat_template must be"),
    ],
)
def test_templates_that_fail_say_why(
    source: Any, named: str, demo_f32: Path, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=named):
        with_template(demo_f32, tmp_path, source).render_chat(CHAT)


def test_damaged_or_missing_files_are_named(demo_f32: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="tokenizer.json is missing"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(UserError, match="tokenizer.json cannot be read"):
        Tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text((demo_f32 / "tokenizer.json").read_text())
    assert Tokenizer.load(tmp_path).eos_ids == ()
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [5, 2]}')
    (tmp_path / "config.json").write_text('{"eos_token_id": 7}')
    assert Tokenizer.load(tmp_path).eos_ids == (2, 5, 7)
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_start|>"}}')
    assert Tokenizer.load(tmp_path).eos_ids == (1, 2, 5, 7)


def test_half_a_surrogate_is_refused(ours: Tokenizer) -> None:
    with pytest.raises(UserError, match="not valid Unicode at character 1"):
        ours.encode("a\ud800")


@pytest.mark.parametrize(
    ("pre", "digits", "word"), [("gpt-2", 1, 2), ("smollm", 2, 2), ("llama-bpe", 1, 1)]
)
def test_digits_and_whole_words_are_split_as_the_vocabulary_was_learned(
    pre: str, digits: int, word: int, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    convert_gguf(write_gguf(pre=pre), tmp_path / "out", "bf16")
    tokenizer = Tokenizer.load(tmp_path / "out")
    assert (len(tokenizer.encode("12")), len(tokenizer.encode("lo"))) == (digits, word)


@pytest.mark.parametrize("pre", ["gpt-2", "smollm", "llama-bpe"])
def test_special_and_added_tokens_of_a_gguf(
    pre: str, tmp_path: Path, write_gguf: Callable[..., Path]
) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_add_bos_token(True)
        writer.add_chat_template("{{ bos_token }}!")

    convert_gguf(write_gguf(pre=pre, extra=extra), tmp_path / "out", "bf16")
    tokenizer = Tokenizer.load(tmp_path / "out")
    bos, eos, think = (tokenizer.encode(t, add_special=False) for t in ("<s>", "</s>", "<think>"))
    assert len(bos) == len(eos) == len(think) == 1
    assert tokenizer.encode("hel") == [*bos, *tokenizer.encode("hel", add_special=False)]
    assert len(tokenizer.encode("hel", add_special=False)) == 1
    assert tokenizer.decode([*bos, *think, *eos]) == "<think>"
    assert tokenizer.eos_ids == tuple(eos)
    assert tokenizer.render_chat([]) == "<s>!"
