"""Read a timeline.

A trace has a row for each task: its worker, its node, and three times in nanoseconds: when it was
picked up (start), when its waits were over (ready), and when it was done (end). Say how each
worker spent the span from the first start to the last end: the share in which it was busy,
waiting, and idle. Then name the node before which most time was spent waiting.
"""

import numpy as np


def shares(worker: np.ndarray, times: np.ndarray, workers: int) -> np.ndarray:
    """Busy, waiting and idle share of each worker: float64 [workers, 3].

    `worker` is int [tasks]; `times` int64 [tasks, 3] holds start, ready, end.
    """
    span = times[:, 2].max() - times[:, 0].min()
    out = np.zeros((workers, 3))
    for w in range(workers):
        mine = times[worker == w]
        # blank: the three shares, which add up to 1
        out[w, 0] = (mine[:, 2] - mine[:, 1]).sum() / span
        out[w, 1] = (mine[:, 1] - mine[:, 0]).sum() / span
        out[w, 2] = 1 - out[w, 0] - out[w, 1]
        # end
    return out


def longest_wait(node: np.ndarray, times: np.ndarray) -> int:
    """The node before whose tasks most time was spent waiting, all workers together."""
    # blank
    return int(np.argmax(np.bincount(node, weights=times[:, 1] - times[:, 0])))
    # end


# === check
HINT = "Busy is end - ready, waiting is ready - start; np.bincount adds up by node."
READ = "A chain"
WRONG = ("mine[:, 1] - mine[:, 0]", "mine[:, 2] - mine[:, 0]")


def check(yours, report):
    """A simulated step of three workers."""
    from mkport.models import family_of, parse_config
    from mkport.models.sizes import config_of
    from mkport.models.step import StepShape
    from mkport.plan import deal
    from mkport.trace import summarise
    from mkport.trace.simulate import Costs, simulate
    from mkport.trace.sketch import sketch

    fields = config_of("llama", "tiny")
    graph = family_of(fields).build(parse_config(fields), StepShape(rows=1, context=64))
    trace = simulate(deal(graph.first(9), 3), Costs(1e9), "nine nodes of a tiny model")
    report.say(*("    " + line for line in sketch(trace, 60).splitlines()))
    found = summarise(trace)
    wanted = np.array([[w.busy, w.waiting, w.idle] for w in found.workers])
    report.array("shares", yours.shares(trace.worker, trace.times, 3), wanted, tile=(1, 3))
    got = yours.longest_wait(trace.node, trace.times)
    report.equal("longest wait", trace.nodes[got][0], found.top_waits[0].label)
