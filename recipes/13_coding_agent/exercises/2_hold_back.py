"""Text or a call?

A model writes text, and calls of tools between `<tool_call>` and `</tool_call>`. Its output comes
in pieces. Text must go out at once, but nothing of a marker may be shown as text, so an end of
the text that may be the beginning of `<tool_call>` waits.

Write `push`: it returns (text that is final now, calls that are complete now), a call being what
stands between the markers.
"""

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class Splitter:
    """Takes text and calls apart."""

    def __init__(self) -> None:
        self.rest = ""
        self.inside = False

    def push(self, piece: str) -> tuple[str, list[str]]:
        """(text that is final now, calls that are complete now)."""
        self.rest += piece
        text, calls = "", []
        while True:
            marker = CLOSE if self.inside else OPEN
            before, found, after = self.rest.partition(marker)
            # blank: a whole marker is there; or, outside, all goes out but a possible beginning
            if found:
                if self.inside:
                    calls.append(before)
                else:
                    text += before
                self.rest, self.inside = after, not self.inside
                continue
            if not self.inside:
                keep = min(len(OPEN) - 1, len(self.rest))
                while not OPEN.startswith(self.rest[len(self.rest) - keep :]):
                    keep -= 1
                text += self.rest[: len(self.rest) - keep]
                self.rest = self.rest[len(self.rest) - keep :]
            return text, calls
            # end


# === check
HINT = "Marker found: switch sides and go on. Else hold the longest end that may begin OPEN."
READ = "Finding calls while they are written"
WRONG = ("keep = min(len(OPEN) - 1, len(self.rest))", "keep = 0")


def check(yours, report):
    """Pieces of every size; text that only looks like a marker."""
    reply = 'a < b <tool_call>{"x": 1}</tool_call> and <tool_<tool_call>{}</tool_call>end'
    wanted = ("a < b  and <tool_end", ['{"x": 1}', "{}"])
    for size in (1, 2, 3, 5, 11, 100):
        splitter = yours.Splitter()
        text, calls = "", []
        for at in range(0, len(reply), size):
            more, done = splitter.push(reply[at : at + size])
            text, calls = text + more, calls + done
        report.equal(f"pieces of {size}", (text + splitter.rest, calls), wanted)
    report.equal("text goes out at once", yours.Splitter().push("hello")[0], "hello")
