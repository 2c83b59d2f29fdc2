"""The CPU machine's vector primitives: 16 float32 lanes in fixed order, and little else.

Everything that reaches below Numba's Python is here: vector loads and stores, fused multiply-add,
the one order in which lanes are joined. No reassociation is allowed anywhere, so a sum has the
same bits wherever it is compiled in. Addresses are int64 byte addresses; indices count elements.
"""

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16  # one AVX-512 register, two AVX2 registers, four NEON registers

_I32, _F32 = ir.IntType(32), ir.FloatType()
_VEC, _IVEC = ir.VectorType(_F32, LANES), ir.VectorType(_I32, LANES)


class _Float32x16(types.Type):
    def __init__(self) -> None:
        super().__init__(name="f32x16")


f32x16 = _Float32x16()


@register_model(_Float32x16)
class _Float32x16Model(models.PrimitiveModel):
    def __init__(self, manager, fe_type):
        super().__init__(manager, fe_type, _VEC)


def body(function):
    """Marks the code of an op's tile."""
    wrappers = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}  # only bodies call bodies
    return njit(nogil=True, error_model="numpy", **wrappers)(function)


def inlined(function):
    """Marks dispatch: part of its caller, so that a body is compiled into the worker directly."""
    return njit(inline="always", error_model="numpy")(function)


def _element(builder, address, index, element, vector):
    """A pointer to `vector` at element `index` behind the byte address."""
    base = builder.inttoptr(address, element.as_pointer())
    return builder.bitcast(builder.gep(base, [index]), vector.as_pointer())


def _splat(value, element=_F32):
    return ir.Constant(ir.VectorType(element, LANES), [ir.Constant(element, value)] * LANES)


def _call(builder, name, result, args):
    kind = ir.FunctionType(result, [a.type for a in args])
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, name), args)


@intrinsic
def zeros(typingctx):
    """Sixteen zeros."""
    return f32x16(), lambda context, builder, sig, args: _splat(0.0)


@intrinsic
def splat(typingctx, value):
    """Sixteen times the float32 `value`."""

    def codegen(context, builder, sig, args):
        one = builder.insert_element(ir.Constant(_VEC, ir.Undefined), args[0], ir.Constant(_I32, 0))
        return builder.shuffle_vector(one, one, ir.Constant(_IVEC, [0] * LANES))

    return f32x16(types.float32), codegen


@intrinsic
def load_f32(typingctx, address, index):
    """Loads 16 float32 from element `index` on."""

    def codegen(context, builder, sig, args):
        loaded = builder.load(_element(builder, *args, _F32, _VEC))
        loaded.align = 4
        return loaded

    return f32x16(types.int64, types.int64), codegen


@intrinsic
def load_bf16(typingctx, address, index):
    """Loads 16 bfloat16 and widens them exactly: a bfloat16 is the upper half of a float32."""

    def codegen(context, builder, sig, args):
        half = ir.IntType(16)
        loaded = builder.load(_element(builder, *args, half, ir.VectorType(half, LANES)))
        loaded.align = 2
        wide = builder.shl(builder.zext(loaded, _IVEC), _splat(16, _I32))
        return builder.bitcast(wide, _VEC)

    return f32x16(types.int64, types.int64), codegen


def _touch(name, element):
    """A primitive that asks for a cache line and waits for nothing; any address will do."""

    def codegen(context, builder, sig, args):
        base = builder.inttoptr(args[0], element.as_pointer())
        byte = ir.IntType(8).as_pointer()
        place = builder.bitcast(builder.gep(base, [args[1]]), byte)
        kind = ir.FunctionType(ir.VoidType(), [byte, _I32, _I32, _I32])
        prefetch = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")
        builder.call(prefetch, [place, _I32(0), _I32(1), _I32(1)])  # to read; not the nearest cache
        return context.get_dummy_value()

    def typed(typingctx, address, index):
        return types.void(types.int64, types.int64), codegen

    typed.__name__, typed.__doc__ = name, "Brings the line of element `index` nearer."
    return intrinsic(typed)


