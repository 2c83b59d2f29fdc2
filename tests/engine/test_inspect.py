"""`mkport inspect`: the bytes of a step and the bounds they set, from a config alone."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mkport.cli import main
from mkport.engine import inspect_model
from mkport.engine.inspect_model import inspect
from mkport.engine.synth import synthesise
from mkport.models import family_of, parse_config
from mkport.models.sizes import FULL
from mkport.models.step import StepShape
from mkport.plan.bytes import distinct, step_bytes


@pytest.fixture(autouse=True)
def known_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspect_model, "read_bandwidth", lambda threads: 25e9)


def directory_of(tmp_path: Path, fields: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(fields))
    return str(tmp_path)


def test_the_bytes_of_north_mini_code(tmp_path: Path) -> None:
    """Attention, experts and the rest, as counted by hand from the published shapes."""
    found = inspect(directory_of(tmp_path, dict(FULL["cohere2_moe"])))
    assert not found.unsupported and not found.weights_present
    norms, rope = 50 * 2048, 37 * 2 * 128  # elements: norms of all layers; a row for q and k
    assert found.weight_bytes == 60_968_607_744 + 2 * norms  # norms are held in float32
    assert found.cache_bytes_per_token == 49 * 2048
    parts = found.steps[0].parts
    assert parts["attention"] == 1_849_688_064 + 4 * rope
    assert parts["feed-forward"] == 37_748_736
    assert parts["routers"] == 25_165_824
    assert parts["experts"] == pytest.approx(3_623_878_656, rel=1e-12)
    assert parts["LM head"] == 1_073_741_824
    assert parts["embedding"] == 2 * 2048
    assert parts["norms"] == 4 * norms
    assert parts["cache"] == 2048 * (13 * 8192 + 36 * 4096)
    weights = found.steps[0].nbytes - parts["cache"]
    assert weights - 4 * rope - 2 * norms == pytest.approx(6_610_432_000, rel=1e-12)


def test_bounds_and_experts_by_batch(tmp_path: Path) -> None:
    found = inspect(directory_of(tmp_path, dict(FULL["cohere2_moe"])))
    assert [step.batch for step in found.steps] == [1, 2, 4, 8]
    experts = [round(step.experts_a_layer, 1) for step in found.steps]
    assert experts == [8.0, 15.5, 29.1, 51.6]
    assert [round(s.tokens_per_second["H200"]) for s in found.steps] == [673, 869, 1052, 1258]
    assert round(found.steps[0].tokens_per_second["H100 SXM"]) == 470
    alone = found.steps[0]
    assert alone.tokens_per_second["this machine"] == pytest.approx(25e9 / alone.nbytes)


@pytest.mark.parametrize(
    ("context", "gigabytes"), [(1024, 6.713), (32768, 7.785), (262144, 13.892)]
)
def test_bytes_by_context(tmp_path: Path, context: int, gigabytes: float) -> None:
    found = inspect(directory_of(tmp_path, dict(FULL["cohere2_moe"])), context, batches=[1])
    assert found.steps[0].nbytes / 1e9 == pytest.approx(gigabytes, abs=1e-3)


def test_a_dense_model_reads_all_its_weights(tmp_path: Path) -> None:
    """Every batch reads every weight once, but of an untied embedding only the tokens' rows."""
    fields = dict(FULL["qwen3_moe"]) | {"mlp_only_layers": list(range(48))}
    config: Any = parse_config(fields)
    graph = family_of(fields).build(config, StepShape(4, 512, 4, 4))
    read = step_bytes(graph, 4, 512)
    held = sum(t.nbytes for t in graph.tensors.values() if t.kind == "weight" and t.name != "rope")
    table = graph.tensors["model.embed_tokens.weight"].nbytes
    cache = 4 * 512 * 48 * 2 * 512 * 2
    rope = 48 * 2 * 4 * 128 * 4
    assert read == held - table + 4 * 2048 * 2 + cache + rope


def test_distinct_entries_of_uniform_choices() -> None:
    assert distinct(128, 8, 1) == 8
    assert distinct(4, 4, 3) == 4
    assert distinct(10, 1, 2) == pytest.approx(1.9)  # 1, and another with 9 of 10 chances


def test_float32_doubles_the_matrices(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, dict(FULL["cohere2_moe"]))
    half, single = (
        inspect(directory, dtype=d, batches=[1]).steps[0].parts for d in ("bf16", "f32")
    )
    assert single["experts"] == 2 * half["experts"] and single["cache"] == 2 * half["cache"]
    assert single["norms"] == half["norms"]


def test_an_unsupported_config_says_why(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, dict(FULL["cohere2_moe"]) | {"use_qk_norm": True})
    found = inspect(directory)
    assert "use_qk_norm" in found.unsupported[0] and not found.steps
    done = CliRunner().invoke(main.app, ["inspect", directory])
    assert done.exit_code == 1 and "use_qk_norm" in done.stdout


def test_weights_that_do_not_fit_are_reported(tmp_path: Path) -> None:
    synthesise("mixtral", "tiny", tmp_path / "model")
    assert inspect(str(tmp_path / "model")).unsupported == []
    assert inspect(str(tmp_path / "model")).weights_present
    next((tmp_path / "model").glob("*-00002-*.safetensors")).unlink()
    found = inspect(str(tmp_path / "model"))
    assert "00002" in found.unsupported[0] and found.steps


def test_the_verb_prints_and_emits(tmp_path: Path) -> None:
    directory = directory_of(tmp_path, dict(FULL["cohere2_moe"]))
    text = CliRunner().invoke(main.app, ["inspect", directory])
    assert text.exit_code == 0
    for part in ("30,484.3 M", "60.969 GB", "8 of 128", "4096 keys in 36 layers", "1,258", "H200"):
        assert part in text.stdout
    data = json.loads(CliRunner().invoke(main.app, ["inspect", directory, "--json"]).stdout)
    assert data["steps"][3]["batch"] == 8 and data["unsupported"] == []


def test_no_model_is_a_users_mistake(tmp_path: Path) -> None:
    done = CliRunner().invoke(main.app, ["inspect", str(tmp_path)])
    assert done.exit_code == 2 and "config.json" in done.stderr
