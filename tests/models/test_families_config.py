"""The configs of the families beyond llama are read whole; steps read the tensors they name."""

import math
from typing import Any

import pytest

from mkport.compose.cuda import compose_cuda
from mkport.compose.cuda_constants import CONSTANTS
from mkport.errors import UserError
from mkport.machines.cuda.layout import shared_of, stage_bytes
from mkport.machines.host.machine import SHARED_BYTES
from mkport.models import FAMILIES, family_of, parse_config
from mkport.models.sizes import FULL, SMALL, TINY, config_of
from mkport.models.step import StepShape
from mkport.plan import deal
from mkport.verify import verify

Config = dict[str, Any]
SHAPE = StepShape(rows=6, context=320, sequences=3, logits=4, page=16)


def changed(family: str, **changes: Any) -> Config:
    """The family's tiny config with `changes`; ... removes a field."""
    return {k: v for k, v in (dict(TINY[family]) | changes).items() if v is not ...}


def test_every_family_has_sizes() -> None:
    assert set(TINY) == set(SMALL) == set(FAMILIES)


def test_north_mini_code_is_read_whole() -> None:
    config: Any = parse_config(FULL["cohere2_moe"])
    assert (config.hidden, config.layers, config.q_width, config.kv_width) == (2048, 49, 4096, 512)
    assert config.dense == (3072,) + (0,) * 48
    assert [i for i, window in enumerate(config.windows) if not window] == list(range(0, 49, 4))
    assert set(config.windows) == {0, 4096}
    # positions on sliding layers and, dense as it is, on layer 0
    assert [i for i, on in enumerate(config.rotated) if not on] == list(range(4, 49, 4))
    mixture = config.experts
    assert (mixture.experts, mixture.top, mixture.ffn) == (128, 8, 768)
    assert (mixture.softmax, mixture.renormalise, mixture.scale) == (False, False, 1.0)
    assert (config.mean, config.norm_eps, config.logit_scale) == (False, 1e-6, 1.0)
    assert (config.tied, config.eos_ids, config.bos_id) == (True, (255001,), 5)
    assert family_of(FULL["cohere2_moe"]).scales(config) == {}


def test_absent_fields_of_cohere2_moe_take_the_class_defaults() -> None:
    config: Any = parse_config(
        {"model_type": "cohere2_moe", "num_hidden_layers": 9, "first_k_dense_replace": 2}
        | {"hidden_size": 64, "intermediate_size": 48, "num_attention_heads": 4, "vocab_size": 99}
    )
    assert (config.kv_heads, config.head_dim, config.context, config.tied) == (4, 128, 8192, True)
    assert (config.mean, config.norm_eps, config.logit_scale) == (True, 1e-5, 0.0625)
    assert (config.rope_theta, config.experts.experts, config.experts.top) == (10000.0, 8, 2)
    assert (config.experts.softmax, config.experts.renormalise) == (True, True)
    # the pattern starts again behind the dense layers, which are full, and rotate
    assert [bool(w) for w in config.windows] == [False] * 2 + [True] * 3 + [False] + [True] * 3
    assert config.rotated == (True,) * 5 + (False,) + (True,) * 3
    assert config.dense == (48, 48) + (0,) * 7


@pytest.mark.parametrize("family", TINY)
def test_a_step_reads_the_tensors_it_names_and_verifies(family: str) -> None:
    module, config = family_of(TINY[family]), parse_config(TINY[family])
    graph = module.build(config, SHAPE)
    weights = {t.name: t.shape for t in graph.tensors.values() if t.kind == "weight"}
    del weights["rope"]
    assert weights == module.tensor_shapes(config)
    assert set(module.pieces(config)) <= set(weights)
    assert set(module.scales(config)) <= set(weights)
    for workers in (1, 3):
        verify(deal(graph, workers))


@pytest.mark.parametrize(
    ("family", "published"),
    [("cohere2_moe", 30.5e9), ("llama", 1.236e9), ("qwen3_moe", 30.5e9)],  # parameters
)
def test_a_full_model_has_as_many_parameters_as_the_published_one(
    family: str, published: float
) -> None:
    shapes = family_of(FULL[family]).tensor_shapes(parse_config(FULL[family]))
    assert sum(map(math.prod, shapes.values())) == pytest.approx(published, rel=3e-3)


@pytest.mark.parametrize("family", FULL)
@pytest.mark.parametrize("batch", [8, *(pytest.param(b, marks=pytest.mark.slow) for b in (32, 64))])
def test_a_full_step_for_a_large_gpu_verifies(family: str, batch: int) -> None:
    """For 132 workers, every possible routing and length; three chunks of the ring fit beside what
    is staged."""
    module, config = family_of(FULL[family]), parse_config(FULL[family])
    stage = stage_bytes(SHARED_BYTES)
    shape = StepShape(batch, context=8192, sequences=batch, logits=batch, stage=stage)
    schedule = deal(module.build(config, shape), 132, "strided")
    report = verify(schedule, resident=132)
    assert report.workers == 132 and report.records > 10_000
    if batch > 8 and family != "llama":
        program = compose_cuda(schedule.graph.ops, "bf16", "bf16", batch)
        ring = shared_of(program, schedule, SHARED_BYTES).ring
        assert ring >= 3 * CONSTANTS["CHUNK_BYTES"]


