"""Parsers read what models write, and it does not matter where the stream was cut."""

import json
import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mkport.engine.parsers import FORMATS, Reply, choose, joined
from mkport.errors import UserError
from tests.engine.parsers.replies import (
    ALL,
    CASES,
    NAMES,
    TRICKY,
    Case,
    action,
    cohere_call,
    hermes_call,
    llama_call,
    parse,
    read,
)


@pytest.mark.parametrize(("form", "case"), ALL, ids=lambda x: x if isinstance(x, str) else "")
def test_a_reply_is_read_the_same_whole_and_cut_anywhere(form: str, case: Case) -> None:
    case.check(read(form, [case.text], case.thinking))
    case.check(read(form, list(case.text), case.thinking))
    for cut in range(len(case.text) + 1):
        case.check(read(form, [case.text[:cut], "", case.text[cut:]], case.thinking))


@given(
    form=st.sampled_from(["hermes", "llama3", "cohere"]),
    picks=st.lists(st.integers(0, 60), min_size=1, max_size=4),
    cuts=st.lists(st.integers(0, 900), max_size=6),
    thinking=st.booleans(),
)
def test_several_cuts_and_replies_one_after_another(
    form: str, picks: list[int], cuts: list[int], thinking: bool
) -> None:
    text = "".join(CASES[form][pick % len(CASES[form])].text for pick in picks)
    assert_cut_does_not_matter(form, text, cuts, thinking)


PIECES = [
    *("<think>", "</think>", "<tool_call>", "</tool_call>", "<|python_tag|>", "; ", "\n", " "),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|START_THINKING|>", "<|END_THINKING|>"),
    *("<|START_TEXT|>", "<|END_TEXT|>", '"', "\\", "{", "}", "[", "]", ",", ":", "<", "a"),
    *('{"name": "f", "arguments": ', '"tool_name": "g", ', '"parameters": ', '{"x": "y"}', "12"),
]


@given(
    form=st.sampled_from(["hermes", "llama3", "cohere"]),
    pieces=st.lists(st.sampled_from(PIECES), max_size=14),
    cuts=st.lists(st.integers(0, 200), max_size=6),
    thinking=st.booleans(),
)
@example(form="hermes", pieces=["<tool_call>", "{", '"', "\\"], cuts=[3], thinking=False)
def test_any_mess_is_read_the_same_however_it_is_cut(
    form: str, pieces: list[str], cuts: list[int], thinking: bool
) -> None:
    assert_cut_does_not_matter(form, "".join(pieces), cuts, thinking)


def assert_cut_does_not_matter(form: str, text: str, cuts: list[int], thinking: bool) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    several = [text[left:right] for left, right in zip(edges, edges[1:], strict=False)]
    whole = anonymous(read(form, [text], thinking))
    assert anonymous(read(form, several, thinking)) == whole
    assert anonymous(read(form, list(text), thinking)) == whole


def anonymous(reply: Reply) -> Reply:
    for call in reply.calls:
        assert call.id.startswith("call_")
        call.id = ""
    return reply


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.sampled_from(PIECES),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    form=st.sampled_from(["hermes", "llama3", "cohere"]),
    arguments=st.lists(st.dictionaries(st.text(max_size=4), JSON_VALUES, max_size=3), max_size=4),
    indent=st.sampled_from([None, 1]),
    ascii_only=st.booleans(),
    step=st.integers(1, 9),
)
def test_arguments_come_through_whatever_they_hold(
    form: str, arguments: list[dict[str, object]], indent: int | None, ascii_only: bool, step: int
) -> None:
    written = [json.dumps(a, indent=indent, ensure_ascii=ascii_only) for a in arguments]
    if form == "hermes":
        text = "\n".join(map(hermes_call, written))
    elif form == "cohere":
        text = action(*map(cohere_call, written)) if written else ""
    else:
        text = "; ".join(map(llama_call, written))
    reply = read(form, [text[i : i + step] for i in range(0, len(text), step)])
    assert [call.arguments for call in reply.calls] == written and not reply.content


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", hermes_call(TRICKY)),
        ("llama3", llama_call(TRICKY)),
        ("cohere", action(cohere_call(TRICKY))),
    ],
)
def test_names_and_arguments_are_told_as_soon_as_they_are_known(form: str, text: str) -> None:
    parser = FORMATS[form].parser(names=NAMES)
    told = joined(parser.push(text[: text.index(TRICKY) + 20]))
    assert (told.calls[0].name, told.calls[0].arguments) == ("f", TRICKY[:20])
    deltas = parse(form, list(text))
    assert sum(delta.name == "f" for delta in deltas) == 1
    assert all(bool(delta.id) == bool(delta.name) for delta in deltas)
    assert len(deltas) > len(TRICKY) - 5


