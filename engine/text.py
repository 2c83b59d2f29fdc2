"""An output's text as its tokens come: whole characters only, and nothing of a stop string. When a
generation ends for other reasons, and what a token's own bytes are, is known elsewhere."""

import codecs
from collections.abc import Iterator, Sequence

from mkport.engine.tokenizer import Tokenizer


class StreamDecoder:
    """Decodes a growing list of ids piece by piece. Joined, the pieces are `decode` of all ids;
    none ends inside a UTF-8 character: bytes that may still become one wait for their rest."""

    def __init__(self, tokenizer: Tokenizer, skip_special: bool = True) -> None:
        self._bytes = tokenizer.token_bytes
        self._skipped = tokenizer.special_ids if skip_special else frozenset()
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self._inside = False  # a character whose rest is to come
        self._strip = self._bytes.strips_space  # until there is text

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while a character is unfinished. Bytes that no
        longer can become a character show as U+FFFD."""
        return "" if token in self._skipped else self._shown(self._bytes(token), final=False)

    def finish(self) -> str:
        """What is left at the end; an unfinished character shows as U+FFFD."""
        return self._shown(b"", final=True)

    def _shown(self, data: bytes, final: bool) -> str:
        if data.isascii() and not self._inside:
            text = data.decode("ascii")
        else:
            text = self._utf8.decode(data, final)
            self._inside = self._utf8.getstate()[0] != b""
        if self._strip and text:
            self._strip = False
            return text.removeprefix(" ")
        return text


class StopStrings:
    """Looks for any of some strings in a text that comes in pieces, each character once. The first
    to be complete is found; of several that are at once, the longest. Source: Aho and Corasick,
    "Efficient String Matching", CACM 18(6), 1975."""

    def __init__(self, stops: Sequence[str]) -> None:
        """No stop may be empty."""
        # a state is a prefix of some stop, 0 the empty one
        self._next: list[dict[str, int]] = [{}]  # the states one character longer
        self._length = [0]
        self._stop: list[str | None] = [None]  # the longest stop that ends there
        self._shorter = [0]  # its longest proper suffix that is a state too
        self._state = 0
        for stop in stops:
            state = 0
            for length, character in enumerate(stop, 1):
                new = len(self._next)
                state = self._next[state].setdefault(character, new)
                if state == new:
                    self._next.append({})
                    self._length.append(length)
                    self._stop.append(None)
                    self._shorter.append(0)
            self._stop[state] = stop
        for parent, character, state in self._by_length():
            if parent:
                self._shorter[state] = self._after(self._shorter[parent], character)
            self._stop[state] = self._stop[state] or self._stop[self._shorter[state]]

    @property
    def held(self) -> int:
        """How many of the last characters may be the beginning of a stop."""
        return self._length[self._state]

    def push(self, text: str) -> tuple[int, str] | None:
        """Where in `text` the first stop is complete (the characters up to its end), and which."""
        for place, character in enumerate(text, 1):
            self._state = self._after(self._state, character)
            stop = self._stop[self._state]
            if stop is not None:
                return place, stop
        return None

    def _after(self, state: int, character: str) -> int:
        while character not in self._next[state]:
            if state == 0:
                return 0
            state = self._shorter[state]
        return self._next[state][character]

    def _by_length(self) -> Iterator[tuple[int, str, int]]:
        """(state, next character, state that it leads to), shorter states first."""
        states = [0]
        for parent in states:
            for character, state in self._next[parent].items():
                states.append(state)
                yield parent, character, state


class OutputText:
    """The text of one choice that is final: `push` each token that is not a stop token, then
    `finish`. When a stop string is complete, `stopped` names it and no more text comes."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        stop: Sequence[str] = (),
        min_tokens: int = 0,
        skip_special: bool = True,
    ) -> None:
        """Stop strings are looked for only in text of tokens after the first `min_tokens`."""
        self.stopped: str | None = None
        self._decoder = StreamDecoder(tokenizer, skip_special)
        self._stops = StopStrings(stop) if stop else None
        self._unchecked = min_tokens
        self._held = ""  # may be the beginning of a stop string

    def push(self, token: int) -> str:
        """The text that is final now and was not before; nothing of a stop string is."""
        if self.stopped is not None:
            return ""
        piece = self._decoder.push(token)
        if self._unchecked > 0:
            self._unchecked -= 1
            return piece
        return self._checked(piece)

    def finish(self) -> str:
        """The rest: what looked like the beginning of a stop string, an unfinished character."""
        if self.stopped is not None:
            return ""
        text = self._checked(self._decoder.finish()) + self._held
        self._held = ""
        return text

    def _checked(self, piece: str) -> str:
        if self._stops is None:
            return piece
        found = self._stops.push(piece)
        text = self._held + piece
        if found is None:
            final = len(text) - self._stops.held
            self._held = text[final:]
            return text[:final]
        end, self.stopped = found
        final = len(self._held) + end - len(self.stopped)
        self._held = ""
        return text[:final]