touch_bf16, touch_f32 = _touch("touch_bf16", ir.IntType(16)), _touch("touch_f32", _F32)


@intrinsic
def store_f32(typingctx, address, index, value):
    """Stores 16 float32 from element `index` on."""

    def codegen(context, builder, sig, args):
        builder.store(args[2], _element(builder, args[0], args[1], _F32, _VEC)).align = 4
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16), codegen


def _store_parts(name, lanes):
    """A primitive that stores parts of a vector, so many lanes each, 16 elements apart."""

    def codegen(context, builder, sig, args):
        address, index, value = args
        kind = ir.VectorType(_F32, lanes)
        for part in range(LANES // lanes):
            own = ir.Constant(
                ir.VectorType(_I32, lanes), list(range(part * lanes, (part + 1) * lanes))
            )
            at = builder.add(index, ir.Constant(ir.IntType(64), part * LANES))
            stored = builder.shuffle_vector(value, ir.Constant(_VEC, ir.Undefined), own)
            builder.store(stored, _element(builder, address, at, _F32, kind)).align = 4
        return context.get_dummy_value()

    def typed(typingctx, address, index, value):
        return types.void(types.int64, types.int64, f32x16), codegen

    typed.__name__, typed.__doc__ = name, f"Stores each {lanes} lanes, 16 elements apart."
    return intrinsic(typed)


store_fours, store_eights = _store_parts("store_fours", 4), _store_parts("store_eights", 8)


@intrinsic
def store_bf16(typingctx, address, index, value):
    """Stores 16 lanes as bfloat16, rounded to nearest even; a NaN stays a (quiet) NaN."""

    def codegen(context, builder, sig, args):
        half = ir.IntType(16)
        bits = builder.bitcast(args[2], _IVEC)
        even = builder.and_(builder.lshr(bits, _splat(16, _I32)), _splat(1, _I32))
        rounded = builder.add(bits, builder.add(even, _splat(0x7FFF, _I32)))
        quiet = builder.or_(bits, _splat(0x400000, _I32))
        nan = builder.fcmp_unordered("uno", args[2], args[2])
        kept = builder.lshr(builder.select(nan, quiet, rounded), _splat(16, _I32))
        short = builder.trunc(kept, ir.VectorType(half, LANES))
        builder.store(short, _element(builder, args[0], args[1], half, short.type)).align = 2
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, f32x16), codegen


@intrinsic
def fma(typingctx, x, y, z):
    """x * y + z in each lane, rounded once."""

    def codegen(context, builder, sig, args):
        return _call(builder, "llvm.fma.v16f32", _VEC, args)

    return f32x16(f32x16, f32x16, f32x16), codegen


@intrinsic
def sqrt(typingctx, x):
    """The square root of each lane, rounded once."""

    def codegen(context, builder, sig, args):
        return _call(builder, "llvm.sqrt.v16f32", _VEC, args)

    return f32x16(f32x16), codegen


@intrinsic
def fma_f32(typingctx, x, y, z):
    """x * y + z of float32 scalars, rounded once."""

    def codegen(context, builder, sig, args):
        return builder.fma(*args)

    return types.float32(types.float32, types.float32, types.float32), codegen


def _lanewise(name, operation, doc):
    def codegen(context, builder, sig, args):
        return operation(builder, *args)

    def typed(typingctx, x, y):
        return f32x16(f32x16, f32x16), codegen

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


add = _lanewise("add", lambda b, x, y: b.fadd(x, y), "x + y in each lane.")
sub = _lanewise("sub", lambda b, x, y: b.fsub(x, y), "x - y in each lane.")
mul = _lanewise("mul", lambda b, x, y: b.fmul(x, y), "x * y in each lane.")
div = _lanewise("div", lambda b, x, y: b.fdiv(x, y), "x / y in each lane.")
largest = _lanewise(
    "largest",
    lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y),
    "x where x > y, else y, in each lane.",
)


