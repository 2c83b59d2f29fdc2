"""The exact bytes that a token stands for, a part of a character included. Texts of whole outputs
are the tokenizer's business.

Source: `bytes_to_unicode` of OpenAI's GPT-2 (src/encoder.py), and sentencepiece's byte fallback.
"""

import json
import re
from functools import cache

import tokenizers

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenBytes:
    """Bytes by token id, for vocabularies of bytes (GPT-2's alphabet) and of pieces (sentencepiece,
    with its tokens for single bytes). Any other's tokens are decoded one by one."""

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self._backend = backend
        self._added = {i: token.content for i, token in backend.get_added_tokens_decoder().items()}
        kinds = _decoder_kinds(json.loads(backend.to_str()).get("decoder"))
        self._byte_level = "ByteLevel" in kinds
        self._pieces = "ByteFallback" in kinds or "Metaspace" in kinds
        self.strips_space = bool(kinds & {"Strip", "Metaspace"})  # one that a text begins with
        self._known: dict[int, bytes] = {}

    def __call__(self, token: int) -> bytes:
        """The bytes; none for an id that the tokenizer does not have."""
        known = self._known.get(token)
        if known is None:
            known = self._known[token] = self._found(token)
        return known

    def _found(self, token: int) -> bytes:
        if token in self._added:
            return self._added[token].encode()
        piece = self._backend.id_to_token(token)
        if piece is None:
            return b""
        if self._byte_level:
            try:
                return str(piece).translate(_gpt2_alphabet()).encode("latin-1")
            except UnicodeEncodeError:  # characters that stand for no byte
                pass
        elif self._pieces:
            single = _BYTE_TOKEN.fullmatch(piece)
            if single:
                return bytes([int(single[1], 16)])
            return str(piece).replace("\u2581", " ").encode()
        return str(self._backend.decode([token], skip_special_tokens=False)).encode()


def _decoder_kinds(decoder: dict[str, object] | None) -> set[str]:
    """The types of a tokenizer.json's decoder and of those that it is put together from."""
    if decoder is None:
        return set()
    parts = decoder.get("decoders")
    kinds = {str(decoder.get("type"))}
    for part in parts if isinstance(parts, list) else []:
        kinds |= _decoder_kinds(part)
    return kinds


@cache
def _gpt2_alphabet() -> dict[int, int]:
    """What `str.translate` makes of the characters that stand for bytes: a byte's own character
    where that prints, else one from U+0100 on. Those that stand for none become no Latin-1."""
    prints = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in prints]
    return dict.fromkeys(others, 0xFFFD) | {0x100 + place: b for place, b in enumerate(others)}
