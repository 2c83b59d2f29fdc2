"""Small checkpoints and GGUF files for the loading tests, and the demo model converted once."""

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from tokenizers import pre_tokenizers

from mkport.engine.gguf_file import convert_gguf
from mkport.engine.gguf_tokenizer import tokenizer_files
from mkport.engine.source import DEMO_PACKAGE, demo_file
from mkport.engine.synth import byte_tokenizer
from mkport.engine.tokenizer import Tokenizer

HIDDEN, LAYERS, HEADS, KV_HEADS, HEAD_DIM, FFN = 32, 2, 4, 2, 16, 48

# byte-level BPE: the 256 bytes, three merges, a word that no merge reaches, three special tokens
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
TOKENS = [*BYTES, "he", "hel", "12", "lo", "<s>", "</s>", "<think>"]
VOCAB = len(TOKENS)

Fields = dict[str, Any]


@pytest.fixture(scope="session")
def demo_f32(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model as a float32 Hugging Face directory."""
    if importlib.util.find_spec(DEMO_PACKAGE) is None:
        pytest.skip("the demo model is not installed")
    out = tmp_path_factory.mktemp("demo") / "smollm2"
    convert_gguf(demo_file(), out, "f32")
    return out


@pytest.fixture(scope="session")
def demo_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The demo model's tokenizer, without its weights."""
    if importlib.util.find_spec(DEMO_PACKAGE) is None:
        pytest.skip("the demo model is not installed")
    fields = gguf.GGUFReader(demo_file()).fields
    meta = {name: fields[name].contents() for name in fields if name.startswith("tokenizer.")}
    out = tmp_path_factory.mktemp("demo_tokenizer")
    for name, content in tokenizer_files(demo_file(), meta, 49152, 8192).items():
        (out / name).write_text(json.dumps(content))
    return Tokenizer.load(out)


@pytest.fixture(scope="session")
def single_bytes(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    """The tokenizer of random checkpoints: every byte a token, then a beginning and an end."""
    out = tmp_path_factory.mktemp("single_bytes")
    byte_tokenizer(out, 300)
    return Tokenizer.load(out)


@pytest.fixture
def tiny_tensors() -> dict[str, np.ndarray]:
    """Random GGUF tensors of a tiny llama, in GGUF's names, float32."""
    draw = np.random.default_rng(0)
    shapes = {"token_embd": (VOCAB, HIDDEN), "output_norm": (HIDDEN,)}
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm": (HIDDEN,),
            f"blk.{layer}.attn_q": (HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
            f"blk.{layer}.attn_output": (HIDDEN, HEADS * HEAD_DIM),
            f"blk.{layer}.ffn_norm": (HIDDEN,),
            f"blk.{layer}.ffn_gate": (FFN, HIDDEN),
            f"blk.{layer}.ffn_up": (FFN, HIDDEN),
            f"blk.{layer}.ffn_down": (HIDDEN, FFN),
        }
    return {
        f"{name}.weight": draw.standard_normal(shape).astype(np.float32)
        for name, shape in shapes.items()
    }


@pytest.fixture
def write_gguf(tmp_path: Path, tiny_tensors: dict[str, np.ndarray]) -> Callable[..., Path]:
    """A function that writes a tiny GGUF: `arch`, `pre`, extra metadata and tensors may be given;
    a tensor given as None is left out."""

    def write(
        arch: str = "llama",
        pre: str = "smollm",
        extra: Callable[[gguf.GGUFWriter], None] | None = None,
        tensors: dict[str, np.ndarray | None] | None = None,
    ) -> Path:
        path = tmp_path / "tiny.gguf"
        writer = gguf.GGUFWriter(path, arch)
        writer.add_block_count(LAYERS)
        writer.add_context_length(64)
        writer.add_embedding_length(HIDDEN)
        writer.add_feed_forward_length(FFN)
        writer.add_head_count(HEADS)
        writer.add_head_count_kv(KV_HEADS)
        writer.add_key_length(HEAD_DIM)
        writer.add_rope_dimension_count(HEAD_DIM)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_rope_freq_base(10000.0)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(pre)
        writer.add_token_list(TOKENS)
        writer.add_token_types([1] * (VOCAB - 3) + [3, 3, 4])
        writer.add_token_merges(["h e", "he l", "1 2"])
        writer.add_bos_token_id(TOKENS.index("<s>"))
        writer.add_eos_token_id(TOKENS.index("</s>"))
        if extra is not None:
            extra(writer)
        for name, tensor in {**tiny_tensors, **(tensors or {})}.items():
            if tensor is not None:
                writer.add_tensor(name, tensor)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write


@pytest.fixture
def tiny_directory(tmp_path: Path, write_gguf: Callable[..., Path]) -> Path:
    """A tiny model as a float32 Hugging Face directory, with its tokenizer."""
    out = tmp_path / "tiny"
    convert_gguf(write_gguf(), out, "f32")
    return out


@pytest.fixture
def write_safetensors(tmp_path: Path) -> Callable[..., Path]:
    """A function that writes a safetensors file by hand, so that it can be wrong on purpose."""

    def write(header: Any, data: bytes = b"", name: str = "model.safetensors") -> Path:
        text = header if isinstance(header, bytes) else json.dumps(header).encode()
        path = tmp_path / name
        path.write_bytes(len(text).to_bytes(8, "little") + text + data)
        return path

    return write
