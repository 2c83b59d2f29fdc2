"""A GGUF file becomes a Hugging Face directory with the same model in it, or nothing at all."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from mkport.declare.case import to_bf16
from mkport.engine.gguf_file import convert_gguf
from mkport.engine.safetensors_file import read_header
from mkport.engine.weights import Weights, open_weights
from mkport.errors import UserError
from mkport.models import llama, parse_config, rope

Write = Callable[..., Path]
Tensors = dict[str, np.ndarray]


def open_converted(directory: Path) -> tuple[llama.LlamaConfig, Weights]:
    config = parse_config(json.loads((directory / "config.json").read_text()))
    assert isinstance(config, llama.LlamaConfig)
    return config, open_weights(directory, llama.tensor_shapes(config))


def as_gguf_stores(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order that llama.cpp's converter gives them, written out row by row."""
    dim = len(rows) // heads
    stored = np.empty_like(rows)
    for head in range(heads):
        for pair in range(dim // 2):
            for side in range(2):
                stored[head * dim + 2 * pair + side] = rows[head * dim + side * dim // 2 + pair]
    return stored


def test_tensors_arrive_under_their_names_and_in_half_split_order(
    tmp_path: Path, write_gguf: Write, tiny_tensors: Tensors
) -> None:
    convert_gguf(write_gguf(), tmp_path / "out", "f32")
    config, weights = open_converted(tmp_path / "out")
    assert weights.dtype == "f32" and config.tied and config.norm_eps == 1e-5
    for gguf_name, name in [
        ("token_embd", "model.embed_tokens"),
        ("output_norm", "model.norm"),
        ("blk.1.attn_norm", "model.layers.1.input_layernorm"),
        ("blk.1.ffn_norm", "model.layers.1.post_attention_layernorm"),
        ("blk.0.attn_v", "model.layers.0.self_attn.v_proj"),
        ("blk.0.attn_output", "model.layers.0.self_attn.o_proj"),
        ("blk.0.ffn_gate", "model.layers.0.mlp.gate_proj"),
        ("blk.0.ffn_up", "model.layers.0.mlp.up_proj"),
        ("blk.0.ffn_down", "model.layers.0.mlp.down_proj"),
    ]:
        stored = tiny_tensors[f"{gguf_name}.weight"]
        np.testing.assert_array_equal(weights[f"{name}.weight"], stored)
    for letter, heads in (("q", config.heads), ("k", config.kv_heads)):
        ours = weights[f"model.layers.1.self_attn.{letter}_proj.weight"]
        stored = tiny_tensors[f"blk.1.attn_{letter}.weight"]
        np.testing.assert_array_equal(as_gguf_stores(ours, heads), stored)


def test_bf16_is_the_float32_conversion_rounded(tmp_path: Path, write_gguf: Write) -> None:
    path = write_gguf()
    seen: list[tuple[int, int]] = []
    convert_gguf(path, tmp_path / "f32", "f32")
    convert_gguf(path, tmp_path / "bf16", "bf16", lambda done, of: seen.append((done, of)))
    _, exact = open_converted(tmp_path / "f32")
    _, rounded = open_converted(tmp_path / "bf16")
    assert rounded.dtype == "bf16"
    for name in exact:
        np.testing.assert_array_equal(rounded[name], to_bf16(exact[name]))
    assert seen == [(i + 1, len(exact)) for i in range(len(exact))]


@pytest.mark.parametrize("rows_at_once", [1, 20, 4096])
def test_rows_come_out_the_same_in_chunks_of_any_size(
    tmp_path: Path, write_gguf: Write, monkeypatch: pytest.MonkeyPatch, rows_at_once: int
) -> None:
    path = write_gguf()
    convert_gguf(path, tmp_path / "whole", "f32")
    monkeypatch.setattr("mkport.engine.gguf_file.ROWS_AT_ONCE", rows_at_once)
    convert_gguf(path, tmp_path / "chunks", "f32")
    name = "model.safetensors"
    assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "chunks" / name).read_bytes()


def test_an_untied_head_and_linear_scaling_are_kept(tmp_path: Path, write_gguf: Write) -> None:
    def extra(writer: gguf.GGUFWriter) -> None:
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(4.0)

    head = np.ones((263, 32), dtype=np.float16)
    convert_gguf(write_gguf(extra=extra, tensors={"output.weight": head}), tmp_path / "o", "f32")
    config, weights = open_converted(tmp_path / "o")
    assert not config.tied and config.rope_scaling == rope.RopeScaling("linear", 4.0)
    np.testing.assert_array_equal(weights["lm_head.weight"], head.astype(np.float32))


def test_the_demo_keeps_what_its_file_says(demo_f32: Path) -> None:
    config, weights = open_converted(demo_f32)
    assert (config.hidden, config.layers, config.context) == (576, 30, 8192)
    assert (config.rope_theta, config.norm_eps, config.eos_ids) == (100000.0, 1e-5, (2,))
    assert weights.nbytes == 4 * 134_515_008  # the published number of parameters


def test_the_demo_speaks_in_transformers(demo_f32: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    tokenizer = transformers.AutoTokenizer.from_pretrained(demo_f32)
    model = transformers.AutoModelForCausalLM.from_pretrained(demo_f32, dtype=torch.float32)
    prompt = tokenizer("The capital of France is", return_tensors="pt")
    ids = model.generate(**prompt, max_new_tokens=2, do_sample=False)[0, -2:]
    assert tokenizer.decode(ids) == " Paris."


def scale(writer: gguf.GGUFWriter) -> None:
    writer.add_float32("llama.attention.scale", 0.5)


def experts(writer: gguf.GGUFWriter) -> None:
    writer.add_expert_count(8)


def yarn(writer: gguf.GGUFWriter) -> None:
    writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)


def value_length(writer: gguf.GGUFWriter) -> None:
    writer.add_value_length(32)


def unknown_id(writer: gguf.GGUFWriter) -> None:
    writer.add_pad_token_id(70000)


def text_factor(writer: gguf.GGUFWriter) -> None:
    writer.add_string("llama.rope.scaling.type", "linear")
    writer.add_string("llama.rope.scaling.factor", "2")


NORM = np.ones(32, dtype=np.float32)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"arch": "qwen2"}, "'qwen2'"),
        ({"pre": "viking"}, "'viking'"),
        ({"extra": scale}, "llama.attention.scale"),
        ({"extra": experts}, "llama.expert_count"),
        ({"extra": yarn}, "rope.scaling.type = 'yarn'"),
        ({"extra": value_length}, "attention.value_length"),
        ({"extra": unknown_id}, "padding_token_id"),
        ({"extra": text_factor}, "factor = '2' must be a positive number"),
        (
            {"tensors": {"output_norm.weight": NORM.astype(np.int32)}},
            "output_norm.weight is .* I32",
        ),
        ({"tensors": {"rope_freqs.weight": NORM}}, "rope_freqs.weight"),
        ({"tensors": {"blk.0.attn_q.bias": NORM}}, "blk.0.attn_q.bias"),
        ({"tensors": {"blk.7.attn_norm.weight": NORM}}, "blk.7.attn_norm.weight"),
        ({"tensors": {"blk.1.ffn_norm.weight": None}}, "layers.1.post_attention_layernorm"),
        ({"tensors": {"blk.1.ffn_norm.weight": NORM[:16]}}, r"blk.1.ffn_norm.weight is \[16\]"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    tmp_path: Path, write_gguf: Write, options: dict[str, Any], named: str
) -> None:
    path = write_gguf(**options)
    with pytest.raises(UserError, match=named) as refused:
        convert_gguf(path, tmp_path / "out", "bf16")
    assert str(path) in str(refused.value) or "GGUF tensor" in str(refused.value)
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_cut_anywhere_is_refused_and_leaves_nothing(
    tmp_path: Path, write_gguf: Write
) -> None:
    path = write_gguf()
    whole = path.read_bytes()
    for keep in [0, 3, 4, 7, 20, *range(24, len(whole), len(whole) // 40), len(whole) - 1]:
        path.write_bytes(whole[:keep])
        with pytest.raises(UserError, match="cut short"):
            convert_gguf(path, tmp_path / "out", "bf16")
        assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("content", [b"hello", b"GGUF", bytes(4096), b"GGUF" + b"\xff" * 4096])
def test_garbage_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError, match="not a whole GGUF file"):
        convert_gguf(path, tmp_path / "out", "bf16")


def test_an_array_longer_than_the_file_is_refused_at_once(tmp_path: Path) -> None:
    key = b"k"
    array = struct.pack("<IIQ", 9, 6, 1 << 50)  # an array of 2^50 float32
    head = b"GGUF" + struct.pack("<IQQ", 3, 0, 1)
    (tmp_path / "x.gguf").write_bytes(head + struct.pack("<Q", 1) + key + array)
    with pytest.raises(UserError, match="not a whole GGUF file"):
        convert_gguf(tmp_path / "x.gguf", tmp_path / "out", "bf16")


def test_a_failure_while_writing_leaves_nothing(tmp_path: Path, write_gguf: Write) -> None:
    path = write_gguf()

    def fail(done: int, of: int) -> None:
        if done == of:
            raise OSError("No space left on device")

    with pytest.raises(UserError, match="No space left"):
        convert_gguf(path, tmp_path / "out", "bf16", fail)
    assert list(tmp_path.iterdir()) == [path]


def test_an_existing_directory_is_kept(tmp_path: Path, write_gguf: Write) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(UserError, match="exists already"):
        convert_gguf(write_gguf(), tmp_path / "out", "bf16")
    with pytest.raises(UserError, match="'int4'"):
        convert_gguf(write_gguf(), tmp_path / "new", "int4")


def test_the_slower_of_two_converters_keeps_the_other_result(
    tmp_path: Path, write_gguf: Write
) -> None:
    path, out = write_gguf(), tmp_path / "out"

    def overtaken(done: int, of: int) -> None:
        if done == 1:
            convert_gguf(path, out, "f32")
            (out / "first").touch()

    convert_gguf(path, out, "f32", overtaken)
    assert (out / "first").exists() and read_header(out / "model.safetensors")
    assert sorted(tmp_path.iterdir()) == [out, path]