@pytest.mark.parametrize("family", [name for name in TINY if name != "llama"])
def test_tensor_shapes_are_those_of_transformers(family: str) -> None:
    torch = pytest.importorskip("torch")
    import transformers

    fields = dict(TINY[family])
    with torch.device("meta"):
        theirs = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.for_model(**fields)
        ).state_dict()
    shapes = {name: tuple(tensor.shape) for name, tensor in theirs.items()}
    config = parse_config(TINY[family])
    if config.tied:
        del shapes["lm_head.weight"]
    assert family_of(TINY[family]).tensor_shapes(config) == shapes


@pytest.mark.parametrize("family", [name for name in TINY if name != "llama"])
def test_configs_saved_by_transformers_mean_the_same(family: str) -> None:
    transformers = pytest.importorskip("transformers")
    saved = transformers.AutoConfig.for_model(**dict(TINY[family])).to_dict()
    assert parse_config(saved) == parse_config(TINY[family])


@pytest.mark.parametrize(
    ("family", "change", "named"),
    [
        ("cohere2_moe", {"expert_selection_fn": "top_p"}, "expert_selection_fn = 'top_p'"),
        ("cohere2_moe", {"use_qk_norm": True}, "use_qk_norm"),
        ("cohere2_moe", {"use_parallel_block": False}, "use_parallel_block"),
        ("cohere2_moe", {"attention_bias": True}, "attention_bias"),
        ("cohere2_moe", {"hidden_act": "gelu"}, "hidden_act"),
        ("cohere2_moe", {"tie_word_embeddings": False}, "tie_word_embeddings"),
        ("cohere2_moe", {"layer_types": ["full_attention"]}, "layer_types"),
        ("cohere2_moe", {"layer_types": ["chunked_attention"] * 5}, "'chunked_attention'"),
        ("cohere2_moe", {"mlp_layer_types": ["sparse"] * 5}, "first_k_dense_replace"),
        ("cohere2_moe", {"mlp_layer_types": ["wide"] * 5}, "'wide'"),
        ("cohere2_moe", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
        ("cohere2_moe", {"num_experts": 0}, "num_experts"),
        ("cohere2_moe", {"num_shared_experts": -1}, "num_shared_experts"),
        (
            "cohere2_moe",
            {"shared_expert_combination_strategy": "max"},
            "shared_expert_combination_strategy",
        ),
        ("cohere2_moe", {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "'yarn'"),
        ("cohere2_moe", {"router_bias": True}, "router_bias"),
        ("cohere2_moe", {"sliding_window": 0}, "sliding_window"),
        ("cohere2_moe", {"logit_scale": 0}, "logit_scale"),
        ("cohere2", {"num_experts": 8}, "num_experts"),
        ("cohere2", {"layer_switch": 3}, "layer_switch"),
        ("cohere2", {"position_embedding_type": "alibi"}, "position_embedding_type"),
        ("cohere2", {"order_of_interleaved_layers": "global_first"}, "order_of_interleaved_layers"),
        ("qwen3_moe", {"mlp_only_layers": [7]}, "mlp_only_layers"),
        ("qwen3_moe", {"decoder_sparse_step": 0}, "decoder_sparse_step"),
        ("qwen3_moe", {"num_local_experts": 9}, "num_local_experts = 9"),
        ("qwen3_moe", {"moe_intermediate_size": 40}, "moe_intermediate_size"),
        ("qwen3_moe", {"shared_expert_intermediate_size": 64}, "shared_expert_intermediate_size"),
        ("qwen3", {"attention_bias": True}, "attention_bias"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 2}, "layer_types"),
        ("qwen3", {"rope_scaling": {"rope_type": "longrope"}}, "'longrope'"),
        ("mixtral", {"num_experts_per_tok": 9}, "num_experts_per_tok = 9"),
        ("mixtral", {"sliding_window": "wide"}, "sliding_window"),
        ("mixtral", {"head_dim": 24}, "head_dim"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(
    family: str, change: Config, named: str
) -> None:
    with pytest.raises(UserError, match=named):
        parse_config(changed(family, **change))


def test_all_unknown_fields_are_named_at_once() -> None:
    with pytest.raises(UserError, match="use_qk_norm.*'router_bias'.*'alibi'"):
        parse_config(changed("cohere2_moe", router_bias=True, use_qk_norm=True, alibi=1))


def test_null_fields_read_as_absent() -> None:
    nothing = dict.fromkeys(("num_key_value_heads", "layer_types", "mlp_layer_types"))
    absent = dict.fromkeys(nothing, ...)
    read = parse_config(changed("cohere2_moe", **nothing))
    assert read == parse_config(changed("cohere2_moe", **absent))


def test_sizes_are_refused_by_name() -> None:
    with pytest.raises(UserError, match="'huge'.*tiny, small, full"):
        config_of("llama", "huge")
    with pytest.raises(UserError, match="'gpt9'.*cohere2_moe"):
        config_of("gpt9", "tiny")


@pytest.mark.parametrize("family", SMALL)
def test_small_models_are_about_a_gigabyte(family: str) -> None:
    shapes = family_of(SMALL[family]).tensor_shapes(parse_config(SMALL[family]))
    nbytes = 2 * sum(math.prod(shape) for shape in shapes.values())
    assert 0.8e9 < nbytes < 1.4e9
