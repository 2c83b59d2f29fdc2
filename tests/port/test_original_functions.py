"""CUDA's own functions on a CPU: what NVIDIA's manual says that they return."""

import numpy as np
import pytest

from mkport.machines.host.build import compiler
from mkport.port.original import Launch, run_original

pytestmark = pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
UP = float(np.nextafter(np.float32(1), np.float32(2)))
HALF = np.float16
# An expression of CUDA C++, and its value.
FLOATS = {
    "__fadd_ru(1.0f, 1e-10f)": UP, "__fadd_rd(1.0f, 1e-10f)": 1.0,
    "__fadd_rz(-1.0f, -1e-10f)": -1.0, "__fadd_rd(-1.0f, -1e-10f)": -UP,
    "__fdiv_ru(1.0f, 3.0f) - __fdiv_rd(1.0f, 3.0f)": 2.0**-25,
    "__fmaf_ru(1.0f, 1.0f, 1e-10f)": UP, "__frcp_ru(1.0f)": 1.0,
    "__int2float_rz(16777219)": 16777218.0, "__int2float_ru(16777217)": 16777218.0,
    "__double2float_ru(1.0 + 1e-12)": UP, "__ull2double_rz(~0ull) == 18446744073709549568.0": 1.0,
    "__hiloint2double(0x3ff00000, 0)": 1.0,
    "__half2float(__double2half(1.00048828125 + 1e-12))": float(HALF(1) + HALF(2.0**-10)),
    "__half2float(__ll2half_rn(4611686018427387905ll))": np.inf,
    "__bfloat162float(__ll2bfloat16_rn((1ll << 62) + (1ll << 54) + 1))": 2.0**62 + 2.0**55,
    "__bfloat162float(__ll2bfloat16_rn((1ll << 62) + (1ll << 54)))": 2.0**62,
    "__half2float(__hmax(__ushort_as_half(0x7d00), __float2half(2.0f)))": 2.0,
    "__half2float(__hfma_relu(__float2half(-2.0f), __float2half(2.0f), __float2half(1.0f)))": 0.0,
    "__half2float(__hadd_sat(__float2half(0.75f), __float2half(0.75f)))": 1.0,
    "__low2float(h2exp2(__float2half2_rn(3.0f)))": 8.0,
    "__high2float(__hneg2(__floats2half2_rn(1.0f, 2.0f)))": -2.0,
    "__low2float(__habs2(__floats2bfloat162_rn(-1.0f, 2.0f)))": 1.0,
    "mk_e4m3(0.0019)": 2.0**-9, "mk_e4m3(1000.0)": 448.0, "mk_e4m3(17.0)": 16.0,
    "mk_e4m3(-19.0)": -20.0, "mk_e5m2(3e-5)": 2.0**-15, "mk_e5m2(9.0)": 8.0,
    "mk_e5m2(1e6)": 57344.0,
    "__low2float(__hltu2(__floats2half2_rn(NAN, 2.0f), __float2half2_rn(1.0f)))": 1.0,
}  # fmt: skip
INTEGERS = {
    "__float2int_rn(2.5f)": 2, "__float2int_ru(2.1f)": 3, "__float2int_rn(3e9f)": 2**31 - 1,
    "__float2int_rz(NAN)": 0, "__float2uint_rz(-1.0f)": 0,
    "__double2int_rn(-2147483648.7)": -(2**31),
    "__float2ll_rn(NAN) >> 32": -(2**31), "__half2int_rd(__float2half(-1.5f))": -2,
    "__half2uchar_rz(__float2half(300.0f))": 255, "__bfloat162int_rn(__float2bfloat16(2.5f))": 2,
    "__vadd2(0x7fff0001, 0x0001ffff)": 0x80000000, "__vaddss2(0x7fff0001, 0x0001ffff)": 0x7FFF0000,
    "__vsubus4(0x01020304, 0x02010401)": 0x00010003, "__vabs4(0x80ff7f01)": 0x80017F01,
    "__vcmpgts4(0x7f80ff01, 0)": 0xFF0000FF, "__vsetgeu2(0xffff0001, 0x00010002)": 0x00010000,
    "__vavgu4(0x01030507, 0x02040608)": 0x02040608, "__vsadu4(0x01020304, 0x04030201)": 8,
    "__vabsdiffu4(0x01020304, 0x04030201)": 0x03010103, "__vmaxs4(0x7f80ff01, 0)": 0x7F000001,
    "__dp2a_lo(0x00020003, 0x05040302, 7)": 19, "__dp2a_hi(0x00020003, 0x05040302, 7)": 29,
    "__rhadd(-3, 2)": 0, "__hadd(-3, 2)": -1, "__usad(3u, 5u, 1u)": 3, "__sad(-3, 5, 1)": 9,
    "__umul64hi(1ull << 63, 4)": 2, "__funnelshift_lc(1, 2, 40)": 1,
    "__brevll(1) >> 32": 0x80000000,
    "__heq2_mask(__floats2half2_rn(1.0f, 2.0f), __float2half2_rn(2.0f))": 0xFFFF0000,
    "__hbgt2(__floats2half2_rn(1.0f, 2.0f), __float2half2_rn(0.5f))": 1,
    "__hisinf(__float2half(-1e30f))": -1, "norm3df(3, 4, 12)": 13, "norm4df(1, 1, 1, 1)": 2,
    "1 / rhypotf(3, 4)": 5, "8 * rcbrtf(8)": 4, "umax(3u, 5u) + umin(3u, 5u)": 8,
    "llmax(-3, 5) + llmin(-3, 5)": 2, "cospi(1.0)": -1, "2 * normcdf(0.0)": 1,
}  # fmt: skip


def values(expressions: list[str], kind: str, dtype: type) -> np.ndarray:
    lines = [f"  y[{n}] = {kind}({text});" for n, text in enumerate(expressions)]
    text = "\n".join(
        ["#include <cuda_fp16.h>", "#include <cuda_bf16.h>", "#include <cuda_fp8.h>",
         "#define mk_e4m3(x) float(__nv_fp8_e4m3(float(x)))",
         "#define mk_e5m2(x) float(__nv_fp8_e5m2(float(x)))",
         f"__global__ void k({kind}* y) {{", *lines, "}"]
    )  # fmt: skip
    y: np.ndarray = np.zeros(len(expressions), dtype)
    return run_original(text, [Launch("k", (1, 1, 1), (1, 1, 1), (y,))], seeds=1).outputs[0]


def test_numbers_are_rounded_as_asked() -> None:
    got = values(list(FLOATS), "float", np.float32)
    wrong = {t: g for (t, w), g in zip(FLOATS.items(), got, strict=True) if np.float32(w) != g}
    assert not wrong


def test_integers_and_the_parts_of_registers() -> None:
    got = values(list(INTEGERS), "int", np.int32)
    wrong = {t: hex(int(g)) for (t, w), g in zip(INTEGERS.items(), got, strict=True)
             if np.uint32(w & 0xFFFFFFFF) != np.uint32(int(g) & 0xFFFFFFFF)}  # fmt: skip
    assert not wrong
