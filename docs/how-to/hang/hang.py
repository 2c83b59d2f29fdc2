"""A schedule that hangs: what the verifier says, and the machine when it is run all the same."""

import numpy as np

from mkport.compose import compose_cpu
from mkport.declare import RECORD
from mkport.kernels.rmsnorm.op import OP as RMSNORM
from mkport.machines.cpu.machine import CpuMachine, Stuck
from mkport.plan import Graph, deal
from mkport.verify import Refused, verify

graph = Graph()
graph.tensor("count", "i32", (1,), "input")
graph.tensor("scale", "f32", (64,), "weight")
graph.tensor("x", "f32", (4, 64), "input")
graph.tensor("h", "f32", (4, 64), "scratch")
graph.tensor("y", "f32", (4, 64), "output")
graph.add(RMSNORM, "first", count="count", x="x", w="scale", y="h", groups=1, k=64, eps=1e-5)
graph.add(RMSNORM, "second", count="count", x="h", w="scale", y="y", groups=1, k=64, eps=1e-5)
schedule = deal(graph, workers=2)
verify(schedule)

# Somebody loses a signal: the first record of worker 1 tells nobody that it is done.
schedule.lists[1][0][RECORD["signal"].first] = -1

try:
    verify(schedule)
except Refused as refused:
    print(f"the verifier: {refused}\n")

program = compose_cpu(graph.ops, "f32", "f32")
with CpuMachine(program, schedule, {"scale": np.ones(64, np.float32)}, limit_s=0.3) as machine:
    machine.tensors["count"][:] = 4
    try:
        machine.step()
    except Stuck as stuck:
        print(f"the machine: {stuck}")
