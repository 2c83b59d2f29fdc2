"""Replies for the parser tests, and what they must be read as."""

from dataclasses import dataclass, field

from mkport.engine.parsers import FORMATS, Delta, Reply, joined

NAMES = ("f", "g")


@dataclass(frozen=True)
class Case:
    """One reply of a model, and its meaning; `calls` are (name, arguments)."""

    text: str
    content: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    thinking: bool = False

    def check(self, reply: Reply) -> None:
        got = [(call.name, call.arguments) for call in reply.calls]
        assert (reply.content, reply.reasoning, got) == (self.content, self.reasoning, self.calls)
        ids = [call.id for call in reply.calls]
        assert len(set(ids)) == len(ids) and all(i.startswith("call_") for i in ids)


def parse(form: str, pieces: list[str], thinking: bool = False) -> list[Delta]:
    parser = FORMATS[form].parser(thinking=thinking, names=NAMES)
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    return [*deltas, *parser.finish()]


def read(form: str, pieces: list[str], thinking: bool = False) -> Reply:
    return joined(parse(form, pieces, thinking))


TRICKY = (
    '{"a": "}]</tool_call><|END_ACTION|>; \\"{[", "b": [{"c": {}}, []], "é": "日本🦤\\u00e9\\\\"}'
)


def hermes_call(arguments: str, name: str = "f") -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def cohere_call(arguments: str, name: str = "f", number: int = 0) -> str:
    head = f'{{"tool_call_id": "{number}", "tool_name": "{name}", "parameters": '
    return head + arguments + "}"


def action(*calls: str) -> str:
    return "<|START_ACTION|>\n[\n    " + ",\n    ".join(calls) + "\n]<|END_ACTION|>"


def llama_call(arguments: str, name: str = "f") -> str:
    return f'{{"name": "{name}", "parameters": {arguments}}}'


