"""How one server behaves, apart from the model: its limits, its key, its patience. No behaviour."""

from collections.abc import Mapping
from dataclasses import dataclass, field

MIB = 1 << 20


@dataclass(frozen=True)
class Settings:
    """Limits and choices of one server; the defaults suit one machine that serves a few people."""

    api_key: str | None = None  # None: no key is asked for
    defaults: Mapping[str, float] = field(default_factory=dict)  # the model's sampling, by field
    format: str | None = None  # how replies are written; None: by the chat template
    max_body: int = 8 * MIB  # bytes of one request
    max_held: int = 128 * MIB  # bytes of all requests that are being read
    max_head: int = 64 << 10  # bytes of a request's line and headers, which must have arrived ...
    head_s: float = 30.0  # ... after so long
    max_requests: int = 1024  # requests at work at once, waiting ones included
    max_prompts: int = 128  # prompts in one call of /v1/completions
    body_s: float = 60.0  # a request's body must have arrived after so long
    ping_s: float = 15.0  # a stream without a token yet says so this often
    dead_s: float = 120.0  # an engine that has not come round for so long is dead
    drain_s: float = 30.0  # what running requests have left after SIGTERM
    threads: int = 2  # that render templates and tokenize
