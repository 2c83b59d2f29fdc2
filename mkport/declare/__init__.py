"""What an op is: the record, the op declaration, the tensor table. Nothing here plans or runs."""

from mkport.declare.access import Access, immutable, read, update, whole, write
from mkport.declare.op import Arg, Bound, Op, integer, real, tensor
from mkport.declare.record import RECORD, RECORD_WORDS, Field
from mkport.declare.spread import spread_step
from mkport.declare.table import DTYPE_BYTES, TensorSpec

__all__ = [
    "DTYPE_BYTES",
    "RECORD",
    "RECORD_WORDS",
    "Access",
    "Arg",
    "Bound",
    "Field",
    "Op",
    "TensorSpec",
    "immutable",
    "integer",
    "read",
    "real",
    "spread_step",
    "tensor",
    "update",
    "whole",
    "write",
]
