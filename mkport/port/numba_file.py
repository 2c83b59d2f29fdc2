"""A Python file with Numba kernels as it is read: functions, constants, signatures; and what is
known of a kernel's names. Nothing is imported or translated here."""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from mkport.errors import UserError


class NumbaRefused(UserError):
    """A kernel that cannot be translated. `line` is in the Python file."""

    def __init__(self, path: Path, line: int, what: str) -> None:
        super().__init__(f"{path}:{line}: {what}")
        self.line = line


def read_module(path: Path) -> "Module":
    """Reads a Python file. Raises UserError where it is none."""
    try:
        return Module(path, ast.parse(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read as Python: {error}.") from error


class Module:
    """The Python file: its kernels, its device functions and its constants."""

    def __init__(self, path: Path, tree: ast.Module) -> None:
        self.path = path
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}
        self.constants: dict[str, int | float] = {}
        for node in tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                value = constant(node.value, self.constants)
                if value is not None:
                    self.constants[node.targets[0].id] = value

    def kernel(self, name: str | None) -> ast.FunctionDef:
        """The kernel of this name, or the only one. Raises UserError naming what there is."""
        kernels = {
            f.name: f
            for f in self.functions.values()
            if any("cuda.jit" in ast.unparse(d) for d in f.decorator_list)
            and not any("device=True" in ast.unparse(d) for d in f.decorator_list)
        }
        if name is None and len(kernels) == 1:
            return next(iter(kernels.values()))
        if name in kernels:
            return kernels[name]
        there = ", ".join(kernels) or "none"
        raise UserError(f"{self.path}: name one of its @cuda.jit kernels: {there}.")

    def refuse(self, node: ast.AST, what: str) -> NoReturn:
        """Raises NumbaRefused for a place in the file."""
        raise NumbaRefused(self.path, getattr(node, "lineno", 0), what)


def constant(node: ast.AST, known: Mapping[str, int | float]) -> int | float | None:
    """The number that an expression of literals and known names is."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float):
        return node.value  # type: ignore[return-value]
    if isinstance(node, ast.Name):
        return known.get(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        value = constant(node.operand, known)
        return None if value is None else -value
    if isinstance(node, ast.BinOp):
        left, right = constant(node.left, known), constant(node.right, known)
        if left is None or right is None:
            return None
        try:
            return eval(f"({left!r}) {_symbol(node.op)} ({right!r})", {"__builtins__": {}})
        except (ArithmeticError, SyntaxError, TypeError):
            return None
    return None


def _symbol(op: ast.operator) -> str:
    names = {"Add": "+", "Sub": "-", "Mult": "*", "FloorDiv": "//", "Div": "/", "Mod": "%"}
    return names.get(type(op).__name__, "?")


def signature_of(function: ast.FunctionDef) -> str | None:
    """The argument types that the decorator names."""
    for decorator in function.decorator_list:
        if not isinstance(decorator, ast.Call) or not decorator.args:
            continue
        given = decorator.args[0]
        if isinstance(given, ast.Constant) and isinstance(given.value, str):
            return given.value.partition("(")[2].rpartition(")")[0] or given.value
        if isinstance(given, ast.Call):  # void(float32[:], int32)
            return ", ".join(ast.unparse(arg) for arg in given.args)
        if isinstance(given, ast.Tuple):
            return ", ".join(ast.unparse(item) for item in given.elts)
    return None


def split_types(text: str) -> list[str]:
    """A signature's parts: commas inside brackets do not divide them."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip()]


@dataclass
class Scope:
    """What is known of a kernel's names."""

    types: dict[str, Any] = field(default_factory=dict)  # variables and scalar arguments
    arrays: dict[str, Any] = field(default_factory=dict)  # arguments
    local: dict[str, tuple[Any, tuple[int, ...], str]] = field(default_factory=dict)
    negative: set[str] = field(default_factory=set)  # variables that may be below zero
    assigned: set[str] = field(default_factory=set)  # variables, somewhere
    written: set[str] = field(default_factory=set)  # arrays
    sizes: set[tuple[str, int]] = field(default_factory=set)  # of arrays, that are used
    loops: list[str] = field(default_factory=list)  # variables of the loops around
