"""The pieces that decoder families build a step out of: inputs, blocks, head.

A family's `build` calls these in program order. Nothing here knows a family: what differs is an
argument. Scratch is shared by all layers; the planner orders its reuse.
"""

from dataclasses import dataclass

from mkport.declare.table import Kind
from mkport.kernels.argmax.op import OP as ARGMAX
from mkport.kernels.attention.op import OP as ATTENTION
from mkport.kernels.attention.op import SPLIT
from mkport.kernels.attention_combine.op import OP as COMBINE
from mkport.kernels.embed.op import OP as EMBED
from mkport.kernels.gemm.op import OP as GEMM
from mkport.kernels.gemm_rope.op import OP as GEMM_ROPE
from mkport.kernels.gemm_silu.op import OP as GEMM_SILU
from mkport.kernels.moe_combine.op import OP as MOE_COMBINE
from mkport.kernels.moe_down.op import OP as MOE_DOWN
from mkport.kernels.moe_group.op import OP as MOE_GROUP
from mkport.kernels.moe_up.op import OP as MOE_UP
from mkport.kernels.rmsnorm.op import OP as RMSNORM
from mkport.kernels.select.op import OP as SELECT
from mkport.kernels.topk.op import OP as TOPK
from mkport.plan import Graph


@dataclass(frozen=True)
class StepShape:
    """The sizes of a step that are the server's choice, not the model's."""

    rows: int  # tokens a step can hold
    context: int  # positions a sequence can reach
    sequences: int = 1  # sequences a step can hold tokens of
    logits: int = 1  # rows whose logits a step can give
    page: int = 64  # keys in a page of the cache, a multiple of 16
    pages: int = 0  # pages of the pool; 0: enough for every sequence's full context
    weights: str = "bf16"  # storage of weights: "bf16" or "f32"
    cache: str = "bf16"  # storage of the key-value cache: "bf16" or "f32"

    @property
    def pages_per_sequence(self) -> int:
        """Pages that a full context takes."""
        return -(-self.context // self.page)

    @property
    def pool(self) -> int:
        """Pages of the pool."""
        return self.pages or self.pages_per_sequence * self.sequences

    @property
    def splits(self) -> int:
        """Attention splits that a full context takes."""
        return -(-self.context // SPLIT)


@dataclass(frozen=True)
class Heads:
    """A layer's attention shape."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: bool = True  # rotates queries and keys
    half_split: bool = True  # pairs (i, i + head_dim / 2), else (2 i, 2 i + 1)
    window: int = 0  # keys a query sees, its own included; 0: all


@dataclass(frozen=True)
class Experts:
    """A layer's mixture of experts."""

    experts: int
    top: int  # experts of a token
    ffn: int  # width of an expert
    softmax: bool  # scores: softmax over all experts, else the sigmoid of each logit
    renormalise: bool  # the chosen weights are divided by their sum
    scale: float = 1.0


@dataclass(frozen=True)
class ExpertNames:
    """The tensors of a layer's experts, stacked: [experts, rows, columns]."""

    router: str
    gate: str
    up: str  # the same name as `gate` where one tensor holds gate, then up
    down: str


class Step:
    """A step graph under construction; methods append nodes and name the tensors they write."""

    def __init__(self, shape: StepShape, hidden: int) -> None:
        self.graph = Graph()
        self.shape = shape
        self.hidden = hidden
        self.tensor("count", "i32", (1,), "input")
        self.tensor("tokens", "i32", (shape.rows,), "input")
        self.tensor("rows", "i32", (shape.rows, 2), "input")  # (sequence, position)
        table = (shape.sequences, shape.pages_per_sequence)
        self.tensor("page_table", "i32", table, "input")
        self.tensor("logit_count", "i32", (1,), "input")
        self.tensor("logit_rows", "i32", (shape.logits,), "input")
        self.tensor("x", "f32", (shape.rows, hidden), "scratch")  # the residual stream

    def tensor(
        self,
        name: str,
        dtype: str,
        shape: tuple[int, ...],
        kind: Kind,
        logical: tuple[int, ...] = (),
    ) -> str:
        """Adds a tensor, or returns it when it is there already with the same shape."""
        known = self.graph.tensors.get(name)
        if known is None:
            return self.graph.tensor(name, dtype, shape, kind, logical)
        if known.shape != tuple(shape):
            raise ValueError(f"tensor {name!r} is {known.shape}, asked for as {tuple(shape)}")
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A weight in the step's storage type."""
        return self.tensor(name, self.shape.weights, shape, "weight")

    def scratch(self, name: str, *shape: int) -> str:
        """Float32 scratch."""
        return self.tensor(name, "f32", shape, "scratch")

    def embed(self, table: str, vocab: int) -> None:
        """x[t] = table[tokens[t]]."""
        self.weight(table, vocab, self.hidden)
        self.graph.add(
            EMBED, "embed", count="count", tokens="tokens", table=table, y="x", k=self.hidden
        )

    def rmsnorm(self, label: str, weight: str, eps: float) -> str:
        """h = rmsnorm(x)."""
        h = self.scratch("h", self.shape.rows, self.hidden)
        self.tensor(weight, "f32", (self.hidden,), "weight")
        self.graph.add(
            RMSNORM, label, count="count", x="x", w=weight, y=h, groups=1, k=self.hidden, eps=eps
        )
        return h

    def rope_table(self, name: str, head_dim: int) -> str:
        """Cosines and sines of every position; filled by the loader."""
        return self.tensor(name, "f32", (self.shape.context, head_dim), "weight")

    def attention(self, layer: int, h: str, prefix: str, a: Heads) -> str:
        """Queries, cached keys and values, attention; returns [rows, heads * head_dim]."""
        shape, width = self.shape, a.heads * a.head_dim
        q = self.scratch("q", shape.rows, width)
        pages = {
            part: self.tensor(
                f"cache.{layer}.{part}",
                shape.cache,
                (shape.pool, a.kv_heads, shape.page, a.head_dim),
                "state",
                (shape.rows, 2, a.kv_heads * a.head_dim),
            )
            for part in ("k", "v")
        }
        rope = self.rope_table("rope", a.head_dim) if a.rope else None
        for part, heads in (("q", a.heads), ("k", a.kv_heads), ("v", a.kv_heads)):
            cached = part != "q"
            self.graph.add(
                GEMM_ROPE,
                f"layer {layer} / {part}_proj",
                count="count",
                rows="rows",
                x=h,
                w=self.weight(f"{prefix}.{part}_proj.weight", heads * a.head_dim, self.hidden),
                rope=None if part == "v" else rope,
                page_table="page_table" if cached else None,
                y=None if cached else q,
                pages=pages[part] if cached else None,
                heads=heads,
                head_dim=a.head_dim,
                k=self.hidden,
                page=shape.page,
                pages_per_sequence=shape.pages_per_sequence,
                half_split=int(a.half_split),
            )
        partial = self.tensor(
            "partial",
            "f32",
            (shape.rows, shape.splits, a.heads, a.head_dim + 16),
            "scratch",
            (shape.rows, shape.splits, a.heads),
        )
        self.graph.add(
            ATTENTION,
            f"layer {layer} / attention",
            count="count",
            rows="rows",
            page_table="page_table",
            q=q,
            k_pages=pages["k"],
            v_pages=pages["v"],
            partial=partial,
            heads=a.heads,
            kv_heads=a.kv_heads,
            head_dim=a.head_dim,
            page=shape.page,
            pages_per_sequence=shape.pages_per_sequence,
            splits=shape.splits,
            window=a.window,
            scale=a.head_dim**-0.5,
        )
        joined = self.scratch("attended", shape.rows, width)
        self.graph.add(
            COMBINE,
            f"layer {layer} / combine",
            count="count",
            rows="rows",
            partial=partial,
            y=joined,
            heads=a.heads,
            head_dim=a.head_dim,
            splits=shape.splits,
            window=a.window,
        )
        return joined

    def add_product(self, label: str, x: str, weight: str, k: int) -> None:
        """x (the residual stream) += input W^T."""
        self.weight(weight, self.hidden, k)
        self.graph.add(
            GEMM, label, count="count", x=x, w=weight, residual="x", y="x", n=self.hidden, k=k
        )

    def gated(self, layer: int, h: str, prefix: str, ffn: int) -> None:
        """x += down(silu(gate(h)) * up(h))."""
        f = self.scratch("f", self.shape.rows, ffn)
        self.graph.add(
            GEMM_SILU,
            f"layer {layer} / gate_up",
            count="count",
            x=h,
            w_gate=self.weight(f"{prefix}.gate_proj.weight", ffn, self.hidden),
            w_up=self.weight(f"{prefix}.up_proj.weight", ffn, self.hidden),
            y=f,
            n=ffn,
            k=self.hidden,
        )
        self.add_product(f"layer {layer} / down_proj", f, f"{prefix}.down_proj.weight", ffn)

    def experts(self, layer: int, h: str, names: ExpertNames, e: Experts) -> None:
        """x += the weighted sum of each token's chosen experts."""
        rows, label = self.shape.rows, f"layer {layer}"
        slots = min(e.experts, rows * e.top)
        z = self.scratch("router_logits", rows, e.experts)
        self.graph.add(
            GEMM,
            f"{label} / router",
            count="count",
            x=h,
            w=self.weight(names.router, e.experts, self.hidden),
            y=z,
            n=e.experts,
            k=self.hidden,
        )
        ids = self.tensor("chosen", "i32", (rows, e.top), "scratch")
        weights = self.scratch("chosen_weights", rows, e.top)
        self.graph.add(
            TOPK,
            f"{label} / topk",
            count="count",
            z=z,
            ids=ids,
            weights=weights,
            experts=e.experts,
            k=e.top,
            softmax=int(e.softmax),
            renormalise=int(e.renormalise),
            scale=e.scale,
        )
        pairs = self.tensor("pairs", "i32", (rows * e.top,), "scratch")
        listed = self.tensor("slots", "i32", (slots + 1, 2), "scratch")
        self.graph.add(
            MOE_GROUP,
            f"{label} / group",
            count="count",
            ids=ids,
            pairs=pairs,
            slots=listed,
            experts=e.experts,
            k=e.top,
        )
        act = self.tensor("act", "f32", (rows * e.top, e.ffn), "scratch", (slots, e.ffn))
        fused = names.gate == names.up
        blocks = (e.experts, 2 * e.ffn if fused else e.ffn, self.hidden)
        self.graph.add(
            MOE_UP,
            f"{label} / experts_up",
            slots=listed,
            pairs=pairs,
            x=h,
            w_gate=self.weight(names.gate, *blocks),
            w_up=self.weight(names.up, *blocks),
            act=act,
            n=e.ffn,
            k=self.hidden,
            top=e.top,
            up_row=e.ffn if fused else 0,
        )
        y = self.tensor("expert_out", "f32", (rows * e.top, self.hidden), "scratch",
                        (slots, self.hidden))  # fmt: skip
        self.graph.add(
            MOE_DOWN,
            f"{label} / experts_down",
            slots=listed,
            pairs=pairs,
            act=act,
            w=self.weight(names.down, e.experts, self.hidden, e.ffn),
            y=y,
            n=self.hidden,
            k=e.ffn,
        )
        self.graph.add(
            MOE_COMBINE,
            f"{label} / combine_experts",
            count="count",
            weights=weights,
            y=y,
            x="x",
            n=self.hidden,
            top=e.top,
            slots=slots,
        )

    def head(self, norm: str, eps: float, table: str, vocab: int) -> Graph:
        """The wanted rows' final norm, logits and greedy choice; returns the finished graph."""
        rows, count = self.shape.logits, "logit_count"
        last = self.scratch("last", rows, self.hidden)
        self.graph.add(
            SELECT, "select", count=count, index="logit_rows", x="x", y=last, k=self.hidden
        )
        self.tensor(norm, "f32", (self.hidden,), "weight")
        self.graph.add(
            RMSNORM, "norm", count=count, x=last, w=norm, y=last, groups=1, k=self.hidden, eps=eps
        )
        logits = self.tensor("logits", "f32", (rows, vocab), "output")
        self.weight(table, vocab, self.hidden)
        self.graph.add(
            GEMM, "lm_head", count=count, x=last, w=table, y=logits, n=vocab, k=self.hidden
        )
        chosen = self.tensor("next", "i32", (rows,), "output")
        self.graph.add(ARGMAX, "argmax", count=count, x=logits, y=chosen, n=vocab)
        return self.graph
