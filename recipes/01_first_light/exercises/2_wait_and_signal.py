"""A wait and a signal, by hand.

Two workers, two jobs. Worker 0 writes three tiles and then signals once, adding 1 for each tile.
Worker 1 may begin when all of them are there. Fill in what worker 0 adds, and the target that
worker 1 waits for. The check runs your two lists in many random orders, tile by tile.
"""

TILES = 3


def signal() -> tuple[int, int]:
    """(counter, amount) of the record that writes the three tiles."""
    # blank
    return 0, TILES
    # end


def wait() -> tuple[int, int]:
    """(counter, target) of the record that reads them."""
    # blank
    return 0, TILES
    # end


# === check
HINT = "A record signals once, at its end, for all of its tiles. The target is the sum of signals."
READ = "Who does it: a schedule"
WRONG = ("return 0, TILES\n    # end\n\n\n# ===", "return 0, 0\n    # end\n\n\n# ===")


def check(yours, report):
    """Runs the two records under the interpreter with many seeds, over two steps."""
    from dataclasses import replace

    from mkport.kernels.gemm.op import OP
    from mkport.machines.interpret import Stuck, interpret
    from mkport.plan import Graph, deal

    graph = Graph()
    graph.tensor("count", "i32", (1,), "input")
    for name, kind, width in (("x", "input", 16), ("h", "scratch", 48), ("y", "output", 16)):
        graph.tensor(name, "f32", (1, width), kind)
    graph.tensor("a", "bf16", (48, 16), "weight")
    graph.tensor("b", "bf16", (16, 48), "weight")
    graph.add(OP, "three tiles", count="count", x="x", w="a", y="h", n=48, k=16)
    graph.add(OP, "one tile", count="count", x="h", w="b", y="y", n=16, k=48)
    dealt = deal(graph, 1)
    first, second = (dealt.lists[0][i : i + 1].copy() for i in (0, 1))
    from mkport.declare import RECORD

    first[0, RECORD["signal"].first : RECORD["signal"].end] = yours.signal()
    second[0, RECORD["waits"].first : RECORD["waits"].first + 2] = yours.wait()
    schedule = replace(dealt, lists=(first, second))
    for seed in range(60):
        done: list[str] = []
        try:
            interpret(
                schedule, lambda node, tile, done=done: done.append(node.label), seed, steps=2
            )
        except Stuck as stuck:
            report.holds("nobody waits for ever", False, str(stuck))
        early = done.index("one tile") < 3
        if early:
            report.say(f"    order under seed {seed}: {', '.join(done)}")
        if early or done[4:].index("one tile") < 3:
            report.holds("the reader comes last", False, "it read before all tiles were written")
    report.holds("60 random orders, two steps each", True, "")
