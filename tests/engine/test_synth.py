"""Written checkpoints are in the published format, repeatable, and of a healthy spread."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mkport.cli import main
from mkport.engine.load import load
from mkport.engine.safetensors_file import read_header
from mkport.engine.synth import SHARDS, published_shapes, synthesise
from mkport.engine.weights import INDEX
from mkport.errors import UserError
from mkport.models.sizes import FULL, TINY


def test_north_mini_code_has_its_published_tensors() -> None:
    shapes = published_shapes(FULL["cohere2_moe"])
    assert len(shapes) == 18730
    assert 2 * sum(int(np.prod(shape)) for shape in shapes.values()) == 60_968_607_744
    layer = "model.layers.1"
    assert shapes[f"{layer}.mlp.experts.127.gate_proj.weight"] == (768, 2048)
    assert shapes[f"{layer}.mlp.experts.0.down_proj.weight"] == (2048, 768)
    assert shapes[f"{layer}.mlp.gate.weight"] == (128, 2048)
    assert shapes[f"{layer}.self_attn.q_proj.weight"] == (4096, 2048)
    assert shapes["model.layers.0.mlp.up_proj.weight"] == (3072, 2048)
    assert "lm_head.weight" not in shapes


def test_mixtral_has_its_published_names() -> None:
    shapes = published_shapes(TINY["mixtral"])
    experts = "model.layers.1.block_sparse_moe.experts.7"
    assert shapes[f"{experts}.w1.weight"] == shapes[f"{experts}.w3.weight"] == (48, 64)
    assert shapes[f"{experts}.w2.weight"] == (64, 48)
    assert shapes["model.layers.1.block_sparse_moe.gate.weight"] == (8, 64)


@pytest.mark.parametrize("family", TINY)
def test_transformers_reads_what_is_written(tmp_path: Path, family: str) -> None:
    pytest.importorskip("transformers")
    import transformers

    written = synthesise(family, "tiny", tmp_path / "model", "f32")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "model", output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert sum(p.numel() for p in model.parameters()) == written.parameters
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "model")
    assert tokenizer.decode(tokenizer.encode("a é\n")) == "a é\n"


def test_shards_and_index_agree(tmp_path: Path) -> None:
    written = synthesise("cohere2_moe", "tiny", tmp_path / "model")
    files = sorted(path.name for path in (tmp_path / "model").glob("*.safetensors"))
    assert files == [f"model-0000{i}-of-0000{SHARDS}.safetensors" for i in range(1, SHARDS + 1)]
    index = json.loads((tmp_path / "model" / INDEX).read_text())
    assert index["metadata"]["total_size"] == written.nbytes
    held = {name: file for file in files for name in read_header(tmp_path / "model" / file)}
    assert index["weight_map"] == held
    assert written.shards == SHARDS


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        synthesise("qwen3", "tiny", tmp_path / name, seed=seed)
    a, b, c = (
        [p.read_bytes() for p in sorted((tmp_path / n).glob("*.safetensors"))] for n in "abc"
    )
    assert a == b != c


def test_tensors_are_not_alike(tmp_path: Path) -> None:
    synthesise("cohere2_moe", "tiny", tmp_path / "model", "f32")
    weights = load(str(tmp_path / "model")).weights
    experts = weights["model.layers.1.mlp.experts.down_proj"]
    assert len({expert.tobytes() for expert in experts}) == len(experts)
    assert abs(float(weights["model.norm.weight"].mean()) - 1) < 0.1
    router = weights["model.layers.1.mlp.gate.weight"]
    assert 1.8 < router.std() * np.sqrt(router.shape[1]) < 2.2


def test_wrong_wishes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="61 GB.*GPU"):
        synthesise("cohere2_moe", "full", tmp_path / "model")
    with pytest.raises(UserError, match="'gpt9'"):
        synthesise("gpt9", "tiny", tmp_path / "model")
    with pytest.raises(UserError, match="'huge'"):
        synthesise("llama", "huge", tmp_path / "model")
    with pytest.raises(UserError, match="'fp8'"):
        synthesise("llama", "tiny", tmp_path / "model", "fp8")
    (tmp_path / "model").mkdir()
    with pytest.raises(UserError, match="exists already"):
        synthesise("llama", "tiny", tmp_path / "model")
    assert list(tmp_path.iterdir()) == [tmp_path / "model"]
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        synthesise("llama", "tiny", tmp_path / "file" / "model")


def test_the_verb_writes_and_reports(tmp_path: Path) -> None:
    args = ["synth", "--family", "cohere2_moe", "-o", str(tmp_path / "model"), "--json"]
    done = CliRunner().invoke(main.app, args)
    assert done.exit_code == 0
    report = json.loads(done.stdout)
    assert report["family"] == "cohere2_moe"
    assert (
        report["nbytes"] == load(str(tmp_path / "model")).weights.nbytes == report["parameters"] * 2
    )
    again = CliRunner().invoke(main.app, args)
    assert again.exit_code == 2 and "exists already" in json.loads(again.stdout)["error"]


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--family", "llama", "--upcycle", "smollm2"], "--family mixtral"),
        (["--family", "mixtral", "--noise", "0.1"], "--upcycle"),
    ],
)
def test_options_that_do_not_go_together(tmp_path: Path, args: list[str], named: str) -> None:
    done = CliRunner().invoke(main.app, ["synth", *args, "-o", str(tmp_path / "model")])
    assert done.exit_code == 2 and named in " ".join(done.stderr.split())