@pytest.mark.parametrize(
    ("form", "text"),
    [
        ("hermes", "Ok." + hermes_call('{"x": 1}')),
        ("llama3", llama_call("{}")),
        ("llama3", "<|python_tag|>" + llama_call("{}")),
    ],
)
def test_without_tools_nothing_is_a_call(form: str, text: str) -> None:
    parser = FORMATS[form].parser(names=[])
    reply = joined([*parser.push(text), *parser.finish()])
    assert (reply.content, reply.calls) == (text, [])
    parser = FORMATS["cohere"].parser(names=[])
    reply = joined([*parser.push(action(cohere_call("{}"))), *parser.finish()])
    assert reply.content.startswith("<|START_ACTION|>") and not reply.calls


def test_content_is_told_but_for_what_may_be_a_marker() -> None:
    parser = FORMATS["hermes"].parser()
    pieces = ["Hi", " the", "re <", "b> <tool", "_x", " \n", "!"]
    told = [joined(parser.push(piece)).content for piece in pieces]
    assert told == ["Hi", " the", "re", " <b>", " <tool_x", "", " \n!"]


@pytest.mark.parametrize("form", ["hermes", "llama3", "cohere"])
def test_long_replies_take_linear_time(form: str) -> None:
    def seconds(size: int) -> float:
        arguments = json.dumps({"text": "word \\ {} \n" * size, "list": [[1, 2]] * size})
        calls = {
            "hermes": hermes_call(arguments),
            "llama3": llama_call(arguments),
            "cohere": action(cohere_call(arguments)),
        }
        text, best = calls[form] + " plain text" * size, float("inf")
        for _ in range(3):
            started = time.thread_time()
            parse(form, [text[i : i + 4] for i in range(0, len(text), 4)])
            best = min(best, time.thread_time() - started)
        return best

    assert seconds(1600) < 8 * seconds(400)


@pytest.mark.parametrize(
    ("template", "form"),
    [
        ("{{ '<|START_OF_TURN_TOKEN|>' }} <|START_ACTION|> <tool_call>", "cohere"),
        ("<|im_start|>{% for t in tools %}<tool_call>{% endfor %}", "hermes"),
        ("<|im_start|>user", "hermes"),
        ("<|start_header_id|>user<|end_header_id|>", "llama3"),
        ("<|start_header_id|>{{ '<|python_tag|>' }}", "llama3"),
        ("[INST] {{ messages }} [/INST]", "hermes"),
        ("[INST] {{ messages }} {% if tools %}[TOOLS]{% endif %}", "plain"),
        (None, "plain"),
    ],
)
def test_the_format_follows_from_the_chat_template(template: str | None, form: str) -> None:
    assert choose(template).name == form
    assert choose(template, "llama3").name == "llama3"
    with pytest.raises(UserError, match="no parser 'xml'; there are plain, hermes"):
        choose(template, "xml")


@pytest.mark.parametrize(
    "text",
    [
        "<|START_TEXT|>Hi é <b>\n <|END_TEXT|>",
        "<|START_THINKING|>I think.\n<|END_THINKING|><|START_TEXT|>Hello<|END_TEXT|>",
        "<|START_THINKING|>So.<|END_THINKING|>" + action(cohere_call('{"x": [1, {"}": null}]}')),
        action(cohere_call('{"b": 0}'), cohere_call('{"a": "\\"}"}', "g", 1)),
        "<|START_ACTION|>[" + cohere_call('{"cut": "he'),
        "<|START_TEXT|>cut",
    ],
)
def test_cohere_replies_are_read_as_coheres_own_library_reads_them(text: str) -> None:
    # that library loses empty arguments after other calls, and ends an action at its closing
    # marker even inside a JSON string: neither is here
    melody = pytest.importorskip("cohere_melody")
    theirs = melody.PyFilter(melody.PyFilterOptions().cmd4()).process_full_text(text)
    ours = read("cohere", list(text))
    assert (ours.content, ours.reasoning) == (theirs.content or "", theirs.reasoning or "")
    calls = [(call.name, call.arguments) for call in theirs.tool_calls]
    assert [(call.name, call.arguments) for call in ours.calls] == calls
