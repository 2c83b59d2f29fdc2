"""What a kernel does beside reading and writing its tensors: everything a task may not do.

Names and inline assembly are looked for in all that the kernel reaches, macros expanded. The words
of each refusal stand here.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mkport.port import known
from mkport.port.facts import LOOPS
from mkport.port.finding import Finding, Severity
from mkport.port.kernel import Kernel
from mkport.port.lexer import tokens
from mkport.port.syntax import find
from mkport.port.unit import Item, Unit

if TYPE_CHECKING:
    from tree_sitter import Node


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


CALLS = ("MK158", "MK159", "MK303", "MK306")  # rules for names that mean it only when called


def effects(unit: Unit, kernel: Kernel, items: Sequence[Item]) -> list[Finding]:
    """Everything a kernel reaches that a task may not do, or must be warned of."""
    found: list[Finding] = []
    for item in items:
        found += _names(unit, item)
        found += library_names(unit, item)
        found += _assembly(unit, item)
        found += _waiting(unit, item)
        found += _atomics(unit, items, item)
        found += _launches(unit, item)
        found += _variables(unit, item)
    if barriers := list(_grid_barriers(unit, items)):
        found = [f for f in found if f.code not in ("MK150", "MK157")] + barriers
    unique = {(f.code, f.line): f for f in reversed(found)}
    return sorted(unique.values(), key=lambda f: (f.line, f.code))


def _names(unit: Unit, item: Item) -> Iterator[Finding]:
    text = unit.text_of(item)
    start = item.outer.start_byte
    given = [t for t in tokens(text) if not t.blank]
    for at, token in enumerate(given):
        if token.kind != "name":
            continue
        before = given[at - 1].text if at else ""
        after = given[at + 1].text if at + 1 < len(given) else ""
        for rule in RULES:
            if not re.fullmatch(rule.names, token.text):
                continue
            if before in (".", "->", "asm", "__asm__", "__asm"):
                continue
            if rule.code in CALLS and not _is_use(token.text, after):
                continue
            if rule.code == "MK105" and after != "::" and not token.text.startswith(
                ("curand", "__pipeline", "cudnn", "cublas", "memcpy_async")
            ):  # fmt: skip
                continue
            if rule.code in ("MK157", "MK156", "MK305") and token.text in _own_names(unit):
                continue
            yield _finding(unit, rule, start + token.start, token.text)


def library_names(unit: Unit, item: Item) -> Iterator[Finding]:
    """Names of a library that are not among the part of it that mkport has."""
    text = unit.text_of(item)
    given = [t for t in tokens(text) if not t.blank]
    aliases = dict(re.findall(r"\bnamespace\s+(\w+)\s*=\s*(?:::\s*)?(\w+)\s*;", unit.text))
    at = 0
    while at < len(given):
        first = given[at]
        space = aliases.get(first.text, first.text) if first.kind == "name" else ""
        at += 1
        if space not in PARTS or at >= len(given) or given[at].text != "::":
            continue
        path = [space]
        while at + 1 < len(given) and given[at].text == "::" and given[at + 1].kind == "name":
            path.append(given[at + 1].text)
            at += 2
        if _declared(unit, path):
            continue
        code, why, fix = PARTS[space]
        name = "::".join(path)
        if any(re.fullmatch(rule.names, word) and rule.code in ("MK150", "MK153")
               for rule in RULES for word in path[1:]):  # fmt: skip
            continue  # these have words of their own
        rule = Rule(code, "", why, fix, cause="`{text}` is not among what mkport has of a library.")
        yield _finding(unit, rule, item.outer.start_byte + first.start, name)


def _declared(unit: Unit, path: Sequence[str]) -> bool:
    """True where a namespace's name is one of the text's own; what stands in a class may be."""
    for item in unit.items:
        for depth in range(1, len(path)):
            if item.namespace == tuple(path[:depth]) and path[depth] in item.names:
                return True
    return False


def _is_use(name: str, after: str) -> bool:
    if name in ("new", "delete"):
        return True
    return after == "("


def _own_names(unit: Unit) -> set[str]:
    return {name for item in unit.items for name in item.names}


def _finding(unit: Unit, rule: Rule, place: int, text: str) -> Finding:
    line = unit.text.count("\n", 0, place) + 1
    column = place - unit.text.rfind("\n", 0, place)
    return Finding(
        rule.code, line, column, rule.cause.format(text=text), rule.consequence, rule.fix,
        rule.severity,
    )  # fmt: skip


def _assembly(unit: Unit, item: Item) -> Iterator[Finding]:
    for node in find(item.outer, "gnu_asm_expression"):
        text = unit.tree.of(node)
        code = " ".join(re.findall(r'"((?:\\.|[^"\\])*)"', text))
        for rule in ASM_RULES:
            hit = re.search(rule.names, code)
            if hit:
                yield _finding(unit, rule, node.start_byte, hit[0].strip())
                break


def _waiting(unit: Unit, item: Item) -> Iterator[Finding]:
    """Loops that poll memory: their block waits for another one."""
    for loop in find(item.outer, *LOOPS):
        condition = loop.child_by_field_name("condition")
        body = loop.child_by_field_name("body")
        if condition is None:
            continue
        text = unit.tree.of(condition)
        polls = re.search(
            r"\batomic\w*\s*\(|\bvolatile\b|__ldcv|__ldcg|ld_acquire\w*|\bload_acquire\w*|"
            r"\bld_volatile\w*|\.load\s*\(", text
        )  # fmt: skip
        inside = unit.tree.of(body) if body is not None else ""
        idle = not re.search(r"[^\s;{}]", re.sub(r"__nanosleep\s*\([^)]*\)|__threadfence\w*\(\)|"
                                                 r"__syncwarp\(\)", "", inside))  # fmt: skip
        names = set(re.findall(r"[A-Za-z_]\w*", text))
        watched = names & _volatiles(unit, item)
        reads = re.search(r"\[|\*\s*[A-Za-z_(]", text)
        spins = idle and reads and not re.search(r"\+\+|--|[-+*/]=|[^=!<>]=[^=]", text)
        exits = re.search(
            r"\bif\s*\([^;{}]*(?:\batomic\w*\s*\(|\bvolatile\b|__ldcv)[^;]*\)\s*\{?\s*break", inside
        )  # fmt: skip
        if polls or watched or spins or exits:
            head = " ".join(text.split())
            yield Finding(
                "MK151", unit.tree.line(loop), unit.tree.column(loop),
                f"The loop `{head[:60]}` waits until other threads have changed memory.",
                "The block it waits for may be a task that has not begun on the same worker: the "
                "megakernel hangs.",
                "Split the kernel into two ops where one block waits for another; the wait becomes "
                "their dependency.",
            )  # fmt: skip


def _volatiles(unit: Unit, item: Item) -> set[str]:
    """Names declared volatile that are not shared memory."""
    found = set()
    for node in find(item.outer, "declaration", "parameter_declaration"):
        text = unit.tree.of(node)
        head = text.split("=")[0]
        if re.search(r"\bvolatile\b", head) and "__shared__" not in head:
            words = re.findall(r"[A-Za-z_]\w*", head)
            found.add(words[-1])
    return found


def _discarded(unit: Unit, items: Sequence[Item], item: Item, call: "Node") -> bool:
    """True where what a call returns is not used: not here, or by nobody who calls the function
    that returns it."""
    node, parent = call, call.parent
    while parent is not None and parent.type in _PASSED_ON:
        node, parent = parent, parent.parent
        if node.type == "call_expression":
            function = node.child_by_field_name("function")
            if function is None or not known.is_pure(unit.tree.of(function)):
                return False
    if parent is None or parent.type == "expression_statement":
        return True
    if parent.type != "return_statement" or item.kernel or item.kind != "function":
        return False
    return all(
        other.parent is not None and other.parent.type == "expression_statement"
        for caller in items for other in find(caller.outer, "call_expression")
        if _calls(unit, other, item)
    )  # fmt: skip


_PASSED_ON = (
    "parenthesized_expression", "conditional_expression", "cast_expression", "argument_list",
    "call_expression",
)  # fmt: skip


def _calls(unit: Unit, call: "Node", item: Item) -> bool:
    function = call.child_by_field_name("function")
    text = unit.tree.of(function) if function is not None else ""
    words = re.findall(r"\w+", re.split(r"[<(]", text)[0])
    return bool(words) and words[-1] in item.names


def _atomics(unit: Unit, items: Sequence[Item], item: Item) -> Iterator[Finding]:
    shared = set(re.findall(r"__shared__[^;]*?\b(\w+)\s*(?:\[|;)", unit.text_of(item)))
    for call in find(item.outer, "call_expression"):
        function = call.child_by_field_name("function")
        name = unit.tree.of(function) if function is not None else ""
        if not known.ATOMICS.fullmatch(name):
            continue
        arguments = call.child_by_field_name("arguments")
        target = unit.tree.of(arguments.named_children[0]) if (
            arguments is not None and arguments.named_children) else ""  # fmt: skip
        root = next(iter(re.findall(r"[A-Za-z_]\w*", target)), "")
        if root in shared:
            continue
        used = not _discarded(unit, items, item, call)
        line, column = unit.tree.line(call), unit.tree.column(call)
        if used and name != "atomicCAS":
            yield Finding(
                "MK152", line, column,
                f"`{name}({' '.join(target.split())}, ...)` is used for what it returns.",
                "That is the order in which blocks come, and in a megakernel they come in another: "
                "tickets, compactions and last-block sums change.",
                "Compute the place from blockIdx, or do what the last block does in an op of its "
                "own.",
            )  # fmt: skip
            continue
        if used:
            yield Finding(
                "MK151", line, column,
                f"`{name}({' '.join(target.split())}, ...)` is a lock or a retry on global memory.",
                "A block that waits for another may wait for a task that has not begun.",
                "Use atomicAdd, atomicMax or a reduction in an op of its own.",
            )  # fmt: skip
            continue
        ordered = re.match(r"atomic(?:Add|Sub|Exch|Inc|Dec)", name)
        yield Finding(
            "MK301", line, column,
            f"`{name}({' '.join(target.split())}, ...)` adds up in the order in which blocks come."
            if ordered else
            f"`{name}({' '.join(target.split())}, ...)` joins what blocks find, in any order.",
            "With floats the last bits differ from run to run, as in the original; the target must "
            "hold its start value before each step." if ordered else
            "The result is the same in every order, but the target must hold its start value "
            "before each step.",
            "Write partial results and join them in a fixed order to have the same bits always."
            if ordered else "Have an op that runs before it set the target.",
            "warning",
        )  # fmt: skip


def _launches(unit: Unit, item: Item) -> Iterator[Finding]:
    for node in find(item.outer, "kernel_call_syntax"):
        call = node.parent
        text = " ".join(unit.tree.of(call if call is not None else node).split())
        yield Finding(
            "MK154", unit.tree.line(node), unit.tree.column(node),
            f"`{text[:60]}` starts a kernel from a kernel.",
            "A task cannot start kernels: the megakernel holds every block of the GPU.",
            "Make the kernel it starts an op of its own that runs after this one.",
        )  # fmt: skip


def _variables(unit: Unit, item: Item) -> Iterator[Finding]:
    """Device and constant variables of the file, and what functions keep from call to call."""
    if item.kind == "function":
        for node in find(item.node, "declaration"):
            text = " ".join(unit.tree.of(node).split())
            kept = re.match(r"static\b", text) and not re.search(
                r"__shared__|\bconst(expr)?\b", text.split("=")[0]
            )
            if kept:
                yield _mutable(unit, node, text, "is kept from call to call, for all threads")
    if item.kind != "variable":
        return
    text = " ".join(unit.text_of(item).split())
    words = item.words
    head = text.split("=")[0]
    if "__shared__" in words:
        return
    constant = bool(re.search(r"\bconst(expr)?\b", head))
    if ("__device__" in words or "__managed__" in words) and not constant:
        yield _mutable(unit, item.node, text, "is a variable that every launch and task shares")
    if "__constant__" in words:
        copied = any(re.search(rf"cudaMemcpyToSymbol\w*\s*\(\s*&?{name}\b", unit.text)
                     for name in item.names)  # fmt: skip
        if "=" not in text and "{" not in text or copied:
            yield _mutable(unit, item.node, text, "is filled by the host")


def _mutable(unit: Unit, node: "Node", text: str, what: str) -> Finding:
    return Finding(
        "MK141", unit.tree.line(node), unit.tree.column(node),
        f"`{text[:60]}` {what}.",
        "A megakernel is another module: the variable would be another one, and hold nothing.",
        "Pass a pointer to it as a parameter; declare a table that never changes const, with its "
        "values.",
    )  # fmt: skip


def _grid_barriers(unit: Unit, items: Sequence[Item]) -> Iterator[Finding]:
    """Each barrier of a grid group, as a place to split at."""
    groups: set[str] = set()
    for item in items:
        text = unit.text_of(item)
        groups |= set(re.findall(r"\b(\w+)\s*=\s*(?:\w+\s*::\s*)*this_grid\s*\(", text))
        groups |= set(re.findall(r"\bgrid_group\s+(\w+)", text))
    lines = []
    for item in items:
        for call in find(item.outer, "call_expression"):
            text = "".join(unit.tree.of(call).split())
            if any(text == f"{group}.sync()" for group in groups) or re.fullmatch(
                r"(?:\w+::)*this_grid\(\)\.sync\(\)", text
            ):
                lines.append((unit.tree.line(call), unit.tree.column(call)))
    if not lines:
        return
    listed = ", ".join(str(line) for line, _ in lines)
    for line, column in lines:
        yield Finding(
            "MK150", line, column,
            f"All blocks of the grid meet here (split points: line{'s' if len(lines) > 1 else ''} "
            f"{listed}).",
            "The blocks of one launch are tasks that run one after another: one that waits for all "
            "of them never gets to run the rest.",
            f"Split the kernel at line{'s' if len(lines) > 1 else ''} {listed} into "
            f"{len(lines) + 1} ops; each barrier becomes their dependency.",
        )  # fmt: skip


def host_calls(unit: Unit, kernels: Sequence[str]) -> list[Finding]:
    """Library calls that the host makes between launches of kernels that are ported together."""
    found = []
    launches = [
        unit.tree.line(node) for node in find(unit.tree.root, "kernel_call_syntax")
        if node.parent is not None
        and any(re.match(rf"(?:\w+::)*{name}\b", unit.tree.of(node.parent)) for name in kernels)
    ]  # fmt: skip
    if len(launches) < 2:
        return []
    for call in find(unit.tree.root, "call_expression"):
        function = call.child_by_field_name("function")
        name = unit.tree.of(function) if function is not None else ""
        line = unit.tree.line(call)
        if not min(launches) < line < max(launches):
            continue
        if re.match(r"(?:cublas|cudnn|cusparse|cufft|cusolver|curand|thrust|cub|nccl)\w*", name):
            found.append(
                Finding(
                    "MK106", line, unit.tree.column(call),
                    f"Between the launches the host calls `{name.split('(')[0]}`.",
                    "A megakernel is one launch: nothing of the host happens in its middle.",
                    "Port the kernels before and after it apart, or replace the call by an op.",
                )
            )  # fmt: skip
    return found
