"""Reading tool calls written as JSON objects, character by character: the name as soon as it is
there, the arguments as they come. What stands around the objects is each format's own."""

import json
import re
import secrets
from collections.abc import Collection
from typing import Literal

from mkport.engine.parsers.deltas import Delta

NAMES = ("name", "tool_name")
ARGUMENTS = ("arguments", "parameters")
CLOSES = {"{": "}", "[": "]"}

_SPACE = re.compile(r"[ \t\n\r]*")
_IN_STRING = re.compile(r'[^"\\]+')
_OUTSIDE = re.compile(r'[^"{}\[\],]+')


def new_id() -> str:
    """An id for a call, unlike any other: clients keep calls of many replies apart by it."""
    return f"call_{secrets.token_hex(12)}"


class FieldReader:
    """Finds the fields of one JSON object in a text that comes in pieces. It follows strings and
    brackets, not all of JSON: what is between them is passed on as it is."""

    def __init__(self) -> None:
        self.state: Literal["open", "done", "broken"] = "open"
        self._mode = "brace"  # what comes next
        self._key = ""
        self._raw = ""  # of a key that is being read
        self._string = self._escaped = False
        self._brackets: list[str] = []  # those that must close, in the value being read

    def read(self, text: str, at: int) -> tuple[int, str | None, str, bool]:
        """Reads on from text[at] up to the end of a piece of one field, or of the text.

        Returns where it stopped, and of a value: its key (None: no value), its piece, and whether
        the value is complete. When the object is over or is none, `state` says so.
        """
        while at < len(text) and self.state == "open":
            if self._mode == "value":
                end, complete = self._value(text, at)
                piece, key = text[at:end], self._key
                if complete:
                    self._mode = "comma"
                return end, key, piece, complete
            if self._mode == "key text":
                at = self._string_end(text, at)
                continue
            space = _SPACE.match(text, at)
            at = space.end() if space else at
            if at < len(text):
                at = self._punctuation(text[at], at)
        return at, None, "", False

    def _punctuation(self, character: str, at: int) -> int:
        """Takes one character between keys and values; returns where to go on."""
        match self._mode, character:
            case "brace", "{":
                self._mode = "key or end"
            case (("key or end" | "comma"), "}"):
                self.state = "done"
            case (("key or end" | "key"), '"'):
                self._mode, self._raw = "key text", ""
            case "comma", ",":
                self._mode = "key"
            case "colon", ":":
                self._mode = "first of value"
            case "first of value", character if character not in ",:}]":
                self._mode = "value"
                return at
            case _:
                self.state = "broken"
                return at
        return at + 1

    def _string_end(self, text: str, at: int) -> int:
        """Reads a key's characters; leaves the mode when its quote closes."""
        start, end = at, self._in_string(text, at, quoted=True)
        self._raw += text[start:end]
        if not self._string:
            self._mode = "colon"
            try:
                self._key = str(json.loads('"' + self._raw, strict=False))
            except ValueError:
                self._key = ""
        return end

    def _in_string(self, text: str, at: int, quoted: bool = False) -> int:
        """Goes through a string's inside, its closing quote included."""
        self._string = self._string or quoted
        while at < len(text) and self._string:
            run = _IN_STRING.match(text, at)
            if self._escaped:
                self._escaped, at = False, at + 1
            elif run:
                at = run.end()
            else:
                self._string = text[at] != '"'
                self._escaped = text[at] == "\\"
                at += 1
        return at

    def _value(self, text: str, at: int) -> tuple[int, bool]:
        """Goes through a value; returns where it stopped and whether the value ended there."""
        while at < len(text):
            if self._string:
                at = self._in_string(text, at)
                if not self._string and not self._brackets:
                    return at, True
                continue
            run = _OUTSIDE.match(text, at)
            if run:
                at = run.end()
                continue
            character = text[at]
            if not self._brackets and character in ",}]":  # the end of a number, true, null
                return at, True
            if character == '"':
                self._string = True
            elif character in CLOSES:
                self._brackets.append(CLOSES[character])
            elif character in "}]":
                if self._brackets.pop() != character:
                    self.state = "broken"
                    return at, False
                if not self._brackets:
                    return at + 1, True
            at += 1
        return at, False


class CallReader:
    """Reads one call: an object with a name and arguments, in any order."""

    def __init__(self, index: int, names: Collection[str] | None = None) -> None:
        """`names`: a call of any other tool is none; None: any name will do."""
        self.text = ""  # all that was read, while it may turn out to be no call
        self.named = False
        self._index, self._names = index, names
        self._fields = FieldReader()
        self._name = ""
        self._held = ""  # of the arguments, not yet passed on
        self._object = False  # the arguments are an object, and so passed on as they come
        self._begun = self._complete = False

    @property
    def state(self) -> Literal["open", "done", "broken"]:
        """ "broken" where the text stops being a call; if it is not even `named`, it never was."""
        return "broken" if self._fields.state == "done" and not self.named else self._fields.state

    def read(self, text: str) -> tuple[int, list[Delta]]:
        """Reads on; returns how many characters were taken, and what they say."""
        at, deltas = 0, list[Delta]()
        while at < len(text) and self.state == "open":
            at, key, piece, complete = self._fields.read(text, at)
            if key in NAMES and not self.named:
                self._name += piece
                deltas += self._baptise() if complete else ()
            elif key in ARGUMENTS and not self._complete:
                self._object = self._object or (not self._begun and piece.startswith("{"))
                self._begun, self._complete = True, complete
                self._held += piece
                deltas += self._pass()
        if not self.named:
            self.text += text[:at]
        elif self.state == "done" and not self._begun:
            deltas.append(Delta(index=self._index, arguments="{}"))
        return at, deltas

    def rest(self, text: str = "") -> list[Delta]:
        """What is left when no more is read: arguments held back, and `text` after a break if it
        stands where arguments would go on."""
        if not self.named or self._complete or not self._begun:
            return []
        self._held, text = "", self._held + text
        return [Delta(index=self._index, arguments=text)] if text else []

    def _baptise(self) -> list[Delta]:
        name = _loaded(self._name)
        if not isinstance(name, str) or not name or not self._known(name):
            self._fields.state = "broken"
            return []
        self.named = True
        return [Delta(index=self._index, id=new_id(), name=name), *self._pass()]

    def _known(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _pass(self) -> list[Delta]:
        """The arguments that may be shown."""
        if not self.named or not (self._object or self._complete):
            return []
        held, self._held = self._held, ""
        if not self._object:  # some write the object's JSON as a string, or null for none
            value = _loaded(held)
            held = value if isinstance(value, str) else "{}" if value is None else held.strip()
        return [Delta(index=self._index, arguments=held)] if held else []


def _loaded(text: str) -> object:
    try:
        return json.loads(text, strict=False)
    except ValueError:
        return text
