"""From options to a server that is ready to serve: the address first, since it fails fast, then the
model. How it runs and stops is `lifecycle`."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mkport.engine.build import opened
from mkport.engine.engine import Engine
from mkport.engine.jsonfile import read_optional_json
from mkport.engine.request import EngineLike
from mkport.engine.server import lifecycle
from mkport.engine.server.record import log_to_stderr
from mkport.engine.server.settings import Settings
from mkport.engine.source import DEMO
from mkport.errors import UserError

# Fields of generation_config.json that are a model's own defaults, with what they may be.
DEFAULTS = {
    "temperature": (0.0, 2.0),
    "top_p": (1e-9, 1.0),
    "top_k": (0.0, 1e9),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (1e-9, 10.0),
}


DEMO_DEFAULTS = {"temperature": 0.2}  # its files say nothing; its model card's examples do


@dataclass(frozen=True)
class Running:
    """An engine and the socket that it will be served on."""

    engine: EngineLike
    settings: Settings
    listener: socket.socket

    @property
    def address(self) -> str:
        """The URL."""
        return lifecycle.url_of(self.listener)

    def serve(self) -> None:
        """Serves until a signal ends it."""
        log_to_stderr()
        lifecycle.serve(self.engine, self.settings, self.listener)


def start(
    model: str | None,
    *,
    host: str,
    port: int,
    api_key: str | None,
    dtype: str | None,
    form: str | None = None,
    **options: Any,
) -> Running:
    """Binds the address and loads the engine; `options` are the engine's, None for its own choice.
    `form` names the format of replies, None leaves it to the chat template.

    Raises UserError when the address is taken, or for whatever the model does not allow.
    """
    listener = lifecycle.bind(host, port)
    try:
        loaded = opened(model, dtype, options.get("machine") or "cpu")
        defaults = sampling_defaults(loaded.directory)
        if model in (None, DEMO):
            defaults = DEMO_DEFAULTS | defaults
        settings = Settings(api_key=api_key, defaults=defaults, format=form)
        chosen = {name: value for name, value in options.items() if value is not None}
        engine = Engine(loaded, **chosen)
        listener.listen(lifecycle.BACKLOG)  # who connects from now on is answered soon
        return Running(engine, settings, listener)
    except BaseException:
        listener.close()
        raise


def sampling_defaults(directory: Path) -> dict[str, float]:
    """What a checkpoint's generation_config.json says of sampling. Raises UserError for a value
    that no request could ask for."""
    path = directory / "generation_config.json"
    found: dict[str, float] = {}
    for name, value in read_optional_json(path).items():
        if name in DEFAULTS and value is not None:
            low, high = DEFAULTS[name]
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise UserError(f"{path}: {name} = {value!r} must be a number.")
            if not low <= value <= high:
                raise UserError(f"{path}: {name} = {value} must be from {low:g} to {high:g}.")
            found[name] = float(value)
    return found
