"""The composed CUDA files of the host build's tests: two, that hold half of the ops each."""

from functools import cache

from mkport.compose.cuda import CudaProgram, compose_cuda
from mkport.library import find_op

DENSE = (
    "embed", "select", "rmsnorm", "layernorm", "rope", "attention", "attention_combine", "argmax",
)  # fmt: skip
ROUTED = (
    "gemm_silu", "gemm_rope", "topk", "moe_group", "moe_up", "moe_down", "moe_combine",
)  # fmt: skip


def program(name: str, dtype: str = "bf16") -> CudaProgram:
    """The program, for a storage type of weights and cache, that has the op of this name."""
    return _composed(DENSE if name in DENSE else ROUTED, dtype)


@cache
def _composed(ops: tuple[str, ...], dtype: str) -> CudaProgram:
    return compose_cuda([find_op(name) for name in ops], dtype, dtype)
