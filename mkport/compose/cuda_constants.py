"""The constants that a composed CUDA file and its launchers share, each written here alone."""

COUNTER_STRIDE = 32  # int32 words between counters, and of an error row: 128 bytes
ROLES = ("stage", "load", "compute", "store")
WRITTEN = "words of its inputs to be written, at"
# What a role can wait for; place 0 means that it did not wait when the step was aborted.
WAIT_KINDS = (
    "nothing",
    "counter",
    "ring chunk to be free, chunk",
    "ring chunk to be full, chunk",
    "stage buffer to be free, of the record in box",
    "inputs to be staged, box",
    "join slot to be free, slot",
    "partials, join slot",
    "record, box",
    "box to be free, box",
    "compute warps to leave, box",
    WRITTEN,
)
_KIND_NAMES = (
    "NOTHING COUNTER FREE_CHUNK FULL_CHUNK FREE_STAGE STAGED FREE_JOIN JOINED BOX FREE_BOX "
    "COMPUTED WRITTEN"
).split()

ROW_BYTES = 2048  # of one weight row in a ring chunk; what an op's slices of k are cut by
BOX_ROWS, BLOCK_BYTES = 8, 128  # weight rows that are copied together, in blocks of their bytes
MAP_BYTES = 128  # of a tensor map, which says how

SIDE = 8  # token rows that one instruction multiplies
MOST_GROUPS = 4  # of them, that a tile takes side by side
WIDE_NOTES = 68  # of a record of more: a block's places

CONSTANTS = {
    "COMPUTE_WARPS": 8,
    "STAGE_WARPS": 2,
    "JOIN_SLOTS": 4,  # tiles that the storer may be behind
    "PARTIAL": 16 * 8,  # floats that a compute warp leaves in a join slot
    "ROW_BYTES": ROW_BYTES,
    "CHUNK_BYTES": 16 * ROW_BYTES,  # the ring's largest: 16 weight rows
    "CHUNK_ALIGN": BOX_ROWS * BLOCK_BYTES,  # of chunks' places and sizes
    "MAP_BYTES": MAP_BYTES,
    "CHUNKS": 16,  # of the ring under way at most
    "STAGE_ALIGN": 128,  # bytes; stage buffers begin at multiples
    "BOXES": 16,  # records on their way through the roles
    "AHEAD": 4,  # records that are published before they are loaded
    "NOTES": 28,  # of a record, between its roles
    "TAGS": 8,  # of a tile
    "FIXED_BYTES": 25984,  # barriers, boxes, join slots, ports' places, before the stage buffers
    # A record's flags, written by the launcher: where its stage buffer lies, how many records ago
    # that place was used (0: never, or long ago), whether the record before staged the same, and
    # whether the loader has waited for the addresses of the record's bytes before.
    "FLAG_PLACE": 0xFFFF,
    "FLAG_BACK": 1 << 16,
    "FLAG_STAGED": 1 << 20,
    "FLAG_KNOWN": 1 << 21,
    # Of programs with flagged memory: whether what the record reads there is flagged, all of it.
    "FLAG_FLAGGED": 1 << 25,
    # Of programs for more than 8 rows: groups of a tile's tokens, less one, and whether the record
    # before is of the same node, and so has waited for the same.
    "FLAG_GROUPS": 1 << 22,
    "FLAG_AGAIN": 1 << 24,
    "MOST_GROUPS": MOST_GROUPS,
    "COUNTER_STRIDE": COUNTER_STRIDE,
    "ROLES": len(ROLES),
}


def constants(rows: int) -> dict[str, int]:
    """The constants of a program for steps of up to `rows` token rows."""
    if rows <= SIDE:
        return CONSTANTS | {"GROUPS": 1}
    more = WIDE_NOTES - CONSTANTS["NOTES"]
    return CONSTANTS | {
        "GROUPS": min(-(-rows // SIDE), MOST_GROUPS),
        "NOTES": WIDE_NOTES,
        "FIXED_BYTES": CONSTANTS["FIXED_BYTES"] + 4 * more * CONSTANTS["BOXES"],
    }


def constants_text(rows: int, flagged: bool) -> str:
    """The generated section of a composed file."""
    lines = ["enum {", f"  MK_ROWS = {rows},  // token rows of a step"]
    lines += [f"  MK_FLAGGED = {int(flagged)},  // some scratch tells by itself what is written"]
    lines += [f"  MK_{name} = {value}," for name, value in constants(rows).items()]
    lines += [f"  MK_ROLE_{name.upper()} = {place}," for place, name in enumerate(ROLES)]
    lines += ["};", "enum MkWaitKind {"]
    lines += [f"  MK_WAIT_{name} = {place}," for place, name in enumerate(_KIND_NAMES)]
    return "\n".join([*lines, "};"]) + "\n"
