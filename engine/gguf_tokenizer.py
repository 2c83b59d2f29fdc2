"""Rebuilding Hugging Face tokenizer files from a GGUF's metadata, for byte-level BPE vocabularies
whose way of splitting text is known by name. Other tokenizers are refused by name.

Source: llama.cpp's `tokenizer.ggml.*` keys, and the patterns of its src/llama-vocab.cpp by name.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from mkport.errors import UserError

# tokenizer.ggml.token_type
CONTROL, USER_DEFINED = 3, 4

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _splitter(kind: str) -> pre_tokenizers.PreTokenizer | None:
    """How a vocabulary's text is split before merging, by its `tokenizer.ggml.pre`."""
    if kind == "gpt-2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "smollm":  # every digit stands alone, then GPT-2's rule
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    if kind == "llama-bpe":
        split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), behavior="isolated")
        bytes_only = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, bytes_only])
    return None


KNOWN_SPLITS = ("gpt-2", "llama-bpe", "smollm")


def tokenizer_files(
    path: Path, meta: Mapping[str, Any], vocab: int, context: int
) -> dict[str, dict[str, Any]]:
    """tokenizer.json, tokenizer_config.json and generation_config.json of a GGUF, as objects.

    `meta` is the GGUF metadata by key, `vocab` the rows of the embedding, `context` in positions.
    Raises UserError for a tokenizer that is not implemented or is inconsistent.
    """
    kind, pre = meta.get("tokenizer.ggml.model"), meta.get("tokenizer.ggml.pre")
    splitter = _splitter(pre) if isinstance(pre, str) else None
    if kind != "gpt2" or splitter is None:
        raise UserError(
            f"{path}: the tokenizer tokenizer.ggml.model = {kind!r}, tokenizer.ggml.pre = {pre!r} "
            f"is not implemented; 'gpt2' with {', '.join(KNOWN_SPLITS)} is. Use the model's "
            f"safetensors checkpoint, which brings its tokenizer.json."
        )
    tokens = _strings(path, meta, "tokenizer.ggml.tokens")
    pairs = [merge.partition(" ") for merge in _strings(path, meta, "tokenizer.ggml.merges")]
    merges = [(left, right) for left, _, right in pairs]
    ids = {token: i for i, token in enumerate(tokens)}
    if len(ids) != len(tokens) or len(tokens) > vocab:
        raise UserError(
            f"{path}: its vocabulary has {len(tokens)} tokens, {len(ids)} of them different, for "
            f"{vocab} embedding rows. The file is damaged: fetch it again."
        )
    try:
        # llama3's vocabulary holds whole words that its merges cannot reach
        backend = Tokenizer(models.BPE(ids, merges, ignore_merges=pre == "llama-bpe"))
    except Exception as error:  # the library raises bare Exception
        raise UserError(
            f"{path}: its merges do not fit its vocabulary ({error}). The file is damaged: fetch "
            f"it again."
        ) from error
    backend.pre_tokenizer = splitter
    backend.decoder = decoders.ByteLevel()
    types = meta.get("tokenizer.ggml.token_type") or []
    for token, token_type in zip(tokens, types, strict=False):
        if token_type in (CONTROL, USER_DEFINED):
            special = token_type == CONTROL
            backend.add_tokens([AddedToken(token, normalized=False, special=special)])
    named = _named_ids(path, meta, len(tokens))
    bos = named.get("bos")
    if meta.get("tokenizer.ggml.add_bos_token") and bos is not None:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A",
            pair=f"{tokens[bos]} $A {tokens[bos]} $B",
            special_tokens=[(tokens[bos], bos)],
        )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
        **{f"{n}_token": tokens[named[n]] for n in ("bos", "eos", "unk", "pad") if n in named},
    }
    if "tokenizer.chat_template" in meta:
        config["chat_template"] = meta["tokenizer.chat_template"]
    ends = sorted({named[n] for n in ("eos", "eot", "eom") if n in named})
    generation = {"bos_token_id": bos, "eos_token_id": ends, "pad_token_id": named.get("pad")}
    return {
        "tokenizer.json": json.loads(backend.to_str()),
        "tokenizer_config.json": config,
        "generation_config.json": {k: v for k, v in generation.items() if v not in (None, [])},
    }


def _strings(path: Path, meta: Mapping[str, Any], key: str) -> list[str]:
    value = meta.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UserError(
            f"{path} has no list of text {key}. The file is incomplete: fetch it again."
        )
    return value


def _named_ids(path: Path, meta: Mapping[str, Any], count: int) -> dict[str, int]:
    """The ids of the special tokens that the metadata names, each checked to exist."""
    keys = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    keys |= {"eot": "eot", "eom": "eom"}
    named = {}
    for name, key in keys.items():
        value = meta.get(f"tokenizer.ggml.{key}_token_id")
        if value is None:
            continue
        if not isinstance(value, int) or not 0 <= value < count:
            raise UserError(
                f"{path}: tokenizer.ggml.{key}_token_id = {value!r} is not one of its {count} "
                f"tokens. The file is damaged: fetch it again."
            )
        named[name] = value
    return named
