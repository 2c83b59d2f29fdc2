"""A task that fills shared memory with NaN: what runs beside a port while it is checked."""

from pathlib import Path

from mkport.declare import Op, integer

OP = Op(
    name="mk_fill",
    doc="fills the shared memory that ported kernels use with NaN",
    args=(
        integer("bytes", "of shared memory, a multiple of 4"),
        integer("tiles", "how often, on as many workers"),
    ),
    tiles=lambda a: a.tiles,
    access=lambda a, tile: (),
    block_shared=lambda a: a.bytes,
    order="none",
    folder=Path(__file__).parent,
)
