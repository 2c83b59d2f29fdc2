"""Weights are mapped, checked against their shapes, and refused by file and tensor when wrong."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mkport.declare.case import from_bf16
from mkport.engine.safetensors_file import read_header, write_header, write_rows
from mkport.engine.weights import all_entries, open_weights
from mkport.errors import UserError

SHAPES = {"a": (2, 4), "b": (4,)}
A = np.arange(8, dtype=np.float32).reshape(2, 4) / 3
B = np.arange(4, dtype=np.float32)


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def good() -> dict[str, Any]:
    return {"a": entry("F32", [2, 4], 0, 32), "b": entry("F32", [4], 32, 48)}


DATA = A.tobytes() + B.tobytes()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("asked", [None, "bf16", "f32"])
def test_every_dtype_reads_as_what_is_asked(tmp_path: Path, name: str, asked: str | None) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import save_file

    kind = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
    stored = {"a": torch.from_numpy(A).to(kind), "b": torch.from_numpy(B).to(kind)}
    save_file(stored, tmp_path / "model.safetensors")
    weights = open_weights(tmp_path, SHAPES, dtype=asked)
    assert weights.dtype == (asked or ("bf16" if name == "BF16" else "f32"))
    assert set(weights) == {"a", "b"} and len(weights) == 2
    assert weights.nbytes == 12 * (2 if weights.dtype == "bf16" else 4)
    for tensor, shape in SHAPES.items():
        array = weights[tensor]
        assert weights.shape(tensor) == array.shape == shape
        assert not array.flags.writeable
        target = torch.bfloat16 if weights.dtype == "bf16" else torch.float32
        values = from_bf16(array) if weights.dtype == "bf16" else array
        np.testing.assert_array_equal(values, stored[tensor].to(target).float().numpy())


def test_stored_tensors_are_views_and_converted_ones_exist_once(
    write_safetensors: Callable[..., Path],
) -> None:
    directory = write_safetensors(good(), DATA).parent
    weights = open_weights(directory, SHAPES)
    assert np.shares_memory(weights["a"], weights["a"])
    converted = open_weights(directory, SHAPES, dtype="bf16")
    held = converted["a"]
    assert converted["a"] is held


def test_bytes_off_their_alignment_are_read(write_safetensors: Callable[..., Path]) -> None:
    text = json.dumps(good()).encode()
    text += b" " * (-(8 + len(text)) % 4 + 1)  # data begins one byte past a multiple of four
    directory = write_safetensors(text, DATA).parent
    weights = open_weights(directory, SHAPES)
    np.testing.assert_array_equal(weights["a"], A)
    assert weights["a"].flags.aligned


def test_what_is_written_is_read_by_safetensors_itself(tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        write_header(file, SHAPES, "F32")
        assert file.tell() % 64 == 0
        assert write_rows(file, [A[:1], A[1:]]) == A.nbytes
        write_rows(file, [B])
    theirs = safetensors.load_file(path)
    np.testing.assert_array_equal(theirs["a"], A)
    np.testing.assert_array_equal(open_weights(tmp_path, SHAPES)["b"], theirs["b"])


@pytest.mark.parametrize(
    ("header", "data", "named"),
    [
        (b"not json", DATA, "not JSON"),
        (b"\xff\xfe", DATA, "not JSON"),
        (b"[" * 5000, DATA, "not JSON"),
        (b"[]", DATA, "not a JSON object"),
        (b'{"a": 1, "a": 2}', DATA, "twice"),
        ({"a": 7}, b"", "entry of tensor a"),
        ({"a": {"dtype": "F32"}}, b"", "entry of tensor a"),
        ({"a": entry("F32", [2, -4], 0, 32)}, DATA, "tensor a"),
        ({"a": entry("F32", [2, 4], 32, 0)}, DATA, "tensor a"),
        ({"a": entry("F32", [2, 4], 0, 16)}, DATA[:16], "tensor a"),
        ({"a": {"dtype": 3, "shape": [1], "data_offsets": [0, 4]}}, DATA, "tensor a"),
        (good(), DATA[:-1], "tensor b"),
        (good(), DATA + b"\0", "1 bytes follow"),
        (good() | {"b": entry("F32", [4], 16, 32)}, DATA, "tensor b overlaps"),
        (good() | {"b": entry("F32", [4], 36, 52)}, DATA + b"\0" * 4, "tensor b follows a hole"),
        (good() | {"b": entry("F32", [4], 1 << 60, (1 << 60) + 16)}, DATA, "tensor b"),
    ],
)
def test_damaged_files_are_refused(
    write_safetensors: Callable[..., Path], header: Any, data: bytes, named: str
) -> None:
    path = write_safetensors(header, data)
    with pytest.raises(UserError, match=named) as refused:
        open_weights(path.parent, SHAPES)
    assert str(path) in str(refused.value)


def test_a_header_longer_than_any_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 8 + b"{}")
    with pytest.raises(UserError, match="its header should be"):
        open_weights(tmp_path, SHAPES)


@pytest.mark.parametrize("keep", [0, 3, 8, 20, 100])
def test_files_cut_short_are_refused(write_safetensors: Callable[..., Path], keep: int) -> None:
    path = write_safetensors(good(), DATA)
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match="cut short"):
        open_weights(path.parent, SHAPES)


@pytest.mark.parametrize(
    ("header", "named"),
    [
        ({"a": entry("F32", [2, 4], 0, 32)}, r"tensor b \[4\] is missing"),
        ({"a": entry("F32", [4, 2], 0, 32), "b": good()["b"]}, r"tensor a is \[4, 2\]"),
        (good() | {"c": entry("F32", [1], 48, 52)}, "tensor c"),
        ({"a": good()["a"], "b": entry("I32", [4], 32, 48)}, "tensor b is stored as I32"),
        ({"a": good()["a"], "b": entry("F4", [4], 32, 48)}, "tensor b is stored as F4"),
        (good() | {"old": entry("F32", [2], 48, 56)}, r"tensor old is \[2\]"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(
    write_safetensors: Callable[..., Path], header: Any, named: str
) -> None:
    size = max(item["data_offsets"][1] for item in header.values())
    path = write_safetensors(header, (DATA + b"\0" * 16)[:size])
    with pytest.raises(UserError, match=named):
        open_weights(path.parent, SHAPES, ignored={"old": (1,)})


def test_an_ignored_tensor_may_be_there(write_safetensors: Callable[..., Path]) -> None:
    path = write_safetensors(good() | {"old": entry("I64", [1], 48, 56)}, DATA + b"\0" * 8)
    assert set(open_weights(path.parent, SHAPES, ignored={"old": (1,)})) == {"a", "b"}


def test_no_weights_and_no_dtype(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has no weights"):
        open_weights(tmp_path, SHAPES)
    with pytest.raises(UserError, match="'fp8'"):
        open_weights(tmp_path, SHAPES, dtype="fp8")


ONE, TWO = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"


@pytest.fixture
def sharded(write_safetensors: Callable[..., Path]) -> Path:
    write_safetensors({"a": entry("F32", [2, 4], 0, 32)}, A.tobytes(), ONE)
    path = write_safetensors({"b": entry("F32", [4], 0, 16)}, B.tobytes(), TWO)
    index = {"metadata": {}, "weight_map": {"a": ONE, "b": TWO}}
    (path.parent / "model.safetensors.index.json").write_text(json.dumps(index))
    return path.parent


def test_shards_are_read_through_their_index(sharded: Path) -> None:
    weights = open_weights(sharded, SHAPES)
    np.testing.assert_array_equal(weights["a"], A)
    np.testing.assert_array_equal(weights["b"], B)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    (sharded / TWO).unlink()
    with pytest.raises(UserError, match=f"{TWO} is missing, but"):
        open_weights(sharded, SHAPES)


@pytest.mark.parametrize(
    ("placed", "named"),
    [
        ({"a": ONE, "b": ONE}, "lacks the tensor b"),
        ({"a": ONE, "b": TWO, "c": TWO}, "lacks the tensor c"),
        ({"a": TWO, "b": TWO}, "tensor b|tensor a"),
        ({"b": TWO, "c": ONE}, "tensor a"),
        ({"a": ONE, "b": "../" + TWO}, "not a plain file name"),
        ({"a": 1}, "weight_map"),
        ([], "weight_map"),
    ],
)
def test_an_index_that_does_not_fit_is_refused(sharded: Path, placed: Any, named: str) -> None:
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": placed}))
    with pytest.raises(UserError, match=named):
        open_weights(sharded, SHAPES)
    index.write_text("{")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        open_weights(sharded, SHAPES)


def test_a_large_file_is_not_read_to_open_it(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        write_header(file, {"a": (1 << 20, 1 << 10)}, "F32")  # 4 GiB, all of it a hole
        file.truncate(file.tell() + (1 << 32))
    assert read_header(path)["a"].nbytes == 1 << 32
    assert open_weights(tmp_path, {"a": (1 << 20, 1 << 10)})["a"][-1, -1] == 0


def test_a_shard_s_name_longer_than_any_file_s(sharded: Path) -> None:
    name = "x" * 300
    index = sharded / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(UserError, match=f"{name} is missing"):
        all_entries(sharded)