CASES: dict[str, list[Case]] = {
    "plain": [Case("a <tool_call>{ b\n", content="a <tool_call>{ b\n"), Case("")],
    "hermes": [
        Case("  Hello\n there \n", content="  Hello\n there \n"),
        Case("a < b <tool <tool_cal", content="a < b <tool <tool_cal"),
        Case(hermes_call('{"x": 1}'), calls=[("f", '{"x": 1}')]),
        Case(hermes_call(TRICKY), calls=[("f", TRICKY)]),
        Case(
            "Let me.\n" + hermes_call("{}") + "\n" + hermes_call('{"y": "2"}', "g") + "\n",
            content="Let me.",
            calls=[("f", "{}"), ("g", '{"y": "2"}')],
        ),
        Case(
            hermes_call("{}") + hermes_call('{"y": 2}', "g") + hermes_call("{}") + " bye",
            content="bye",
            calls=[("f", "{}"), ("g", '{"y": 2}'), ("f", "{}")],
        ),
        # no closing marker, then another call; a marker cut short at the end
        Case(
            '<tool_call>{"name": "f", "arguments": {}} <tool_call>{"name":"g"}</tool',
            calls=[("f", "{}"), ("g", "{}")],
        ),
        Case('<tool_call>{"name": "f"}</tool_call>', calls=[("f", "{}")]),
        Case(
            '<tool_call>{"arguments": {"q": 1}, "name": "f"}</tool_call>', calls=[("f", '{"q": 1}')]
        ),
        Case('<tool_call>{"arguments": null, "name": "f"}</tool_call>', calls=[("f", "{}")]),
        Case('<tool_call>{"name": "f", "arguments": "{\\"q\\": 1}"}', calls=[("f", '{"q": 1}')]),
        Case('<tool_call>{"name": "f", "arguments": 12 }</tool_call>', calls=[("f", "12")]),
        Case(
            '<tool_call>{"id": 7, "x": {"name": "no"}, "name": "unknown", "z": [1]}</tool_call>',
            calls=[("unknown", "{}")],
        ),
        # cut by the token limit: inside the arguments, a string of them, the name
        Case('<tool_call>\n{"name": "f", "arguments": {"x": "ab', calls=[("f", '{"x": "ab')]),
        Case('<tool_call>{"name": "f", "arguments": "{\\"q', calls=[("f", '"{\\"q')]),
        Case('<tool_call>{"name": "f", "argum', calls=[("f", "")]),
        Case('ok <tool_call>\n{"na', content='ok<tool_call>\n{"na'),
        Case("<tool_call>", content="<tool_call>"),
        # not JSON
        Case("<tool_call>f(x)</tool_call>", content="<tool_call>f(x)</tool_call>"),
        Case('<tool_call>{"name": 5}</tool_call>', content='<tool_call>{"name": 5}</tool_call>'),
        Case("<tool_call>{}</tool_call>", content="<tool_call>{}</tool_call>"),
        Case('<tool_call>[{"name": "f"}]', content='<tool_call>[{"name": "f"}]'),
        Case(
            '<tool_call>{"name": "f", "arguments": {"x": [1}}\n</tool_call> then',
            content="then",
            calls=[("f", '{"x": [1}}\n')],
        ),
        Case('<tool_call>{"name": "f", "arguments": {} oops </tool_call>', calls=[("f", "{}")]),
        # reasoning
        Case("<think>\nhm\n</think>\n\nYes.", content="Yes.", reasoning="hm"),
        Case(
            "hm <tool_call> \n</think>\nYes.",
            content="Yes.",
            reasoning="hm <tool_call>",
            thinking=True,
        ),
        Case("\n</think>\n\n" + hermes_call("{}"), calls=[("f", "{}")], thinking=True),
        Case("still at it\n", reasoning="still at it\n", thinking=True),
        Case("No <think> here</think>", content="No <think> here</think>"),
        Case("<thi", content="<thi"),
    ],
    "llama3": [
        Case("Hello {x}", content="Hello {x}"),
        Case(" \n", content=" \n"),
        Case(llama_call('{"x": 1}'), calls=[("f", '{"x": 1}')]),
        Case("\n<|python_tag|> " + llama_call(TRICKY), calls=[("f", TRICKY)]),
        Case(
            llama_call("{}") + "; " + llama_call('{"y": 2}', "g") + ";",
            calls=[("f", "{}"), ("g", '{"y": 2}')],
        ),
        Case('{"type": "function", "name": "f", "arguments": {}}\n', calls=[("f", "{}")]),
        Case('{"parameters": {"q": 1}, "name": "f"}', calls=[("f", '{"q": 1}')]),
        Case('{"name": "Bob", "age": [3]} ', content='{"name": "Bob", "age": [3]} '),
        Case('{"age": 3}', content='{"age": 3}'),
        Case('<|python_tag|>{"name": "h", "parameters": {}}', calls=[("h", "{}")]),
        Case('<|python_tag|>search("x")', content='<|python_tag|>search("x")'),
        Case('{"name": "f", "parameters": {"x": "ab', calls=[("f", '{"x": "ab')]),
        Case('{"name": "f', content='{"name": "f'),
        Case('{"name": "f", "parameters": {"x": [}} more', calls=[("f", '{"x": [}} more')]),
        Case(llama_call("{}") + " That was it.", content="That was it.", calls=[("f", "{}")]),
        Case("Now: <|python_tag|>" + llama_call("{}"), content="Now: ", calls=[("f", "{}")]),
        Case("<|python", content="<|python"),
    ],
    "cohere": [
        Case(" Hello\n", content=" Hello\n"),
        Case("<|START_TEXT|> Hi é <b>\n<|END_TEXT|>\n", content=" Hi é <b>"),
        Case("<|START_RESPONSE|>Hi<|END_RESPONSE|>", content="Hi"),
        Case(
            "<|START_THINKING|>I think.\n<|END_THINKING|>\n<|START_TEXT|>Hello<|END_TEXT|>",
            content="Hello",
            reasoning="I think.",
        ),
        Case(
            "So.<|END_THINKING|>" + action(cohere_call('{"x": 1}')),
            reasoning="So.",
            calls=[("f", '{"x": 1}')],
            thinking=True,
        ),
        Case(
            action(cohere_call("{}"), cohere_call(TRICKY, "g", 1), cohere_call("{}", "f", 2)),
            calls=[("f", "{}"), ("g", TRICKY), ("f", "{}")],
        ),
        Case(
            "<|START_TEXT|>Look<|END_TEXT|>"
            + action(cohere_call("{}"))
            + " "
            + action(cohere_call("{}")),
            content="Look",
            calls=[("f", "{}"), ("f", "{}")],
        ),
        Case("<|START_ACTION|>" + cohere_call("{}") + "<|END_ACTION|>", calls=[("f", "{}")]),
        Case("<|START_ACTION|>[]<|END_ACTION|>done", content="done"),
        Case("thinking<|START_TEXT|>Hi", content="Hi", reasoning="thinking", thinking=True),
        Case("<|START_TEXT|>cut", content="cut"),
        Case("cut <|END_TH", reasoning="cut <|END_TH", thinking=True),
        # cut by the token limit
        Case(
            '<|START_ACTION|>[{"tool_name": "f", "parameters": {"x": "<|',
            calls=[("f", '{"x": "<|')],
        ),
        Case("<|START_ACTION|>[" + cohere_call("{}") + ",", calls=[("f", "{}")]),
        Case('<|START_ACTION|>[\n {"tool_', content='<|START_ACTION|>[\n {"tool_'),
        # not JSON
        Case("<|START_ACTION|>f()<|END_ACTION|>", content="<|START_ACTION|>f()"),
        Case(
            "<|START_ACTION|>[" + cohere_call("{}") + ', {"x": 1}]<|END_ACTION|> a',
            content=', {"x": 1}]a',
            calls=[("f", "{}")],
        ),
        Case(
            '<|START_ACTION|>[{"tool_name": "f", "parameters": {"x": [1}}]<|END_ACTION|>b',
            content="b",
            calls=[("f", '{"x": [1}}]')],
        ),
        Case("<|START_ACTION|>[" + cohere_call("{}") + " oops<|END_ACTION|>", calls=[("f", "{}")]),
    ],
}
ALL = [(form, case) for form, cases in CASES.items() for case in cases]
