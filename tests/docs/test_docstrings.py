"""Every public function, method and class says what its numbers are and what can go wrong; what
implements a published formula, format or protocol names it behind "Source: ".

What counts as said is in `docstrings.py`.
"""

import ast
from pathlib import Path

import pytest

from tests.docs.docstrings import faults

ROOT = Path(__file__).parents[2]

# Who implements something published, and so says where it is published: functions and classes, or
# "" for the whole module.
SOURCED: dict[str, tuple[str, ...]] = {
    "mkport/declare/case.py": ("to_bf16",),
    "mkport/models/cohere2.py": ("",),
    "mkport/models/experts.py": ("add_experts",),
    "mkport/models/llama.py": ("",),
    "mkport/models/mixtral.py": ("",),
    "mkport/models/qwen3.py": ("",),
    "mkport/models/rope.py": ("parse_rope", "inverse_frequencies"),
    "mkport/plan/bytes.py": ("step_bytes",),
    "mkport/verify/clocks.py": ("clocks",),
    "mkport/verify/races.py": ("race_problems",),
    "mkport/machines/cpu/vector.py": ("exp",),
    "mkport/trace/perfetto.py": ("",),
    "mkport/testing/law.py": ("measure",),
    "mkport/testing/reference/formulas.py": (
        "rms_norm", "layer_norm", "rotate", "attention", "gated", "shares",
    ),
    "mkport/testing/reference/families.py": ("sequential", "parallel"),
    "kernels/attention/standalone.py": ("exp", "attention"),
    "kernels/attention/ladder/2_online.py": ("attention",),
    "kernels/attention_combine/standalone.py": ("exp",),
    "kernels/gemm_rope/standalone.py": ("rotate",),
    "kernels/gemm_silu/standalone.py": ("exp", "gemm_silu"),
    "kernels/layernorm/standalone.py": ("layernorm",),
    "kernels/moe_up/standalone.py": ("exp",),
    "kernels/rmsnorm/standalone.py": ("rmsnorm",),
    "kernels/rope/standalone.py": ("rotate",),
    "kernels/sample/oracle.py": ("philox",),
    "kernels/sample/standalone.py": ("philox", "log_near", "exp", "score_of", "sample"),
    "kernels/sample_join/oracle.py": ("left_of",),
    "kernels/sample_join/standalone.py": ("philox", "log_near", "exp", "left_of"),
    "mkport/machines/cpu/draw.py": ("draw_words", "draw_log_near", "draw_exp"),
    "kernels/topk/oracle.py": ("oracle",),
    "kernels/topk/standalone.py": ("exp",),
    "engine/gguf_file.py": ("",),
    "engine/gguf_llama.py": ("",),
    "engine/gguf_tokenizer.py": ("",),
    "engine/merge.py": ("merge_metrics",),
    "engine/noise.py": ("philox", "gumbel_of", "race"),
    "engine/parsers/cohere.py": ("",),
    "engine/parsers/grammars.py": ("",),
    "engine/parsers/hermes.py": ("",),
    "engine/parsers/llama3.py": ("",),
    "engine/prefix.py": ("PrefixCache",),
    "engine/safetensors_file.py": ("",),
    "engine/sampling.py": ("Sampler",),
    "engine/scheduler.py": ("Scheduler",),
    "engine/server/conversation.py": ("",),
    "engine/server/errors.py": ("",),
    "engine/server/metrics.py": ("",),
    "engine/server/replies.py": ("",),
    "engine/server/schema.py": ("",),
    "engine/server/tokens.py": ("",),
    "engine/server/wire.py": ("",),
    "engine/template.py": ("",),
    "engine/text.py": ("StopStrings",),
    "engine/token_bytes.py": ("",),
    "engine/truncation.py": ("survivors",),
    "engine/upcycle.py": ("",),
}  # fmt: skip


def _modules() -> list[Path]:
    """The files of the library, each once (the symlinks in mkport/ are not followed)."""
    return [
        path
        for folder in ("mkport", "engine", "kernels")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not any(part.is_symlink() for part in path.parents if part != ROOT)
    ]


@pytest.mark.parametrize("package", ["mkport", "engine", "kernels"])
def test_docstrings_say_shapes_units_and_errors(package: str) -> None:
    found = []
    for path in _modules():
        name = path.relative_to(ROOT).as_posix()
        if name.startswith(f"{package}/"):
            found += faults(path.read_text(), name)
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", SOURCED)
def test_what_is_published_has_its_source(name: str) -> None:
    tree = ast.parse((ROOT / name).read_text())
    texts = {"": ast.get_docstring(tree)} | {
        node.name: ast.get_docstring(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    for wanted in SOURCED[name]:
        assert "Source: " in (texts[wanted] or ""), f"{name} {wanted} names no source"


PLANTED = {
    "def f(): pass": "f has no docstring",
    "class A: pass": "A has no docstring",
    "class A:\n    'One.'\n    def f(self): pass": "A.f has no docstring",
    "def f(x: np.ndarray):\n    'Of x.'": "f does not say the shape of `x`",
    "def f(x):\n    'The first of x.'\n    return x[0]": "f does not say the shape of `x`",
    "def f() -> list[int]:\n    'Ids.'": "f does not say the shape of what it returns",
    "class A:\n    'One.'\n    x: list[float]": "A does not say the shape of `x`",
    "def f(limit: int):\n    'Up to limit.'": "f does not say the unit of `limit`",
    "def read_bandwidth() -> float:\n    'Measured.'": (
        "read_bandwidth does not say the unit of what it returns"
    ),
    "class A:\n    'One.'\n    size: int": "A does not say the unit of `size`",
    "def f():\n    'One.'\n    raise UserError('no')": "f does not say that it raises UserError",
    "def f():\n    'One.'\n    _g()\ndef _g():\n    raise UserError": (
        "f does not say that it raises UserError"
    ),
    "def f():\n    'One.'\n    raise made()": "f does not say that it raises what it makes",
    "def f(x):\n    'Raises KeyError.'\n    raise KeyError(x) if x else OSError(x)": (
        "f does not say that it raises OSError"
    ),
    "class A:\n    'One.'\n    def __init__(self):\n        raise UserError": (
        "A.__init__ does not say that it raises UserError"
    ),
}


@pytest.mark.parametrize("source", PLANTED)
def test_what_is_left_out_is_found(source: str) -> None:
    assert [found.split(" ", 1)[1] for found in faults(source)] == [PLANTED[source]]


SAID = (
    "def _f(): pass",
    "def f():\n    'One.'\n    def g(): pass",
    "@overload\ndef f(): ...",
    "def f(x: np.ndarray) -> np.ndarray:\n    'x [rows, k] and its double, in the same shape.'",
    "def f(x, y):\n    'x and y [rows].'\n    return x[0] + y[0]",
    "class A:\n    'Of limit bytes.'\n    x: list[float]  # [rows]\n    limit: int",
    "class A:\n    'One.'\n    # [rows], ascending\n    x: list[float]",
    "def f(limit_s: float):\n    'One.'",
    "def f():\n    'One.'\n    try:\n        raise KeyError\n    except LookupError:\n        pass",
    "def f():\n    'Raises UserError for none.'\n    raise UserError('no')",
    "class A:\n    'One.'\n    def f(self, x: list[int]):\n        'x [ids].'\n"
    "class B:\n    'Two.'\n    def f(self, x: list[int]):\n        'See `A`.'",
    "@app.command('x')\ndef f(limit: int): raise UserError",
)


@pytest.mark.parametrize("source", SAID)
def test_what_is_said_is_no_fault(source: str) -> None:
    assert faults(source) == []