@intrinsic
def keep_lanes(typingctx, value, first, end, fill):
    """Lanes first <= l < end of `value`; the other lanes are the float32 `fill`."""

    def codegen(context, builder, sig, args):
        value, first, end, fill = args
        lane = ir.Constant(_IVEC, list(range(LANES)))

        def spread(scalar, vector):
            one = builder.insert_element(
                ir.Constant(vector, ir.Undefined), scalar, ir.Constant(_I32, 0)
            )
            return builder.shuffle_vector(one, one, ir.Constant(_IVEC, [0] * LANES))

        low = spread(builder.trunc(first, _I32), _IVEC)
        high = spread(builder.trunc(end, _I32), _IVEC)
        inside = builder.and_(
            builder.icmp_signed(">=", lane, low), builder.icmp_signed("<", lane, high)
        )
        return builder.select(inside, value, spread(fill, _VEC))

    return f32x16(f32x16, types.int64, types.int64, types.float32), codegen


def _fold(name, operation, doc):
    """Joins lanes pairwise: l with l + 8, then l + 4, l + 2, l + 1."""

    def codegen(context, builder, sig, args):
        value, lanes = args[0], LANES
        while lanes > 1:
            lanes //= 2
            low = ir.Constant(ir.VectorType(_I32, lanes), list(range(lanes)))
            high = ir.Constant(ir.VectorType(_I32, lanes), list(range(lanes, 2 * lanes)))
            none = ir.Constant(value.type, ir.Undefined)
            value = operation(
                builder,
                builder.shuffle_vector(value, none, low),
                builder.shuffle_vector(value, none, high),
            )
        return builder.extract_element(value, ir.Constant(_I32, 0))

    def typed(typingctx, x):
        return types.float32(f32x16), codegen

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


join_sum = _fold(
    "join_sum", lambda b, x, y: b.fadd(x, y), "The sum of the lanes, halves joined first."
)
join_max = _fold(
    "join_max",
    lambda b, x, y: b.select(b.fcmp_ordered(">", x, y), x, y),
    "The largest lane.",
)


@intrinsic
def join_sums(typingctx, address, index):
    """Lane i is `join_sum` of the i-th of 16 stored vectors: the same pairs are added."""

    def codegen(context, builder, sig, args):
        base = builder.gep(builder.inttoptr(args[0], _F32.as_pointer()), [args[1]])
        vectors = []
        for place in range(LANES):
            here = builder.gep(base, [ir.Constant(ir.IntType(64), place * LANES)])
            vectors.append(builder.load(builder.bitcast(here, _VEC.as_pointer())))
            vectors[-1].align = 4
        half = LANES // 2
        while half:  # each vector holds LANES // (2 * half) sums of 2 * half lanes
            starts = [v + g for v in (0, LANES) for g in range(0, LANES, 2 * half)]
            low = ir.Constant(_IVEC, [s + lane for s in starts for lane in range(half)])
            high = ir.Constant(_IVEC, [s + half + lane for s in starts for lane in range(half)])
            vectors = [
                builder.fadd(builder.shuffle_vector(a, b, low), builder.shuffle_vector(a, b, high))
                for a, b in zip(vectors[::2], vectors[1::2], strict=True)
            ]
            half //= 2
        return vectors[0]

    return f32x16(types.int64, types.int64), codegen


