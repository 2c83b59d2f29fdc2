"""The pieces that decoder families build a step out of: inputs, blocks, head.

A family's `build` calls these in program order. Nothing here knows a family: what differs is an
argument. Scratch is shared by all layers; the planner orders its reuse.
"""

from dataclasses import dataclass
from typing import Any

from mkport.declare import DTYPE_BYTES, spread_step
from mkport.declare.table import Kind
from mkport.errors import UserError
from mkport.kernels.argmax.op import OP as ARGMAX
from mkport.kernels.attention.op import OP as ATTENTION
from mkport.kernels.attention.op import splits_kept
from mkport.kernels.attention_combine.op import OP as COMBINE
from mkport.kernels.attention_combine.op import warps_for
from mkport.kernels.embed.op import OP as EMBED
from mkport.kernels.gemm.op import MOST_TOKENS, NORMED, TOKENS
from mkport.kernels.gemm.op import OP as GEMM
from mkport.kernels.gemm_rope.op import OP as GEMM_ROPE
from mkport.kernels.gemm_silu.op import OP as GEMM_SILU
from mkport.kernels.layernorm.op import OP as LAYERNORM
from mkport.kernels.rmsnorm.op import OP as RMSNORM
from mkport.kernels.rope.op import OP as ROPE
from mkport.kernels.select.op import OP as SELECT
from mkport.plan import Graph

KEYS = 16  # that attention reads at a time, from one page
FULL_TABLE, WINDOW_TABLE = "page_table", "window_page_table"  # where the pages of a sequence are


