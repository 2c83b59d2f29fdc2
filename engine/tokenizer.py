"""Text to token ids and back, and conversations to text, from a model directory's tokenizer files.
The `tokenizers` library does the splitting; nothing here knows a model."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from mkport.engine import chat, template
from mkport.engine.jsonfile import read_optional_json
from mkport.engine.token_bytes import TokenBytes
from mkport.errors import UserError

_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """A checkpoint's tokenizer. Made by `Tokenizer.load`."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        eos_ids: tuple[int, ...],
        templates: Mapping[str, str],
        named_tokens: Mapping[str, str],
    ) -> None:
        self._backend = backend
        self.eos_ids = eos_ids  # generation ends at any of these, in ascending order
        self._templates = templates  # by name; the usual one is "default"
        self._named_tokens = named_tokens  # "bos_token" -> its text, ...

    @classmethod
    def load(cls, directory: Path) -> "Tokenizer":
        """Read tokenizer.json, and where present tokenizer_config.json, generation_config.json,
        config.json and chat_template.jinja. Raises UserError for a missing or damaged file."""
        path = directory / "tokenizer.json"
        if not path.is_file():
            raise UserError(
                f"{path} is missing. Only checkpoints with a tokenizer.json are read (a "
                f"tokenizer.model alone is not): fetch or convert it."
            )
        try:
            backend = tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise UserError(f"{path} cannot be read ({error}). Fetch this file again.") from error
        backend.no_padding()
        backend.no_truncation()
        config = read_optional_json(directory / "tokenizer_config.json")
        named = {name: _token_text(config.get(name)) for name in _NAMED_TOKENS}
        named_tokens = {name: text for name, text in named.items() if text is not None}
        eos_ids: set[int | None] = set()
        for file in ("generation_config.json", "config.json"):
            eos_ids |= _token_ids(directory / file, "eos_token_id")
        if "eos_token" in named_tokens:
            eos_ids.add(backend.token_to_id(named_tokens["eos_token"]))
        eos = tuple(sorted(i for i in eos_ids if i is not None))
        return cls(backend, eos, _read_templates(directory, config), named_tokens)

    @property
    def vocab_size(self) -> int:
        """Number of token ids, added tokens included."""
        return int(self._backend.get_vocab_size(with_added_tokens=True))

    @cached_property
    def longest_token(self) -> int:
        """Characters of the vocabulary's longest token; a text has at most so many times its
        tokens."""
        return max(map(len, self._backend.get_vocab()), default=1)

    @cached_property
    def special_ids(self) -> frozenset[int]:
        """The ids of tokens that are not text, such as those that end a turn."""
        added = self._backend.get_added_tokens_decoder()
        return frozenset(i for i, token in added.items() if token.special)

    def special_id(self, text: str) -> int | None:
        """The id of a token that is not text, by how it is written; None where there is none."""
        token = self._backend.token_to_id(text)
        return token if token in self.special_ids else None

    @cached_property
    def token_bytes(self) -> TokenBytes:
        """The exact bytes of a token id, by a call."""
        return TokenBytes(self._backend)

    @property
    def chat_template(self) -> str | None:
        """The source of the usual template."""
        return self._templates.get("default")

    @property
    def has_chat_template(self) -> bool:
        """Whether the checkpoint says how a conversation is written."""
        return "default" in self._templates

    def to_json(self) -> str:
        """The tokenizer as a tokenizer.json, for libraries that read one."""
        return str(self._backend.to_str())

    def encode(self, text: str, add_special: bool = True) -> list[int]:
        """Token ids [tokens] of `text`; `add_special` adds what the tokenizer puts around a plain
        prompt (a first token, say). Rendered chats already hold it: encode those without.

        Raises UserError when the text is not valid Unicode.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UserError(
                f"The text is not valid Unicode at character {error.start}. Send it as UTF-8."
            ) from error
        # unlike `encode`, the batch call lets other threads run
        (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=add_special)
        return list(encoding.ids)

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """Text of token `ids` [tokens]; special tokens are left out unless `skip_special` is
        false."""
        # unlike `decode`, the batch call lets other threads run
        (text,) = self._backend.decode_batch([list(ids)], skip_special_tokens=skip_special)
        return str(text)

    def render_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The conversation as the checkpoint's own template writes it; encode it with
        `add_special=False`. Further `variables` reach the template as they are. Tools that the
        template does not know of are written into the messages.

        Raises UserError when there is no template or it refuses the messages.
        """
        own = self._templates.get("tool_use") if tools else None
        source = own or self._templates.get("default")
        if source is None:
            raise UserError(
                "This checkpoint has no chat template (chat_template.jinja, or chat_template in "
                "tokenizer_config.json). Add one, or send plain text."
            )
        knows = own is not None or template.reads(source, "tools")
        if not knows and chat.has_tools(messages, tools):
            messages, tools = chat.written_out(messages, tools), None
        given = {
            "messages": messages,
            "tools": tools,
            "documents": None,
            "add_generation_prompt": add_generation_prompt,
        }
        return template.render(source, {**self._named_tokens, **given, **variables})


def _token_text(value: Any) -> str | None:
    """A special token of tokenizer_config.json: text, or an object holding it, or null."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _read_templates(directory: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The chat templates by name; a file of its own outranks tokenizer_config.json."""
    own = directory / "chat_template.jinja"
    if own.is_file():
        try:
            return {"default": own.read_text(encoding="utf-8")}
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{own} cannot be read ({error}). Fetch this file again.") from error
    value = config.get("chat_template")
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, list):
        try:
            return {str(item["name"]): str(item["template"]) for item in value}
        except (TypeError, KeyError) as error:
            raise UserError(
                f"{directory / 'tokenizer_config.json'}: chat_template must be text or a list of "
                f"name and template. Fetch this file again."
            ) from error
    return {}


def _token_ids(file: Path, field: str) -> set[int]:
    """The ids in a field that holds one, a list of them, or nothing."""
    value = read_optional_json(file).get(field)
    ids = value if isinstance(value, list) else [] if value is None else [value]
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise UserError(f"{file}: {field} = {value!r} must be a token id or a list of them.")
    return set(ids)
