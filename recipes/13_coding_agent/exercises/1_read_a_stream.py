"""Read a stream.

A streamed answer consists of events. An event is one or more lines and ends with an empty line. A
line `data: ...` carries JSON, or `[DONE]` at the end; a line that begins with `:` is a comment,
which keeps the connection alive. Bytes arrive in pieces of any size: an event may be cut
anywhere, even inside a character.

Write `push`: it takes the next bytes and returns the JSON objects that are complete now. Nothing
comes after `[DONE]`.
"""

import json
from typing import Any


class EventReader:
    """Events out of bytes that arrive in pieces."""

    def __init__(self) -> None:
        self.rest = b""
        self.done = False

    def push(self, data: bytes) -> list[Any]:
        """The objects that are complete now."""
        self.rest += data
        found: list[Any] = []
        # blank: take whole events off the front of self.rest
        while not self.done and b"\n\n" in self.rest:
            event, self.rest = self.rest.split(b"\n\n", 1)
            for line in event.decode().splitlines():
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    found.append(json.loads(line.removeprefix("data: ")))
        # end
        return found


# === check
HINT = "Split at the first empty line while there is one, and decode only whole events."
READ = "Two turns of an agent"
WRONG = ('while not self.done and b"\\n\\n" in self.rest:', 'if b"\\n\\n" in self.rest:')


def check(yours, report):
    """Pieces of every size."""
    wanted = [{"text": "Grüße"}, {"text": "ein\nzwei"}, {"n": 3}]
    parts = [f"data: {json.dumps(one, ensure_ascii=False)}\n\n" for one in wanted]
    stream = (": ping\n\n" + parts[0] + parts[1] + ": ping\n\n" + parts[2]).encode()
    stream += b'data: [DONE]\n\ndata: {"late": 1}\n\n'
    for size in (1, 2, 3, 7, 20, len(stream)):
        reader = yours.EventReader()
        got = [
            one for at in range(0, len(stream), size) for one in reader.push(stream[at : at + size])
        ]
        report.equal(f"pieces of {size} bytes", got, wanted)
        report.equal("it has ended", reader.done, True)
