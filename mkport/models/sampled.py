"""A family's step whose tokens are chosen at a temperature on the machine itself, not greedily.

What a row's words mean is the op `sample`'s business; who fills them, the engine's.
"""

from mkport.kernels.sample.op import COLUMNS, WORDS
from mkport.kernels.sample.op import OP as SAMPLE
from mkport.kernels.sample_join.op import OP as JOIN
from mkport.plan import Graph


def sampled(graph: Graph) -> Graph:
    """A family's step with `sample` and `sample_join` in place of the `argmax` at its end.

    It has one more input, `sampling`, the rows' words: int32 [rows, 4]. Raises ValueError for a
    step that ends otherwise.
    """
    last = graph.nodes[-1]
    if last.op.name != "argmax":
        raise ValueError(f"the step ends with {last.op.name}, not with argmax")
    step = graph.first(len(graph.nodes) - 1)
    logits, count, n = last.args["x"], last.args["count"], last.args["n"]
    rows, parts = graph.tensors[logits].shape[0], -(-n // COLUMNS)
    step.tensor("sampling", "i32", (rows, WORDS), "input")
    step.tensor("best", "f32", (rows, parts), "scratch")
    step.tensor("at", "i32", (rows, parts), "scratch")
    step.add(
        SAMPLE,
        "sample",
        count=count,
        x=logits,
        sampling="sampling",
        index="logit_rows",
        rows="rows",
        best="best",
        at="at",
        n=n,
    )
    y = last.args["y"]
    step.add(JOIN, "sample_join", count=count, best="best", at="at", y=y, parts=parts)
    return step
