"""The life of one request as the log and the metrics tell it: one structured line, at its end."""

import json
import logging
import sys
import time
from dataclasses import dataclass, field
from typing import Any

from mkport.engine.request import Event
from mkport.engine.server.metrics import Metrics

log = logging.getLogger("mkport.server")

GAPS = 32  # so many gaps between tokens reach the metrics together


@dataclass
class Record:
    """What is known of a request; whoever learns something writes it here."""

    id: str
    method: str
    path: str
    began: float = field(default_factory=time.perf_counter)  # on that clock, in seconds
    status: int = 0
    client_id: str | None = None  # what the client calls it; never used as a name here
    stream: bool = False
    generates: bool = False
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    first_s: float | None = None  # from its arrival to the first token
    reasons: list[str] = field(default_factory=list)  # how its choices ended
    error: str | None = None
    _last: dict[int, float] = field(default_factory=dict)  # when a choice had its last token
    _gaps: list[float] = field(default_factory=list)  # between tokens, that no metric knows yet

    def saw(self, choice: int, event: Event, metrics: Metrics) -> None:
        """Counts an event of a choice."""
        now = time.perf_counter()
        if event.ids:
            self.completion_tokens += len(event.ids)
            last = self._last.get(choice)
            if self.first_s is None:
                self.first_s = now - self.began
                metrics.first_token.observe(self.first_s)
            elif last is not None:
                self._gaps.append((now - last) / len(event.ids))
                if len(self._gaps) >= GAPS:
                    self._tell_gaps(metrics)
            self._last[choice] = now
        if event.reason is not None:
            self.reasons.append(event.reason)
            metrics.ended[event.reason].inc()

    def cut(self, choices: int, metrics: Metrics) -> None:
        """Counts those of a request's choices as aborted that its client did not wait for."""
        for _ in range(choices - len(self.reasons)):
            self.reasons.append("abort")
            metrics.ended["abort"].inc()

    def _tell_gaps(self, metrics: Metrics) -> None:
        for gap in self._gaps:
            metrics.between_tokens.observe(gap)
        self._gaps.clear()

    def finish(self, metrics: Metrics) -> None:
        """Writes the line."""
        self._tell_gaps(metrics)
        seconds = time.perf_counter() - self.began
        fields: dict[str, Any] = {
            "id": self.id,
            "method": self.method,
            "path": self.path,
            "status": self.status,
            "ms": round(seconds * 1e3, 1),
        }
        if self.generates:
            metrics.whole.observe(seconds)
            fields |= {
                "stream": self.stream,
                "prompt_tokens": self.prompt_tokens,
                "cached_tokens": self.cached_tokens,
                "completion_tokens": self.completion_tokens,
                "first_ms": None if self.first_s is None else round(self.first_s * 1e3, 1),
                "finish": self.reasons,
            }
        fields |= {"client_id": self.client_id} if self.client_id else {}
        fields |= {"error": self.error} if self.error else {}
        quiet = self.path in ("/health", "/ready", "/metrics", "/stats", "/timeline")
        level = logging.DEBUG if quiet and self.status < 400 else logging.INFO
        log.log(level, "request", extra={"fields": fields})


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, what happened, and its fields."""

    def format(self, record: logging.LogRecord) -> str:
        """The line, tracebacks inside it."""
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def log_to_stderr() -> None:
    """Sends the server's lines, and uvicorn's complaints, to stderr as JSON."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name, level in (("mkport.server", logging.INFO), ("uvicorn", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level)
        logger.propagate = False
