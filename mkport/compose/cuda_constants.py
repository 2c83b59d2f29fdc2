"""The constants that a composed CUDA file and its launchers share, each written here alone."""

COUNTER_STRIDE = 32  # int32 words between counters, and of an error row: 128 bytes
ROLES = ("stage", "load", "compute", "store")
# What a role can wait for; place 0 means that it did not wait when the step was aborted.
WAIT_KINDS = (
    "nothing",
    "counter",
    "ring slot to be free, slot",
    "ring slot to be full, slot",
    "stage buffer to be free, buffer",
    "inputs to be staged, buffer",
    "join slot to be free, slot",
    "partials, join slot",
    "record, box",
    "box to be free, box",
)
_KIND_NAMES = (
    "NOTHING COUNTER FREE_SLOT FULL_SLOT FREE_STAGE STAGED FREE_JOIN JOINED BOX FREE_BOX"
).split()

ROW_BYTES = 2048  # of one weight row in a ring slot; what an op's slices of k are cut by

CONSTANTS = {
    "COMPUTE_WARPS": 8,
    "STAGE_WARPS": 2,
    "JOIN_SLOTS": 4,  # tiles that the storer may be behind
    "PARTIAL": 16 * 8,  # floats that a compute warp leaves in a join slot
    "ROW_BYTES": ROW_BYTES,
    "SLOT_BYTES": 16 * (ROW_BYTES + 16),  # of the ring: 16 weight rows, each padded by a vector
    "MAX_SLOTS": 8,
    "BOXES": 16,  # records on their way through the roles
    "AHEAD": 4,  # records that are published before they are loaded
    "NOTES": 20,  # of a record, between its roles
    "TAGS": 8,  # of a tile
    "FIXED_BYTES": 22784,  # barriers, boxes and join slots, before the stage buffers
    "COUNTER_STRIDE": COUNTER_STRIDE,
    "ROLES": len(ROLES),
}


def constants_text(rows: int) -> str:
    """The generated section of a composed file."""
    lines = ["enum {", f"  MK_ROWS = {rows},  // token rows that a tile computes side by side"]
    lines += [f"  MK_{name} = {value}," for name, value in CONSTANTS.items()]
    lines += [f"  MK_ROLE_{name.upper()} = {place}," for place, name in enumerate(ROLES)]
    lines += ["};", "enum MkWaitKind {"]
    lines += [f"  MK_WAIT_{name} = {place}," for place, name in enumerate(_KIND_NAMES)]
    return "\n".join([*lines, "};"]) + "\n"
