"""How fast a running server answers: each function is one experiment and returns plain data, times
in milliseconds as a client sees them."""

from mkport.engine.bench.gpu_serving.asks import Data, Served
from mkport.engine.bench.serving.client import Ask
from mkport.engine.bench.serving.report import percentile


def crowd(served: Served, count: int, seed: int) -> Data:
    """So many streams at once: milliseconds of a step, as the client sees them while all write."""
    sizes = served.sizes
    asks = [served.ask(sizes.short, seed + i, sizes.output) for i in range(count)]
    samples = served.run(asks)
    first, last = max(s.times[0] for s in samples), min(s.times[-1] for s in samples)
    always = {
        "streams": count,
        "first_token_ms": [1e3 * s.first_token_s for s in samples],
        "tokens": [s.tokens for s in samples],
    }
    if last <= first:  # so short that they never wrote side by side
        return always
    inside = sum(sum(first < when <= last for when in s.times) for s in samples)
    gaps = [
        later - earlier
        for s in samples
        for earlier, later in zip(s.times, s.times[1:], strict=False)
        if earlier >= first and later <= last
    ]
    return always | {
        "tokens_per_second": inside / (last - first),
        "step_ms": 1e3 * count * (last - first) / inside,
        "gap_p50_ms": 1e3 * percentile(gaps, 50),
        "gap_p99_ms": 1e3 * percentile(gaps, 99),
    }


def first_token(served: Served, tokens: int, repeats: int = 3) -> Data:
    """Milliseconds until a prompt that runs alone has its first token."""
    times = []
    for repeat in range(repeats):
        (sample,) = served.run([served.ask(tokens, 100 + repeat, 2)])
        times.append(1e3 * sample.first_token_s)
        assert sample.prompt_tokens == tokens and sample.cached_tokens == 0
    return {"tokens": tokens, "ms": times, "median_ms": sorted(times)[len(times) // 2]}


def beside_long(served: Served) -> Data:
    """Gaps between tokens of seven streams: before a long prompt comes, and while it is read."""
    sizes = served.sizes
    asks = [served.ask(sizes.short, 200 + i, 2 * sizes.output) for i in range(7)]
    asks.append(served.ask(sizes.long, 300, 2, at=sizes.settle_s, after=7, label="long"))
    *streams, long = served.run(asks)
    settled = max(s.times[0] for s in streams)
    before: list[float] = []
    during: list[float] = []
    for s in streams:
        for earlier, later in zip(s.times, s.times[1:], strict=False):
            if settled <= earlier and later <= long.sent:
                before.append(1e3 * (later - earlier))
            elif later > long.sent and earlier < long.times[0]:
                during.append(1e3 * (later - earlier))
    found: Data = {"long_first_token_ms": 1e3 * long.first_token_s, "gaps": len(during)}
    if not before or not during:  # so short that they were over
        return found
    for name, gaps in (("before", before), ("during", during)):
        found[name] = {f"p{p}_ms": percentile(gaps, p) for p in (50, 99)} | {"max_ms": max(gaps)}
    found["p99_more_ms"] = found["during"]["p99_ms"] - found["before"]["p99_ms"]
    return found


def follow_up(served: Served) -> Data:
    """Time to the first token of a long prompt, and of the same one with a little more behind."""
    ids = served.ids(served.sizes.long, 400)
    (cold,) = served.run([served.ask(1, 0, 8, prompt=ids)])
    again = [*ids[: len(ids) - 40], *served.ids(40, 402)]
    (warm,) = served.run([served.ask(1, 0, 8, prompt=again)])
    return {
        "cold_ms": 1e3 * cold.first_token_s,
        "follow_up_ms": 1e3 * warm.first_token_s,
        "cached": warm.cached_tokens,
    }


def grammar_crowd(served: Served) -> Data:
    """Gaps between tokens of seven streams while an eighth is held to a grammar."""
    sizes = served.sizes
    asks = [served.ask(sizes.short, 900 + i, sizes.output) for i in range(7)]
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    body = {
        "model": served.model,
        "messages": [{"role": "user", "content": "Say"}],
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        "max_tokens": sizes.output // 2,
        "stream": True,
        "temperature": 1.0,
    }
    samples = served.run([*asks, Ask(body)])
    gaps = [gap for s in samples[:7] for gap in s.gaps]
    return {"gap_p50_ms": 1e3 * percentile(gaps, 50), "gap_p99_ms": 1e3 * percentile(gaps, 99)}
