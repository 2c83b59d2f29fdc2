# %% [markdown]
"""
# Serving to a coding agent

A coding agent is a program that talks to a model in a loop. It sends the conversation so far and
a list of tools: read a file, run a command. The model answers with text or with a *call* of a
tool. The agent runs the tool, appends the result, and sends everything again. It has one
interface to the model, the one that OpenAI's servers have, and it expects every detail of it.

For a server that means three things beyond plain text. Calls have to be found in what the model
writes, while it is being written. A call that a client insists on has to be well formed, whatever
the model would like. And the same long conversation arrives again and again, so only its end may
cost anything.
"""

# %%
import importlib.util
import json
from urllib.request import Request, urlopen

from mkport.engine.affinity import Affinity, chain_of
from mkport.engine.chat import written_out
from mkport.engine.load import load
from mkport.engine.merge import merge_stats
from mkport.engine.parsers import FORMATS, choose
from mkport.engine.parsers.deltas import joined
from mkport.engine.replicas import serve as serve_replicas
from mkport.engine.router import Router
from mkport.engine.server.app import create_app
from mkport.learn.lesson import served

# %% [markdown]
"""
## A conversation becomes text

A model reads one text. How roles, tools and earlier calls are written into it is the checkpoint's
own business; its *chat template* says so. SmolLM2's template knows nothing of tools, so the
server writes them out as ordinary text, in a form that many models have been trained on.

One property of that text matters more than its form. The same conversation, one turn longer, must
begin with the same text, or the prefix cache would find nothing.
"""

# %%
model = load()
tools = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Reads a file.",
            "parameters": {
                "type": "object",
                "properties": {"path": {"type": "string"}},
                "required": ["path"],
            },
        },
    }
]
asked = [{"role": "user", "content": "What does note.txt say?"}]
call = {"id": "c1", "type": "function"}
call["function"] = {"name": "read_file", "arguments": '{"path": "note.txt"}'}
answered = [
    *asked,
    {"role": "assistant", "content": "", "tool_calls": [call]},
    {"role": "tool", "tool_call_id": "c1", "content": "The meeting is at noon."},
]
render = model.tokenizer.render_chat
short = render(written_out(asked, tools), add_generation_prompt=False)
long = render(written_out(answered, tools), add_generation_prompt=False)
print(long[-330:])
assert long.startswith(short)

# %% [markdown]
"""
## Finding calls while they are written

The model writes a call as text between markers. The server reads along: text goes out as text;
from the marker on, the name and then the arguments of a call, piece by piece. Where a piece of
text ends is chance, and must not change the meaning. So a parser never decides before it knows:
the beginning of something that may be a marker is held back.

A *delta* is what one event of a stream adds to the answer: some text, the name of a call, a piece
of its arguments. A client puts them together again, and the sum must be the same however the
reply was cut.

Here a reply is fed in one character at a time, and then all at once.
"""

# %%
form = choose(model.tokenizer.chat_template)
reply = 'I look. <tool_call>\n{"name": "read_file", "arguments": {"path": "a.txt"}}\n</tool_call>'
results = []
for pieces in (list(reply), [reply]):
    parser = FORMATS[form.name].parser(thinking=False, names=["read_file"])
    deltas = [delta for piece in pieces for delta in parser.push(piece)]
    found = joined([*deltas, *parser.finish()])
    results.append((found.content, [(c.name, c.arguments) for c in found.calls]))
    print(f"{len(pieces):3} pieces: {len(deltas):3} deltas, {results[-1]}")
assert results[0] == results[1]
assert results[0][1] == [("read_file", '{"path": "a.txt"}')]

# %% [markdown]
"""
There are several such forms, and a checkpoint's template shows which one it uses. Reasoning that
a model writes between markers of its own is taken apart in the same way.

## A server

The server is an application around an engine: it checks requests field by field, turns them into
the engine's terms, and writes events to a socket as they come. What it cannot do it refuses by
name, since a client that believes a field was obeyed when it was ignored is worse off than one
with an error.

## An agent of your own

OpenCode, a coding agent for the terminal, needs ten lines of configuration that name the server's
address; the documentation has the file, and a test that runs it. Any client of OpenAI's API works
the same way.

## More than one

When one process is not enough, several stand behind one address. A request goes where its
beginning has been seen before, as it is cheapest there, unless that replica is much busier than
the others. Nobody tells the router what is cached where: it remembers what it has sent.
"""

