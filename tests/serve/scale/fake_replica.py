"""A server process that streams made-up answers, for tests of what stands before it.

Run with a port. It answers `tokens` events a request, one each `pause` seconds, both out of the
request; the text is the process id, so that a test knows who answered.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, StreamingResponse

app = FastAPI()
running = 0
served = 0


@app.get("/ready")
@app.get("/health")
async def good() -> dict[str, str]:
    return {"status": "ok"}


@app.get("/stats")
async def stats() -> dict[str, object]:
    return {"model": "fake", "running": running, "steps": served, "kv_usage": 0.5}


@app.get("/metrics")
async def metrics() -> PlainTextResponse:
    text = "# HELP fake_requests_total Requests.\n# TYPE fake_requests_total counter\n"
    return PlainTextResponse(text + f'fake_requests_total{{kind="any"}} {served}\n')


@app.post("/v1/chat/completions")
async def chat(request: Request) -> object:
    global running, served
    body = await request.json()
    if body.get("fatal"):
        os._exit(1)
    if body.get("full") and running:
        return JSONResponse({"error": {"message": "full"}}, 503, {"Retry-After": "7"})
    served += 1

    async def stream() -> AsyncIterator[str]:
        global running
        running += 1
        try:
            if first := body.get("first"):
                yield ": no token yet\n\n"
                await asyncio.sleep(first)
            for _ in range(body["tokens"]):
                await asyncio.sleep(body["pause"])
                yield f"data: {json.dumps({'pid': os.getpid()})}\n\n"
            yield "data: [DONE]\n\n"
        finally:
            running -= 1

    async def whole() -> AsyncIterator[str]:
        events = [event async for event in stream()]
        yield json.dumps({"events": events, "pid": os.getpid()})

    if body.get("stream"):
        return StreamingResponse(stream(), media_type="text/event-stream")
    return StreamingResponse(whole(), media_type="application/json")


@app.get("/echo")
async def echo(request: Request) -> dict[str, object]:
    return {"query": request.url.query, "key": request.headers.get("authorization")}


if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
