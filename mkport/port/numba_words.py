"""The words that an `@njit` function may use and keep its meaning as a task: what each tile can do
by itself, with names that the composed file knows."""

import ast
import builtins
import math

import numpy as np

from mkport.port.numba_file import Module

MODULES = {"math": math, "np": np}
BUILTINS = frozenset(
    "abs bool divmod enumerate float int len max min pow range round zip True False None".split()
)
REFUSED: tuple[tuple[type | tuple[type, ...], str], ...] = (
    ((ast.Raise, ast.Assert), "a task has nobody to raise to: leave the check to the caller"),
    ((ast.Try, ast.With), "a task has no exceptions to handle and no contexts to enter"),
    ((ast.Global, ast.Nonlocal), "a task shares its tensors alone"),
    ((ast.FunctionDef, ast.Lambda), "make it an @njit function of the file"),
    ((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), "write it as a loop"),
    ((ast.Yield, ast.YieldFrom, ast.Await), "a tile is computed in one go"),
)


def refuse_foreign(module: Module, function: ast.FunctionDef, own: set[str]) -> None:
    """Raises NumbaRefused for the first statement or name that a task does not have.

    `own` are the function's parameters and variables.
    """
    inside = [n for statement in function.body for n in ast.walk(statement)]
    for node in inside:
        for kinds, why in REFUSED:
            if isinstance(node, kinds):
                text = ast.unparse(node).split("\n")[0]
                module.refuse(node, f"`{text}`: {why}.")
        if isinstance(node, ast.Attribute) and ast.unparse(node).startswith("np.random"):
            module.refuse(node, "what np.random gives depends on who asked before: pass it in.")
        if not isinstance(node, ast.Name) or not isinstance(node.ctx, ast.Load):
            continue
        if node.id in own or node.id in module.constants or node.id in module.functions:
            continue
        if node.id == "print":
            module.refuse(node, "a task does not print: leave it out.")
        if node.id not in MODULES and node.id not in BUILTINS and node.id != "prange":
            known = "a function of Python that tasks lack" if hasattr(builtins, node.id) else (
                "no number or function of this file")  # fmt: skip
            module.refuse(
                node, f"{node.id} is {known}; modules are known as math and np, and numbers where "
                "the file sets them.",
            )  # fmt: skip
