"""The page at `/`: a chat, live counters, and the workers' timeline of the last traced step.

Plain files without a build step, and no request to anywhere else. Here are the routes that serve
them and the two that they read: `GET /stats` (an object of numbers, the fields of
`mkport.engine.request.Stats` and what the model is) and `GET /timeline` (the last traced step, see
`timeline_json`). The page also calls `POST /v1/chat/completions`. Whoever mounts the routes decides
which need a key; the page sends the one it is given with all three.
"""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import APIRouter
from fastapi.responses import FileResponse, JSONResponse

from mkport.engine.request import EngineLike
from mkport.trace.palette import op_colours
from mkport.trace.trace import Trace

FILES = {"/": "page.html", "/page.css": "page.css", "/page.js": "page.js"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


def router(engine: EngineLike) -> APIRouter:
    """The page's files and the two routes that it reads, for an app to include."""
    routes = APIRouter(include_in_schema=False)
    for path, name in FILES.items():
        routes.add_api_route(path, _file(name), methods=["GET"])

    @routes.get("/stats")
    async def stats() -> dict[str, Any]:
        return stats_json(engine)

    @routes.get("/timeline")
    def timeline() -> JSONResponse:  # made in this thread: it may have 100,000 numbers
        return JSONResponse(timeline_json(engine.timeline()))

    return routes


def stats_json(engine: EngineLike) -> dict[str, Any]:
    """The engine's counters and gauges, and which model it runs."""
    about = {"model": engine.name, "context": engine.context, "max_batch": engine.max_batch}
    return about | asdict(engine.stats())


def timeline_json(trace: Trace | None) -> dict[str, Any]:
    """A trace as the page draws it.

    `tasks` holds one list a task: worker, index into `nodes`, and ns after the first task was
    picked up at which it was picked up, had its inputs, and had signalled. `nodes` are label and op
    name, `colours` one an op. Without a trace there are no workers and no tasks.
    """
    if trace is None:
        return {"workers": 0, "tasks": [], "nodes": [], "colours": {}, "caption": ""}
    since = trace.times - trace.first_ns
    return {
        "workers": trace.workers,
        "tasks": np.column_stack([trace.worker, trace.node, since]).tolist(),
        "nodes": [list(node) for node in trace.nodes],
        "colours": op_colours(op for _, op in trace.nodes),
        "caption": trace.caption,
    }


def _file(name: str) -> Any:
    async def send() -> FileResponse:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache"}
        return FileResponse(Path(__file__).parent / name, headers=headers)

    return send
