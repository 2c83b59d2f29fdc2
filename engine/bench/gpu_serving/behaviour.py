"""Whether a running server does what it should: each function is one check, raises AssertionError
when it fails, and returns what was seen."""

import json
import socket
import time
from typing import Any

from mkport.engine.bench.gpu_serving.asks import Data, Served, forget


def ragged(served: Served) -> Data:
    """Eight streams of other lengths, temperatures and seeds: each says what it says alone."""
    sizes = served.sizes
    asks = [
        served.ask(
            1 + (sizes.short - 1) * i // 7, 500 + i, sizes.output * (i + 1) // 8,
            temperature=0.0 if i % 2 else 0.8, seed=i,
        )
        for i in range(8)
    ]  # fmt: skip
    together = [s.text for s in served.run(asks)]
    forget(served)
    alone = [served.run([ask])[0].text for ask in asks]
    assert all(together), "a stream said nothing"
    return {"same": [a == b for a, b in zip(together, alone, strict=True)]}


def seeded(served: Served) -> Data:
    """The same seed twice, and another one."""

    def said(seed: int) -> str:
        forget(served)
        ask = served.ask(served.sizes.short, 600, 48, temperature=1.0, seed=seed)
        return served.run([ask])[0].text

    first, again, other = said(7), said(7), said(8)
    assert first == again != other
    return {"same": first == again, "another_differs": first != other}


def preempted(served: Served) -> Data:
    """Four requests that grow until the cache does not hold them all: all end, and say what one
    says alone where its prompt is run the same way."""
    sizes = served.sizes
    before = served.stats()["preemptions"]
    asks = [served.ask(sizes.long_requests, 700 + i, sizes.grown, seed=i) for i in range(4)]
    together = served.run(asks)
    count = served.stats()["preemptions"] - before
    assert count > 0, "nobody was preempted"
    assert all(s.tokens == sizes.grown for s in together)
    found: Data = {"preemptions": count, "longest_gap_ms": 1e3 * max(max(s.gaps) for s in together)}
    if sizes.long_requests <= sizes.short:
        forget(served)
        found["same"] = [
            served.run([a])[0].text == s.text for a, s in zip(asks, together, strict=True)
        ]
        assert all(found["same"])
    return found


def disconnected(served: Served) -> Data:
    """A client that hangs up while it is answered: how long its request goes on."""
    body = json.dumps(served.ask(served.sizes.short, 800, served.sizes.context // 2).body).encode()
    with socket.create_connection((served.host, served.port)) as connection:
        head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        connection.settimeout(20)
        assert b" 200 " in connection.recv(4096)
        time.sleep(0.02)
    left = time.perf_counter()
    while served.stats()["running"]:
        assert time.perf_counter() - left < 5, "it still runs"
        time.sleep(0.002)
    return {
        "ended_after_ms": 1e3 * (time.perf_counter() - left),
        "held": served.stats()["kv_usage"],
    }


TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Oslo"]}, "hourly": {"type": "boolean"}},
            "required": ["city", "hourly"],
            "additionalProperties": False,
        },
    },
}


def tool_call(served: Served) -> Data:
    """A tool call under grammar beside streams without one, through the `openai` client."""
    import openai

    client: Any = openai.OpenAI(
        base_url=f"{served.url}/v1", api_key="none", max_retries=0, timeout=30
    )
    answer = client.chat.completions.create(
        model=served.model,
        messages=[{"role": "user", "content": "Weather?"}],
        tools=[TOOL],
        tool_choice={"type": "function", "function": {"name": "weather"}},
        max_tokens=96,
        temperature=1.0,
        seed=3,
    )
    calls = answer.choices[0].message.tool_calls or []
    assert answer.choices[0].finish_reason in ("tool_calls", "stop"), answer.choices[0]
    arguments = json.loads(calls[0].function.arguments)
    assert arguments["city"] in ("Paris", "Oslo") and isinstance(arguments["hourly"], bool)
    streamed = "".join(
        chunk.choices[0].text
        for chunk in client.completions.create(
            model=served.model, prompt="Once", max_tokens=16, stream=True, temperature=0
        )
        if chunk.choices
    )
    assert streamed
    return {"arguments": arguments, "finish": answer.choices[0].finish_reason}
