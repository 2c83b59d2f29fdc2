"""Clients that keep a server busy, and do to it what clients do."""

import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any


class Crowd:
    """Clients that ask without a pause until they are told to stop: of their requests a fifth is
    hung up on early, a twentieth is wrong, some stream. `seen` counts what came of them."""

    def __init__(self, url: str, clients: int, text: Callable[[random.Random], str]) -> None:
        self.seen: Counter[str] = Counter()
        host, port = url.removeprefix("http://").split(":")
        self._address = host, int(port)
        self._text = text
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(random.Random(i),), daemon=True)
            for i in range(clients)
        ]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Waits for the requests that are out."""
        self._over.set()
        for thread in self._threads:
            thread.join(150)
            assert not thread.is_alive()

    def _run(self, draw: random.Random) -> None:
        while not self._over.is_set():
            lot = draw.random()
            kind = "hang up" if lot < 0.2 else "wrong" if lot < 0.25 else "ask"
            stream = draw.random() < 0.7
            fields: dict[str, Any] = {"stream": stream, "max_tokens": draw.randint(1, 60)}
            fields["messages"] = [{"role": "user", "content": self._text(draw)}]
            if kind == "wrong":
                fields[draw.choice(("temperature", "top_p", "n", "stop", "messages"))] = -1
            try:
                self.seen[self._ask(fields, draw if kind == "hang up" else None)] += 1
            except OSError as error:
                self.seen[f"{kind}: {type(error).__name__}"] += 1

    def _ask(self, fields: dict[str, Any], leaves: random.Random | None) -> str:
        """One request on a connection of its own; its outcome in a word or two."""
        body = json.dumps(fields).encode()
        with socket.create_connection(self._address, 120) as connection:
            connection.sendall(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
            )
            if leaves is not None:
                time.sleep(leaves.random() * 0.3)
                return "hung up"
            answer = b""
            while part := connection.recv(65536):
                answer += part
        status = answer[9:12].decode()
        if status == "200" and fields["stream"] and b"data: [DONE]\n\n" not in answer:
            return "cut"
        return status
