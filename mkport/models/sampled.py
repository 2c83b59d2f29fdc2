"""A family's step whose tokens are chosen on the machine itself in every way that a request can ask
for, not greedily alone.

What a row's words mean is the op `sample`'s business; who fills them, the engine's.
"""

from mkport.kernels.sample.op import COLUMNS, GROUP, WORDS
from mkport.kernels.sample.op import OP as SAMPLE
from mkport.kernels.sample_join.op import OP as JOIN
from mkport.kernels.sample_join.op import RIVALS
from mkport.models.step import FULL_TABLE, WINDOW_TABLE
from mkport.plan import Graph

TABLES = ("mask", "bias", "tally")  # of a sequence: what its logits are changed by


def sampled(graph: Graph) -> Graph:
    """A family's step with `sample` and `sample_join` in place of the `argmax` at its end.

    It has more inputs: `sampling`, the rows' words, int32 [rows, 16]; and each sequence's `mask`
    int32 [sequences, padded / 32] and `bias` float32 [sequences, padded]; and a state, its `tally`
    int32 [sequences, padded]; rows read those that their words name. And more outputs: `ids` int32
    [rows, 20] and `logprobs` float32 [rows, 21]. Padded is the vocabulary's size up to a multiple
    of 128. Raises ValueError for a step that ends otherwise.
    """
    last = graph.nodes[-1]
    if last.op.name != "argmax":
        raise ValueError(f"the step ends with {last.op.name}, not with argmax")
    step = graph.first(len(graph.nodes) - 1)
    logits, count, n = last.args["x"], last.args["count"], last.args["n"]
    rows, parts, groups = graph.tensors[logits].shape[0], -(-n // COLUMNS), -(-n // GROUP)
    tables = [graph.tensors[name] for name in (FULL_TABLE, WINDOW_TABLE) if name in graph.tensors]
    sequences, padded = max((table.shape[0] for table in tables), default=rows), groups * GROUP
    step.tensor("sampling", "i32", (rows, WORDS), "input")
    step.tensor("mask", "i32", (sequences, padded // 32), "input")
    step.tensor("bias", "f32", (sequences, padded), "input")
    step.tensor("tally", "i32", (sequences, padded), "state")
    step.tensor("scores", "f32", (rows, padded), "scratch")
    step.tensor("best", "f32", (rows, parts), "scratch")
    step.tensor("at", "i32", (rows, parts), "scratch")
    step.tensor("peaks", "f32", (rows, 2, groups), "scratch")
    step.tensor("sums", "f32", (rows, 2, groups), "scratch")
    step.tensor("ids", "i32", (rows, RIVALS), "output")
    step.tensor("logprobs", "f32", (rows, RIVALS + 1), "output")
    left = {name: name for name in ("scores", "best", "at", "peaks", "sums", "tally")}
    both = {"count": count, "x": logits, "index": "logit_rows", "rows": "rows", "n": n, **left}
    step.add(SAMPLE, "sample", sampling="sampling", mask="mask", bias="bias", **both)
    said = {"y": last.args["y"], "ids": "ids", "logprobs": "logprobs"}
    step.add(JOIN, "sample_join", sampling="sampling", **said, **both)
    return step