@dataclass(frozen=True)
class StepShape:
    """The sizes of a step that are the server's choice, not the model's.

    Raises UserError for a page that attention cannot read.
    """

    rows: int  # tokens a step can hold
    context: int  # positions a sequence can reach
    sequences: int = 1  # sequences a step can hold tokens of
    logits: int = 1  # rows whose logits a step can give
    page: int = 64  # keys in a page of the cache, a multiple of 16
    pages: int = 0  # pages of the pool; 0: enough for every sequence's full context
    window_pages: int = 0  # the same of the pool of layers with a window
    weights: str = "bf16"  # storage of weights: "bf16" or "f32"
    cache: str = "bf16"  # storage of the key-value cache: "bf16" or "f32"
    stage: int = 0  # bytes that a product's inputs may take in a GPU worker's memory; 0: any

    def __post_init__(self) -> None:
        if self.page < KEYS or self.page % KEYS:
            raise UserError(
                f"A page of {self.page} keys cannot be read: attention takes {KEYS} keys at a "
                f"time, so give a page that is a positive multiple of {KEYS}."
            )

    @property
    def pages_per_sequence(self) -> int:
        """Pages that a full context takes."""
        return -(-self.context // self.page)

    @property
    def pool(self) -> int:
        """Pages of the pool of layers that see everything."""
        return self.pages or self.pages_per_sequence * self.sequences

    @property
    def window_pool(self) -> int:
        """Pages of the pool of layers with a window."""
        return self.window_pages or self.pages_per_sequence * self.sequences

    def splits(self, window: int) -> int:
        """Attention splits that a token of a full context can see, with a `window` of so many keys,
        its own included; 0: all."""
        return splits_kept(self.context, window)

    def block(self, k: int) -> int:
        """Tokens that a tile of a product over `k` columns takes; 0: all.

        As many as fit `stage`, which may be less than 8, and as a GPU multiplies side by side at
        most.
        """
        if not self.stage or self.rows <= TOKENS:
            return 0
        fit = self.stage // (k * DTYPE_BYTES[self.weights] + 16) // TOKENS * TOKENS
        return max(TOKENS, min(fit, MOST_TOKENS, -(-self.rows // TOKENS) * TOKENS))

    @property
    def folded(self) -> bool:
        """Whether products norm their inputs themselves. On a GPU every other worker waits for a
        norm by itself; a step of more rows would norm them one after the other."""
        return bool(self.stage) and self.rows == 1

    @property
    def slot_pairs(self) -> int:
        """Pairs of a slot of the experts; 0: any number."""
        return TOKENS if self.stage and self.rows > TOKENS else 0


@dataclass(frozen=True)
class Heads:
    """A layer's attention shape."""

    heads: int
    kv_heads: int
    head_dim: int
    rope: bool = True  # rotates queries and keys
    half_split: bool = True  # pairs (i, i + head_dim / 2), else (2 i, 2 i + 1)
    window: int = 0  # keys a query sees, its own included; 0: all
    norm_eps: float | None = None  # queries' and keys' heads are normed before they rotate


@dataclass(frozen=True)
class Norm:
    """How a model norms its residual stream."""

    eps: float
    mean: bool = False  # LayerNorm: the mean is taken off first; else RMSNorm


@dataclass(frozen=True)
class Input:
    """What products read: the rows of scratch `x`, or their norm."""

    x: str
    norm_w: str | None = None
    norm_eps: float = 0.0

    @property
    def args(self) -> dict[str, Any]:
        """As a product is told."""
        return {"x": self.x, "norm_w": self.norm_w, "norm_eps": self.norm_eps}


class Step:
    """A step graph under construction; methods append nodes and name the tensors they write."""

    def __init__(self, shape: StepShape, hidden: int) -> None:
        self.graph = Graph()
        self.shape = shape
        self.hidden = hidden
        self.tensor("count", "i32", (1,), "input")
        self.tensor("tokens", "i32", (shape.rows,), "input")
        self.tensor("rows", "i32", (shape.rows, 2), "input")  # (sequence, position)
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
        """Adds a tensor, or returns it when it is there already with the same shape; raises
        ValueError when it has another."""
        known = self.graph.tensors.get(name)
        if known is None:
            return self.graph.tensor(name, dtype, shape, kind, logical)
        if known.shape != tuple(shape):
            raise ValueError(f"tensor {name!r} is {known.shape}, asked for as {tuple(shape)}")
        return name

    def weight(self, name: str, *shape: int) -> str:
        """A weight of this shape in the step's storage type."""
        return self.tensor(name, self.shape.weights, shape, "weight")

    def scratch(self, name: str, *shape: int) -> str:
        """Float32 scratch of this shape."""
        return self.tensor(name, "f32", shape, "scratch")

    def embed(self, table: str, vocab: int) -> None:
        """x[t] = table[tokens[t]]: `table` [vocab, hidden], x [rows, hidden]."""
        self.weight(table, vocab, self.hidden)
        self.graph.add(
            EMBED, "embed", count="count", tokens="tokens", table=table, y="x", k=self.hidden
        )

    def norm(self, label: str, weight: str, norm: Norm) -> Input:
        """h [rows, hidden] = norm(x), with the `weight` [hidden]; returns h."""
        h = self.scratch("h", self.shape.rows, self.hidden)
        self._norm(label, "count", "x", h, weight, norm)
        return Input(h)

    def normed(self, label: str, weight: str, norm: Norm) -> Input:
        """As `norm`, of which nothing is left where products norm their inputs themselves."""
        if not self.folds(norm):
            return self.norm(label, weight, norm)
        return Input("x", self.tensor(weight, "f32", (self.hidden,), "weight"), norm.eps)

    def folds(self, norm: Norm) -> bool:
        """Whether products of rows [rows, hidden] norm them so themselves."""
        return self.shape.folded and self.hidden <= NORMED and not norm.mean

    def carried(self, weight: str, norm: Norm) -> dict[str, Any]:
        """What an op is told that leaves h = norm(x) where it writes x last."""
        return {
            "w": self.tensor(weight, "f32", (self.hidden,), "weight"),
            "h": self.scratch("h", self.shape.rows, self.hidden),
            "mean": int(norm.mean),
            "eps": norm.eps,
        }

    def _norm(self, label: str, count: str, x: str, y: str, weight: str, norm: Norm) -> None:
        self.tensor(weight, "f32", (self.hidden,), "weight")
        args = {"count": count, "x": x, "w": weight, "y": y, "k": self.hidden, "eps": norm.eps}
        if norm.mean:
            self.graph.add(LAYERNORM, label, **args)
        else:
            self.graph.add(RMSNORM, label, groups=1, **args)

    def page_table(self, a: Heads) -> str:
        """The page table that a layer's attention follows: each kind of layer has a pool and a
        table of its own. Rows are sequences, columns their pages from position 0 on.

        Attention never reads an entry whose keys all lie before the window of every token in the
        step, so the page of such an entry may belong to others already.
        """
        name = WINDOW_TABLE if a.window else FULL_TABLE
        shape = (self.shape.sequences, self.shape.pages_per_sequence)
        return self.tensor(name, "i32", shape, "input")

    def rope_table(self, name: str, head_dim: int) -> str:
        """Cosines, then sines, of every position, float32 [context, head_dim]; filled by the
        loader."""
        return self.tensor(name, "f32", (self.shape.context, head_dim), "weight")

    def attention(self, layer: int, h: Input, prefix: str, a: Heads) -> str:
        """Queries, cached keys and values, attention; returns [rows, heads * head_dim]."""
        self.project(layer, h, prefix, a)
        self.attend(layer, a)
        return self.join_splits(layer, a)

    def project(self, layer: int, h: Input, prefix: str, a: Heads) -> None:
        """Queries of `h` [rows, hidden] to scratch [rows, heads * head_dim], its keys and values to
        the cache [pages, kv_heads, page, head_dim]."""
        rope = self.rope_table("rope", a.head_dim) if a.rope else None
        for part in ("v", "k", "q"):  # q last: all workers have some of it, and end together
            if a.norm_eps is None or part == "v":
                self._projected(layer, h, prefix, a, part, None if part == "v" else rope)
            else:
                self._heads(layer, h, prefix, a, part)
        if a.norm_eps is not None:  # last: few workers have some, and would wait for all before
            for part in ("k", "q"):
                self._normed(layer, prefix, a, part, rope)

    def _placed(self, layer: int, a: Heads, part: str, rope: str | None) -> dict[str, Any]:
        """What a projection's last op is told: where its heads go, and how they rotate."""
        shape, cached = self.shape, part != "q"
        return {
            "count": "count",
            "rows": "rows",
            "rope": rope,
            "page_table": self.page_table(a) if cached else None,
            "y": None if cached else self.scratch("q", shape.rows, a.heads * a.head_dim),
            "pages": self._pages(layer, a, part) if cached else None,
            "heads": a.kv_heads if cached else a.heads,
            "head_dim": a.head_dim,
            "page": shape.page,
            "pages_per_sequence": shape.pages_per_sequence,
            "half_split": int(a.half_split),
        }

    def _pages(self, layer: int, a: Heads, part: str) -> str:
        """A layer's cache of keys ("k") or values ("v")."""
        shape = self.shape
        return self.tensor(
            f"cache.{layer}.{part}",
            shape.cache,
            (
                shape.window_pool if a.window else shape.pool,
                a.kv_heads,
                shape.page,
                a.head_dim,
            ),
            "state",
            (shape.rows, 2, a.kv_heads * a.head_dim),
        )

    def _projected(
        self, layer: int, h: Input, prefix: str, a: Heads, part: str, rope: str | None
    ) -> None:
        """One projection that rotates as it goes."""
        placed = self._placed(layer, a, part, rope)
        width = placed["heads"] * a.head_dim
        w = self.weight(f"{prefix}.{part}_proj.weight", width, self.hidden)
        label = f"layer {layer} / {part}_proj"
        block = self.shape.block(self.hidden)
        self.graph.add(GEMM_ROPE, label, **h.args, w=w, k=self.hidden, block=block, **placed)

    def _heads(self, layer: int, h: Input, prefix: str, a: Heads, part: str) -> None:
        """One projection as it is."""
        width = (a.heads if part == "q" else a.kv_heads) * a.head_dim
        y = self.scratch(part, self.shape.rows, width)
        w = self.weight(f"{prefix}.{part}_proj.weight", width, self.hidden)
        self.product(f"layer {layer} / {part}_proj", "count", h, w, y, width, self.hidden)

    def _normed(self, layer: int, prefix: str, a: Heads, part: str, rope: str | None) -> None:
        """A projection's heads, normed one by one, rotated, and put where they belong."""
        self.graph.add(
            ROPE,
            f"layer {layer} / {part}_rope",
            x=part,
            w=self.tensor(f"{prefix}.{part}_norm.weight", "f32", (a.head_dim,), "weight"),
            eps=a.norm_eps,
            **self._placed(layer, a, part, rope),
        )

    def attend(self, layer: int, a: Heads) -> None:
        """Attention of the projected queries, split by split: partial sums [rows, splits, heads,
        head_dim + 16] of the splits that a token can see; of one split, what `join_splits` gives.
        """
        shape, splits = self.shape, self.shape.splits(a.window)
        out = {"y": self._attended(a)} if splits == 1 else {"partial": self._partial(a)}
        self.graph.add(
            ATTENTION,
            f"layer {layer} / attention",
            count="count",
            rows="rows",
            page_table=self.page_table(a),
            q="q",
            k_pages=self._pages(layer, a, "k"),
            v_pages=self._pages(layer, a, "v"),
            **out,
            heads=a.heads,
            kv_heads=a.kv_heads,
            head_dim=a.head_dim,
            page=shape.page,
            pages_per_sequence=shape.pages_per_sequence,
            splits=splits,
            split_step=spread_step(splits),
            window=a.window,
            scale=a.head_dim**-0.5,
        )

    def join_splits(self, layer: int, a: Heads) -> str:
        """Joins the splits of `attend`, if there are several; returns [rows, heads * head_dim]."""
        joined = self._attended(a)
        if self.shape.splits(a.window) == 1:
            return joined
        self.graph.add(
            COMBINE,
            f"layer {layer} / combine",
            count="count",
            rows="rows",
            partial=self._partial(a),
            y=joined,
            heads=a.heads,
            head_dim=a.head_dim,
            splits=self.shape.splits(a.window),
            window=a.window,
            warps=warps_for(self.shape.splits(0)),
        )
        return joined

    def _attended(self, a: Heads) -> str:
        return self.scratch("attended", self.shape.rows, a.heads * a.head_dim)

    def _partial(self, a: Heads) -> str:
        rows, splits = self.shape.rows, self.shape.splits(a.window)
        shape, logical = (rows, splits, a.heads, a.head_dim + 16), (rows, splits, a.heads)
        name = "partial" if splits == self.shape.splits(0) else f"partial{splits}"
        return self.tensor(name, "f32", shape, "scratch", logical)

    def add_product(self, label: str, x: str, weight: str, k: int) -> None:
        """x (the residual stream) [rows, hidden] += input [rows, k] times the `weight` [hidden, k]
        transposed."""
        self.weight(weight, self.hidden, k)
        self.product(label, "count", Input(x), weight, "x", self.hidden, k, residual="x")

    def hidden_product(self, label: str, x: str, weight: str, k: int) -> str:
        """The same product by itself, for a later node to add to x; returns its name."""
        self.weight(weight, self.hidden, k)
        y = self.scratch("attention_out", self.shape.rows, self.hidden)
        self.product(label, "count", Input(x), weight, y, self.hidden, k)
        return y

    def product(
        self,
        label: str,
        count: str,
        x: Input,
        w: str,
        y: str,
        n: int,
        k: int,
        residual: str | None = None,
        norm_y: str | None = None,
    ) -> None:
        """y [rows, n] = x [rows, k] times the weight w [n, k] transposed, plus the
        `residual` [rows, n] if there is one. The norm of x is left in `norm_y` [rows, k], if that
        is given."""
        args: dict[str, Any] = {**x.args, "w": w, "y": y, "n": n, "k": k, "residual": residual}
        args["norm_y"] = norm_y
        self.graph.add(GEMM, label, count=count, block=self.shape.block(k), **args)

    def gated(self, layer: int, h: Input, prefix: str, ffn: int) -> None:
        """x += down(silu(gate(h)) * up(h)): h [rows, hidden], gate and up [ffn, hidden], down
        [hidden, ffn]."""
        f = self.scratch(f"f{ffn}", self.shape.rows, ffn)
        self.graph.add(
            GEMM_SILU,
            f"layer {layer} / gate_up",
            count="count",
            **h.args,
            w_gate=self.weight(f"{prefix}.gate_proj.weight", ffn, self.hidden),
            w_up=self.weight(f"{prefix}.up_proj.weight", ffn, self.hidden),
            y=f,
            n=ffn,
            k=self.hidden,
            block=self.shape.block(self.hidden),
        )
        self.add_product(f"layer {layer} / down_proj", f, f"{prefix}.down_proj.weight", ffn)

    def head(self, weight: str, norm: Norm, table: str, vocab: int, apart: bool = False) -> Graph:
        """The wanted rows' final norm, `logits` float32 [logits, vocab] and greedy choice, `next`
        int32 [logits]; returns the finished graph. `table` is [vocab, hidden]. `apart`: the norm
        is a node in any step."""
        rows, count = self.shape.logits, "logit_count"
        last = self._wanted(weight, norm, apart)
        logits = self.tensor("logits", "f32", (rows, vocab), "output")
        self.weight(table, vocab, self.hidden)
        self.product("lm_head", count, last, table, logits, vocab, self.hidden)
        chosen = self.tensor("next", "i32", (rows,), "output")
        self.graph.add(ARGMAX, "argmax", count=count, x=logits, y=chosen, n=vocab)
        return self.graph

    def _wanted(self, weight: str, norm: Norm, apart: bool) -> Input:
        """The norm of the rows that are wanted; of a step of one row, the row is."""
        rows, count = self.shape.logits, "logit_count"
        if self.folds(norm) and not apart:
            return self.normed("norm", weight, norm)
        last = self.scratch("last", rows, self.hidden)
        self.graph.add(
            SELECT, "select", count=count, index="logit_rows", x="x", y=last, k=self.hidden
        )
        self._norm("norm", count, last, last, weight, norm)
        return Input(last)