# %%
affinity: Affinity[str] = Affinity()
loads = {"one": 0, "two": 0}
chain = chain_of(json.dumps({"messages": asked * 40}).encode())
longer = chain_of(json.dumps({"messages": asked * 40 + answered}).encode())
affinity.sent("two", chain)
print("goes to", affinity.choose(longer, loads), "with", affinity.shared("two", longer), "pieces")
assert affinity.choose(longer, loads) == "two"
assert affinity.choose(longer, {"one": 0, "two": 50}) == "one", "unless it is far too busy"
assert all(callable(part) for part in (create_app, Router, serve_replicas, merge_stats))
if importlib.util.find_spec("ray"):  # the extra `ray`
    from mkport.engine.ray_app import PrefixRouter

    print("Ray Serve asks", PrefixRouter.__name__, "which replica to take")

# %% [markdown]
"""
## Try it

Start `mkport serve` and open its address in a browser: there is a page to talk to the model, with
a timeline of the step that just ran. Then send the same request twice with `curl` and compare the
`usage` at the end of the answers; change one word at the *beginning* of the conversation, and the
cache is worth nothing; change one at the end, and it is worth nearly everything. Agents that put
the time of day into their first line pay for it with every request.

Ask for something the server does not have, a field with a typo, a temperature of 9. The answer is
an error that names the field and what it may be. Cut a stream in the middle with Ctrl-C and look
at `/metrics`: the request is gone from the running ones, and its pages are free.
"""

# %% [markdown]
"""
## New in the engine

- `engine/chat.py`: tools for templates that know none.
- `engine/parsers/`: replies taken apart while they are written, a module a form.
- `engine/server/`: the application: schema, jobs, streams, errors, metrics, the page at `/`.
- `engine/affinity.py`: which replica has seen a beginning.
- `engine/router.py`: passes requests on to replicas.
- `engine/replicas.py`: starts processes and watches over them.
- `engine/child.py`: what such a process does first: take its cores, and end with its parent.
- `engine/ray_app.py`: the same under Ray Serve, over several machines.
- `engine/merge.py`: the counters of several replicas as one.
"""

# %% [markdown]
"""
## Two turns of an agent

The first request insists on a call. SmolLM2 has 135 million parameters and no idea of tools, but
the grammar of the call, made from the tool's `parameters`, decides at each token what may come,
so what arrives can be parsed. Whether the file name makes sense is another matter; that is what
larger models are for.

The second request sends the conversation again with the tool's result. Look at the usage that
comes back: what the two prompts have in common was in the cache, in whole pages of 64 tokens.

A stream is the same answer in pieces: server-sent events, one a line, up to `[DONE]`.

We start it as you would, from the command line, and talk to it over HTTP with nothing but
Python's standard library. The server is the extra `serve`; in a clone, `make serve` installs it,
and so does `pip install -e '.[serve]'`.
"""


# %%
def post(url, body):
    """The answer to a chat request."""
    data = json.dumps(body).encode()
    request = Request(f"{url}/v1/chat/completions", data, {"Content-Type": "application/json"})
    with urlopen(request, timeout=60) as answer:
        return answer.read().decode()


def turns(url):
    """What an agent does: ask, run the tool, ask again."""
    body = {"messages": asked, "tools": tools, "max_tokens": 48, "temperature": 0}
    body["tool_choice"] = {"type": "function", "function": {"name": "read_file"}}
    body["parallel_tool_calls"] = False  # one call is enough
    first = json.loads(post(url, body))["choices"][0]["message"]
    (wanted,) = first["tool_calls"]
    arguments = json.loads(wanted["function"]["arguments"])
    print("the model calls", wanted["function"]["name"], arguments)
    assert isinstance(arguments["path"], str), "forced, it is well formed"
    result = {"role": "tool", "tool_call_id": wanted["id"], "content": "The meeting is at noon."}
    body = {"messages": [*asked, first, result], "tools": tools}
    body |= {"tool_choice": "none", "max_tokens": 24, "temperature": 0}
    second = json.loads(post(url, body))
    print("and then says", repr(second["choices"][0]["message"]["content"]))
    return second["usage"]


# %%
with served("mkport serve --max-batch 2 --max-model-len 1024") as url:
    usage = turns(url)
    stream = post(url, {"messages": asked, "max_tokens": 4, "temperature": 0, "stream": True})
cached = usage["prompt_tokens_details"]["cached_tokens"]
print(f"{cached} of {usage['prompt_tokens']} prompt tokens were cached")
assert cached > 0
events = [line for line in stream.splitlines() if line.startswith("data: ")]
print("\n".join(events[:3]))
assert events[-1] == "data: [DONE]"
