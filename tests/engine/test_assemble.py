"""Experts are stacked while they are loaded, from either form, once, and refused when wrong."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
from safetensors.torch import load_file, save_file

from mkport.declare.case import to_bf16
from mkport.engine.assemble import check, refuse_not_finite
from mkport.engine.load import LoadedModel, load
from mkport.engine.synth import synthesise
from mkport.errors import UserError
from tests.engine.checkpoints import edit_config, fields_of, save

MOE = ["cohere2_moe", "mixtral", "qwen3_moe"]
Tensors = dict[str, "torch.Tensor"]
EXPERT = "model.layers.1.mlp.experts.2"


@pytest.fixture(scope="module", params=MOE)
def written(request: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp(request.param) / "model", fields_of(request.param))


@pytest.fixture
def rewrite(tmp_path: Path) -> Callable[..., Path]:
    """A cohere2_moe checkpoint after `change` was let at its tensors."""

    def write(change: Callable[[Tensors], object]) -> Path:
        directory = save(tmp_path / "model", fields_of("cohere2_moe"))
        tensors = load_file(directory / "model.safetensors")
        change(tensors)
        save_file(tensors, directory / "model.safetensors", {"format": "pt"})
        return directory

    return write


def fused(directory: Path, out: Path) -> Path:
    """The checkpoint with its experts in one tensor, as transformers has them in memory."""
    import shutil

    import transformers

    shutil.copytree(directory, out)
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    tensors = {k: v.contiguous() for k, v in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        del tensors["lm_head.weight"]
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out


def test_both_forms_give_the_same_stacks(written: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    single = load(str(written), progress=lambda done, total: seen.append((done, total)))
    whole = load(str(fused(written, tmp_path / "fused")))
    assert (
        set(single.weights) == set(whole.weights) == set(single.family.tensor_shapes(single.config))
    )
    for name, shape in single.family.tensor_shapes(single.config).items():
        assert single.weights[name].shape == shape
        assert not single.weights[name].flags.writeable
        np.testing.assert_array_equal(single.weights[name], whole.weights[name])
    assert seen and seen == [(i + 1, len(seen)) for i in range(len(seen))]


def test_a_fused_tensor_is_mapped_and_a_stack_is_held_once(written: Path, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.gate_up_proj"
    single = load(str(written)).weights
    assert single[name] is single[name]
    whole = load(str(fused(written, tmp_path / "fused"))).weights
    assert np.shares_memory(whole[name], whole[name]) and not whole[name].flags.owndata


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_what_is_left_in_pieces_is_the_same_tensor(written: Path, dtype: str) -> None:
    stacked, apart = load(str(written), dtype).weights, load(str(written), dtype, stack=False)
    assert set(apart.weights) == set(stacked) and len(apart.weights) == len(stacked)
    most = 0
    for name in stacked:
        built = np.zeros_like(stacked[name])
        parts = list(apart.weights.parts(name))
        for place, part in parts:
            built[place] = part
        most = max(most, len(parts))
        np.testing.assert_array_equal(built, stacked[name])
        np.testing.assert_array_equal(apart.weights[name], stacked[name])
    assert most > 2
    apart.weights.hold()
    assert all(len(list(apart.weights.parts(name))) == 1 for name in stacked)


def test_a_broken_piece_is_refused_when_it_is_copied(rewrite: Callable[..., Path]) -> None:
    directory = rewrite(lambda t: t[f"{EXPERT}.up_proj.weight"].view(-1)[7:8].fill_(torch.inf))
    weights = load(str(directory), stack=False).weights
    with pytest.raises(UserError, match=rf"{EXPERT}.up_proj.weight holds NaN or infinity"):
        list(weights.parts("model.layers.1.mlp.experts.gate_up_proj"))


@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_stacks_are_of_the_dtype_asked_for(written: Path, dtype: str) -> None:
    asked, exact = load(str(written), dtype).weights, load(str(written)).weights
    for name in asked:
        wanted = exact[name]
        if dtype == "bf16" and asked[name].dtype == np.uint16:
            wanted = to_bf16(wanted)
        np.testing.assert_array_equal(asked[name], wanted)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (
            lambda t: t.pop(f"{EXPERT}.up_proj.weight"),
            rf"{EXPERT}.up_proj.weight \[48, 64\] is mis",
        ),
        (lambda t: t.update({f"{EXPERT}.up_proj.bias": torch.zeros(48)}), "up_proj.bias"),
        (lambda t: t.update({"model.layers.1.mlp.gate.bias": torch.zeros(8)}), "mlp.gate.bias"),
        (
            lambda t: t.update(
                {"model.layers.1.mlp.experts.8.up_proj.weight": torch.zeros(48, 64)}
            ),
            "experts.8.up_proj.weight",
        ),
        (
            lambda t: t.update({"model.layers.1.mlp.experts.down_proj": torch.zeros(8, 64, 48)}),
            "experts.0.down_proj.weight",
        ),
        (lambda t: t.update({f"{EXPERT}.up_proj.weight": torch.zeros(32, 64)}), r"\[32, 64\]"),
        (lambda t: t.update({"model.layers.1.mlp.gate.weight": torch.zeros(6, 64)}), r"\[6, 64\]"),
    ],
)
def test_config_and_tensors_that_disagree_are_refused(
    rewrite: Callable[..., Path], change: Callable[[Tensors], object], named: str
) -> None:
    directory = rewrite(change)
    for read in (lambda: load(str(directory)), lambda: check(directory)):
        with pytest.raises(UserError, match=named):
            read()


@pytest.mark.parametrize(("count", "named"), [(9, "experts.8"), (7, "experts.7"), (4, "experts.4")])
def test_another_number_of_experts_is_refused(
    rewrite: Callable[..., Path], count: int, named: str
) -> None:
    directory = rewrite(lambda tensors: None)
    edit_config(directory, num_experts=count)
    with pytest.raises(UserError, match=rf"{named}|gate.weight is \[8, 64\]"):
        load(str(directory))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("dtype", ["bf16", "f32"])
def test_an_expert_of_nan_is_refused_by_name_and_place(
    rewrite: Callable[..., Path], value: float, dtype: str
) -> None:
    def spoil(tensors: Tensors) -> None:
        tensors[f"{EXPERT}.down_proj.weight"][3, 5] = value

    with pytest.raises(UserError, match=rf"{EXPERT}.down_proj.weight holds NaN.* at \[3, 5\]"):
        load(str(rewrite(spoil)), dtype)


def test_nan_elsewhere_is_found_when_asked_for(rewrite: Callable[..., Path]) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"

    def spoil(tensors: Tensors) -> None:
        tensors[name][1, 2] = torch.nan

    directory = rewrite(spoil)
    assert isinstance(load(str(directory)), LoadedModel)
    with pytest.raises(UserError, match=rf"{name} holds NaN.* at \[1, 2\]"):
        load(str(directory), scan=True)


def test_the_largest_numbers_are_finite() -> None:
    most = np.float32(3.3895e38)  # of bfloat16
    refuse_not_finite(Path(), "w", np.array([[most, -most, 0.0, 1e-45]], np.float32))
    refuse_not_finite(Path(), "w", to_bf16(np.array([most, -most, 0.0], np.float32)))


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_loading_never_holds_two_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Peak memory of a load is the stacked weights and little else, mapped pages counted in."""
    from mkport.models import sizes

    fields = dict(sizes.SMALL["cohere2_moe"]) | {"num_hidden_layers": 4, "vocab_size": 512}
    fields["layer_types"] = fields["layer_types"][:4]
    monkeypatch.setitem(sizes.SIZES["tiny"], "cohere2_moe", fields)
    written = synthesise("cohere2_moe", "tiny", tmp_path / "model")
    assert written.nbytes > 300e6
    code = (
        "import re, sys\n"
        "from mkport.engine.load import load\n"
        "status = lambda: open('/proc/self/status').read()\n"
        "peak = lambda: int(re.search(r'VmHWM:\\s*(\\d+) kB', status())[1]) * 1024\n"
        "before = peak()\n"
        "weights = load(sys.argv[1]).weights\n"
        "print(peak() - before, weights.nbytes)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(written.directory)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    grown, nbytes = map(int, done.stdout.split())
    assert nbytes == written.nbytes
    assert 0.85 * nbytes < grown < 1.1 * nbytes


def test_run_scans_when_asked_to(rewrite: Callable[..., Path]) -> None:
    from typer.testing import CliRunner

    from mkport.cli import main

    name = "model.layers.2.self_attn.k_proj.weight"

    def spoil(tensors: Tensors) -> None:
        tensors[name][1, 2] = torch.nan

    directory = rewrite(spoil)
    done = CliRunner().invoke(main.app, ["run", "hi", "--model", str(directory), "--scan"])
    assert done.exit_code == 2 and name in " ".join(done.stderr.split())


def test_held_weights_are_the_files_in_one_block(tmp_path: Path) -> None:
    out = tmp_path / "llama"
    synthesise("llama", "tiny", out, "bf16", seed=1)
    mapped, held = load(str(out)).weights, load(str(out)).weights
    held.hold()
    held.hold()  # once is enough
    assert list(held) == list(mapped) and held.nbytes == mapped.nbytes
    for name in mapped:
        np.testing.assert_array_equal(held[name], mapped[name])
        assert held[name].ctypes.data % 64 == 0
        assert not held[name].flags.writeable
    starts = [held[name].ctypes.data for name in held]
    assert max(starts) - min(starts) < held.nbytes + 64 * len(starts)
