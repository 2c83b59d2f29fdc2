"""What CUDA's own functions do: which are pure, which meet, which read the thread's place.

A function that stands nowhere here and in no file is unknown, and nothing good is assumed of it.
"""

import re

BARRIERS = {"__syncthreads", "__syncthreads_or", "__syncthreads_and", "__syncthreads_count"}
WARP_OPS = re.compile(
    r"__shfl\w*_sync|__syncwarp|__ballot_sync|__any_sync|__all_sync|__match_\w+_sync|"
    r"__reduce_\w+_sync|\w*mma_sync|load_matrix_sync|store_matrix_sync|fill_fragment|"
    r"__shfl(?:_up|_down|_xor)?|__ballot|__any|__all"
)
WARP_ASM = re.compile(r"\b(?:mma|wmma|ldmatrix|stmatrix|movmatrix|shfl|vote|match|redux)\b")
ONE_A_WARP = re.compile(r"__ballot_sync|__any_sync|__all_sync|__reduce_\w+_sync")
ATOMICS = re.compile(r"atomic(?:Add|Sub|Exch|Min|Max|Inc|Dec|CAS|And|Or|Xor)(?:_block|_system)?")
LOADS = re.compile(r"__ld(?:g|ca|cg|cs|cv|lu)")
CASTS = (
    "static_cast", "reinterpret_cast", "const_cast", "dynamic_cast", "bit_cast",
    "__builtin_assume_aligned",
)  # fmt: skip
_MATH = (
    "abs fabs min max fmin fmax umin umax llmin llmax fmod fdim fma sqrt rsqrt cbrt rcbrt exp exp2 "
    "exp10 expm1 log log2 log10 log1p pow powi sin cos tan sinpi cospi asin acos atan atan2 sinh "
    "cosh tanh asinh acosh atanh erf erfc erfinv erfcinv erfcx normcdf lgamma tgamma floor ceil "
    "round trunc rint nearbyint lround lrint llround llrint copysign signbit isnan isinf isfinite "
    "hypot rhypot norm3d norm4d ldexp scalbn ilogb logb nextafter remainder div j0 j1 y0 y1 "
    "saturate fdividef"
).split()
PURE = re.compile(
    rf"(?:__)?(?:{'|'.join(_MATH)})(?:f|l|ll)?|make_\w+|__\w+_r[nzud](?:_\w+)?|__\w+_as_\w+|"
    r"__\w+2\w+|__h\w+|h2?(?:exp|log|sqrt|rsqrt|sin|cos|rcp|floor|ceil|rint|trunc|tanh)\w*|"
    r"__(?:half|bfloat|nv_bfloat|low|high|floats|double|float|int|uint|ll|ull)\w*|"
    r"__(?:popc|popcll|clz|clzll|ffs|ffsll|brev|brevll|byte_perm|fns|dp4a|dp2a\w*|umulhi|mulhi|"
    r"mul24|umul24|mul64hi|umul64hi|sad|usad|u?r?hadd|funnelshift_\w+|saturatef|fdividef|"
    r"cvta_generic_to_shared|isGlobal|isShared|v(?:abs|add|avg|cmp|hadd|i|max|min|neg|sad|set|sub)\w*|"
    r"builtin_expect)|float_to_\w+|__nv_cvt_\w+|std_\w+|exp2_fast|narrow2"
)
TYPES = re.compile(
    r"(?:unsigned|signed|float|double|half|__half2?|int|uint|char|uchar|short|ushort|long|bool|"
    r"longlong|ulonglong|size_t|u?int(?:8|16|32|64)_t|dim3|__nv_bfloat162?|nv_bfloat162?|__nv_fp8(?:x[24])?_e\dm\d)[1-4]?"
)


def plain_name(text: str) -> str:
    """A called function's name without namespaces and template arguments."""
    return re.split(r"[<(\s]", text.strip())[0].split("::")[-1] or text.strip().split("::")[-1]


def is_pure(name: str) -> bool:
    """True for a function of its arguments' values alone."""
    return bool(PURE.fullmatch(name) or TYPES.fullmatch(name))