@intrinsic
def exp(typingctx, x):
    """e**x in each lane: 2**n times a polynomial of degree 6, below 2 ulp; underflow to 1e-38.

    n = round(x * log2 e), r = x - n * ln 2 in two steps. Source: expf of the Cephes library.
    """

    def codegen(context, builder, sig, args):
        x = args[0]
        x = builder.select(builder.fcmp_ordered("<", x, _splat(-87.0)), _splat(-87.0), x)
        x = builder.select(builder.fcmp_ordered(">", x, _splat(88.0)), _splat(88.0), x)
        n = _call(builder, "llvm.rint.v16f32", _VEC, [builder.fmul(x, _splat(EXP_LOG2E))])

        def step(a, b, c):
            return _call(builder, "llvm.fma.v16f32", _VEC, [a, b, c])

        r = step(n, _splat(-EXP_LN2_HIGH), x)
        r = step(n, _splat(-EXP_LN2_LOW), r)
        p = _splat(EXP_POLYNOMIAL[0])
        for coefficient in EXP_POLYNOMIAL[1:]:
            p = step(p, r, _splat(coefficient))
        p = builder.fadd(step(builder.fmul(r, r), p, r), _splat(1.0))
        # added to 1.5 * 2**23, n is the low bits of the sum's mantissa, whatever its sign
        bits = builder.bitcast(builder.fadd(n, _splat(12582912.0)), _IVEC)
        power = builder.shl(builder.add(bits, _splat(127, _I32)), _splat(23, _I32))
        return builder.fmul(p, builder.bitcast(power, _VEC))

    return f32x16(f32x16), codegen


def _scalar_load(name, element, numba_type, doc):
    def codegen(context, builder, sig, args):
        return builder.load(builder.gep(builder.inttoptr(args[0], element.as_pointer()), [args[1]]))

    def typed(typingctx, address, index):
        return numba_type(types.int64, types.int64), codegen

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


def _scalar_store(name, element, numba_type, doc):
    def codegen(context, builder, sig, args):
        builder.store(
            args[2], builder.gep(builder.inttoptr(args[0], element.as_pointer()), [args[1]])
        )
        return context.get_dummy_value()

    def typed(typingctx, address, index, value):
        return types.void(types.int64, types.int64, numba_type), codegen

    typed.__name__, typed.__doc__ = name, doc
    return intrinsic(typed)


get_i32 = _scalar_load("get_i32", _I32, types.int32, "The int32 at element `index`.")
get_f32 = _scalar_load("get_f32", _F32, types.float32, "The float32 at element `index`.")
set_i32 = _scalar_store("set_i32", _I32, types.int32, "Writes the int32 at element `index`.")
set_f32 = _scalar_store("set_f32", _F32, types.float32, "Writes the float32 at element `index`.")


@intrinsic
def set_bf16(typingctx, address, index, value):
    """Writes the float32 at element `index` as bfloat16, rounded as by `store_bf16`."""

    def codegen(context, builder, sig, args):
        half = ir.IntType(16)
        bits = builder.bitcast(args[2], _I32)
        even = builder.and_(builder.lshr(bits, _I32(16)), _I32(1))
        rounded = builder.add(bits, builder.add(even, _I32(0x7FFF)))
        quiet = builder.or_(bits, _I32(0x400000))
        nan = builder.fcmp_unordered("uno", args[2], args[2])
        kept = builder.lshr(builder.select(nan, quiet, rounded), _I32(16))
        base = builder.inttoptr(args[0], half.as_pointer())
        builder.store(builder.trunc(kept, half), builder.gep(base, [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.float32), codegen


# Constants of `exp`, float32.
EXP_LOG2E = 1.44269504088896341
EXP_LN2_HIGH = 0.693359375
EXP_LN2_LOW = -2.12194440e-4
EXP_POLYNOMIAL = (
    1.9875691500e-4,
    1.3981999507e-3,
    8.3334519073e-3,
    4.1665795894e-2,
    1.6666665459e-1,
    5.0000001201e-1,
)

# Storage types of weights and of the key-value cache; `compose` writes the program's own here.
load_weight = load_bf16
touch_weight = touch_bf16
load_kv, store_kv, set_kv = load_bf16, store_bf16, set_bf16
touch_kv = touch_bf16
