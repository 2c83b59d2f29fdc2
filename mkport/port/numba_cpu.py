"""Ports a Numba `@njit` function to the CPU machine, and runs it there beside the original.

Numba compiles both forms, so both have the same bits. The rewriting is `numba_tiles.py`'s.
"""

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mkport.compose import compose_cpu
from mkport.declare import Op
from mkport.declare.table import Kind
from mkport.errors import UserError
from mkport.machines.cpu.machine import CpuMachine
from mkport.machines.cpu.memory import allocate
from mkport.plan import Graph, deal
from mkport.port.check import shuffled
from mkport.port.numba_file import Module, read_module, signature_of
from mkport.port.numba_tiles import NjitPort, PortedNjit
from mkport.port.scaffold import check_name
from mkport.testing.parts import load_file
from mkport.verify import verify


def port_njit(path: Path, function: str | None = None, signature: str | None = None) -> PortedNjit:
    """Ports an `@njit` function of a Python file.

    `function` may be left out where the file has one; `signature` gives the argument types, such as
    "float32[:,:], float32[:,:], int32", unless the decorator does. Raises UserError, and
    NumbaRefused with a line for what is not seen to be a set of independent tiles.
    """
    return njit_port(path, function_of(path, function), signature).ported()


def function_of(path: Path, name: str | None) -> ast.FunctionDef:
    """The `@njit` function of a Python file: the named one, or the one that no other calls.

    Raises UserError where there is none, and for a name that no op can have.
    """
    node = _function(read_module(path), name)
    check_name(node.name)
    return node


def njit_port(path: Path, node: ast.FunctionDef, signature: str | None = None) -> NjitPort:
    """The port of a function, begun: `port_njit` says what of. Raises NumbaRefused."""
    return NjitPort(read_module(path), node, signature or signature_of(node) or "")


def run_njit(
    ported: PortedNjit, given: Mapping[str, Any], folder: Path, workers: int = 2, seed: int = 0
) -> dict:
    """Runs the written port in `folder` on the CPU machine: the arrays afterwards, by name. With a
    `seed`, its tiles are dealt to the workers at random."""
    op: Op = load_file(folder / ported.name / "op.py").OP
    graph = Graph()
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, Any] = {}
    for arg in op.args:
        if arg.kind == "tensor":
            array = given[arg.name]
            kind: Kind = "state"
            values[arg.name] = graph.tensor(arg.name, arg.dtype, array.shape, kind)
            arrays[arg.name] = allocate(arg.dtype, array.shape)
            arrays[arg.name][...] = array
        elif arg.name in ported.sizes:
            name, axis = ported.sizes[arg.name]
            values[arg.name] = int(given[name].shape[axis])
        else:
            values[arg.name] = given[arg.name]
    graph.add(op, op.name, **values)
    schedule = shuffled(graph, workers, seed) if seed else deal(graph, workers)
    verify(schedule)
    with CpuMachine(compose_cpu([op], "f32", "f32"), schedule, arrays) as machine:
        machine.step()
        return {name: machine.tensors[name].copy() for name in ported.arrays}


def same_bits(ported: PortedNjit, given: Mapping[str, Any], folder: Path, workers: int = 2) -> bool:
    """Whether the original, which is imported and run, and the port leave the same bits."""
    original = getattr(load_file(ported.path), ported.name)
    copies = {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in given.items()}
    original(**copies)
    got = run_njit(ported, given, folder, workers)
    return all(got[name].tobytes() == copies[name].tobytes() for name in ported.arrays)


def _function(module: Module, name: str | None) -> ast.FunctionDef:
    found = {
        f.name: f
        for f in module.functions.values()
        if any("jit" in ast.unparse(d) and "cuda" not in ast.unparse(d) for d in f.decorator_list)
    }
    if name is None:
        called = {
            n.func.id for f in found.values() for n in ast.walk(f)
            if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
        }  # fmt: skip
        outer = [f for f in found.values() if f.name not in called]
        if len(outer) == 1:
            return outer[0]
    if name in found:
        return found[name]
    there = ", ".join(found) or "none"
    raise UserError(f"{module.path}: name one of its @njit functions: {there}.")
