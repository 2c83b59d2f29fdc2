"""What CPU workers share: counters with release and acquire, a clock, a polite way to wait."""

import sys

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

COUNTER_STRIDE = 32  # int32 words between counters: 128 bytes, so that no two share a line pair
CLOCK_MONOTONIC = 6 if sys.platform == "darwin" else 1


@intrinsic
def get_i64(typingctx, address, index):
    """The int64 at element `index`."""

    def codegen(context, builder, sig, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        return builder.load(builder.gep(base, [args[1]]))

    return types.int64(types.int64, types.int64), codegen


@intrinsic
def set_i64(typingctx, address, index, value):
    """Writes the int64 at element `index`."""

    def codegen(context, builder, sig, args):
        base = builder.inttoptr(args[0], ir.IntType(64).as_pointer())
        builder.store(args[2], builder.gep(base, [args[1]]))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64), codegen


@intrinsic
def load_acquire(typingctx, address, index):
    """The int32 at element `index`; what was released before it is visible after it."""

    def codegen(context, builder, sig, args):
        base = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
        return builder.load_atomic(builder.gep(base, [args[1]]), "acquire", 4)

    return types.int32(types.int64, types.int64), codegen


@intrinsic
def add_release(typingctx, address, index, amount):
    """Adds to the int32 at element `index`; everything written before is visible to who sees it."""

    def codegen(context, builder, sig, args):
        base = builder.inttoptr(args[0], ir.IntType(32).as_pointer())
        builder.atomic_rmw("add", builder.gep(base, [args[1]]), args[2], "release")
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int32), codegen


@intrinsic
def yield_core(typingctx):
    """Lets another thread of this core run (sched_yield)."""

    def codegen(context, builder, sig, args):
        kind = ir.FunctionType(ir.IntType(32), [])
        builder.call(cgutils.get_or_insert_function(builder.module, kind, "sched_yield"), [])
        return context.get_dummy_value()

    return types.void(), codegen


@intrinsic
def now_ns(typingctx):
    """Monotonic time in nanoseconds (clock_gettime)."""

    def codegen(context, builder, sig, args):
        word = ir.IntType(64)
        spec = cgutils.alloca_once(builder, ir.ArrayType(word, 2))
        kind = ir.FunctionType(ir.IntType(32), [ir.IntType(32), spec.type])
        clock = cgutils.get_or_insert_function(builder.module, kind, "clock_gettime")
        builder.call(clock, [ir.Constant(ir.IntType(32), CLOCK_MONOTONIC), spec])
        seconds = builder.extract_value(builder.load(spec), 0)
        rest = builder.extract_value(builder.load(spec), 1)
        return builder.add(builder.mul(seconds, ir.Constant(word, 1_000_000_000)), rest)

    return types.int64(), codegen
