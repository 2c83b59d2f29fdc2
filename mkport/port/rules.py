"""Names and instructions that give away what a task may not do, and what to say of each."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from mkport.port.finding import Severity

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class Rule:
    """A name that gives an effect away, and what to say of it."""

    code: str
    names: str  # a pattern for the whole identifier
    consequence: str
    fix: str
    severity: Severity = "refusal"
    cause: str = "`{text}` stands here."


LIBRARY_WHY = (
    "The composed file includes no libraries, and the library's own barriers and thread indices "
    "would be the megakernel's."
)
LIBRARY_FIX = "Write out what is used of it as functions of the file."
GROUPS_WHY = (
    "Cooperative groups read the hardware's block, which is the megakernel's, not the task's."
)
GROUPS_FIX = (
    "Use the block, its tiles of 32 threads or fewer (tiled_partition<32>) and what these have, or "
    "__syncthreads(), __syncwarp() and the __shfl_*_sync functions."
)
CUB_FIX = (
    "Use what there is (BlockReduce, BlockScan, WarpReduce, WarpScan, BlockLoad, BlockStore in "
    "their default algorithms), or write it out as a function of the file."
)
# Libraries of which mkport has a part: code, why not the rest, and what to do.
PARTS = {
    "cub": ("MK105", LIBRARY_WHY, CUB_FIX),
    "cuda": ("MK105", LIBRARY_WHY, LIBRARY_FIX),
    "cooperative_groups": ("MK157", GROUPS_WHY, GROUPS_FIX),
}
RULES = (
    Rule(
        "MK154", r"cudaLaunchDevice|cudaDeviceSynchronize|cudaStreamCreateWithFlags",
        "A task cannot start kernels: the megakernel holds every block of the GPU.",
        "Make the kernel it starts an op of its own that runs after this one.",
    ),
    Rule(
        "MK153", r"__cluster_dims__|cluster_group|this_cluster|__cluster\w*|map_shared_rank",
        "A megakernel's blocks form no clusters, and a task never sees another block's shared "
        "memory.",
        "Exchange through global memory, with one op for each side.",
    ),
    Rule(
        "MK150", r"this_grid|grid_group|this_multi_grid|multi_grid_group|cudaGridSynchronize",
        "The blocks of one launch are tasks that run one after another: one that waits for all of "
        "them never gets to run the rest.",
        "Split the kernel at each grid barrier into ops; the barrier becomes their dependency.",
    ),
    Rule(
        "MK156",
        r"mbarrier\w*|__mbarrier\w*|barrier_arrive_tx|cp_async_bulk\w*|CUtensorMap|tma\w*|"
        r"fence_barrier_init|memcpy_async_tx",
        "Transactions on barriers in shared memory outlive a task, and the arena's bytes are "
        "another's by then.",
        "Use plain loads, or cp.async with a wait before the end.",
    ),
    Rule(
        "MK157", r"thread_block_tile|tiled_partition|this_thread_block|coalesced_threads|"
        r"coalesced_group|thread_block|thread_group|labeled_partition|binary_partition",
        GROUPS_WHY, GROUPS_FIX,
    ),
    Rule(
        "MK105", r"thrust|cute|cutlass|nvcuda|wmma|curand\w*|cudnn\w*|cublas\w*|torch|at|c10|"
        r"cuda_pipeline|__pipeline_\w+|memcpy_async|cufft\w*",
        LIBRARY_WHY, LIBRARY_FIX, cause="`{text}` is a name of a library.",
    ),
    Rule(
        "MK158", r"malloc|free|new|delete|alloca|__nv_aligned_device_malloc",
        "The device heap is one lock for all workers, and what a task keeps there is lost to the "
        "planner.",
        "Use an array of fixed size, shared memory, or a scratch tensor as a parameter.",
    ),
    Rule(
        "MK159", r"__trap|__brkpt|__exit|abort|exit",
        "It would end the whole megakernel, every other task with it.",
        "Return, or write an error value.",
    ),
    Rule(
        "MK141", r"tex1D\w*|tex2D\w*|tex3D\w*|texCubemap\w*|surf1D\w*|surf2D\w*|surf3D\w*|texture|"
        r"surface|cudaTextureObject_t|cudaSurfaceObject_t|tex1Dfetch",
        "Textures and surfaces are read past the cache that other workers' writes go through: "
        "stale data.",
        "Read through a plain pointer.",
    ),
    Rule(
        "MK155",
        r"__nanosleep|(?:__)?setmaxnreg\w*|__named_barrier\w*|bar_sync|bar_arrive|__barrier_\w+|"
        r"__nvvm_\w+|__nv_ptx_\w+",
        "Named barriers and register budgets belong to the megakernel's roles.",
        "Use __syncthreads().",
    ),
    Rule(
        "MK302", r"volatile",
        "It orders nothing between blocks, and among lanes nothing that __syncwarp() does not.",
        "Use barriers, __syncwarp() or atomics for what threads tell each other.", "warning",
        "`{text}` stands here: threads may be telling each other something through memory.",
    ),
    Rule(
        "MK303", r"printf",
        "It works, but lines of all workers come mixed, and the buffer is flushed after the step.",
        "Take it out when the port is done.", "warning",
    ),
    Rule(
        "MK305", r"clock|clock64|globaltimer|__activemask",
        "What it returns differs from run to run, and in a megakernel from worker to worker.",
        "Have no result depend on it.", "warning",
    ),
    Rule(
        "MK306", r"assert",
        "A failed one would end the whole megakernel, so the port leaves it out.",
        "Check the condition where the op is called.", "warning",
    ),
)  # fmt: skip

ASM_RULES = (
    Rule(
        "MK155", r"setmaxnreg|\bbarrier\.|\bbar\.(?:sync|arrive|red|cta|warp)|nanosleep",
        "Named barriers and register budgets belong to the megakernel's roles.",
        "Write __syncthreads() or __syncwarp().",
    ),
    Rule(
        "MK156", r"mbarrier|cp\.async\.bulk|cp\.reduce\.async|tensormap|fence\.proxy|wgmma|tcgen05",
        "Transactions on barriers in shared memory outlive a task, and the arena's bytes are "
        "another's by then.",
        "Use plain loads, or cp.async with a wait before the end.",
    ),
    Rule(
        "MK153", r"cluster|mapa|shared::cluster",
        "A megakernel's blocks form no clusters.",
        "Exchange through global memory, with one op for each side.",
    ),
    Rule(
        "MK140", r"\.nc\b|ld\.global\.lu|ld\.param|ldu\.|tex\.|tld4|\bsust|\bsuld",
        "A non-coherent load may be served from before another worker's write: stale data, "
        "silently.",
        "Leave `.nc` out, or write a plain load.",
    ),
    Rule(
        "MK159",
        r"\bexit\b|\btrap\b|brkpt|%smid|%ctaid|%nctaid|%nsmid|%warpid|%nwarpid|%ntid|%gridid|%tid|"
        r"%cluster|%dynamic_smem|%total_smem",
        "Hardware registers speak of the megakernel's block, and exits end its workers.",
        "Use blockIdx, threadIdx and return, which are bound to the task.",
    ),
    Rule(
        "MK151", r"ld\.acquire|st\.release|ld\.relaxed|red\.release|atom\.|red\.(?:async|relaxed)|"
        r"fence\.acq|membar",
        "Synchronisation between blocks may wait for one that has not begun, and never will.",
        "Split the kernel into two ops where one block waits for another.",
    ),
)  # fmt: skip
