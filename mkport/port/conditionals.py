"""Conditionals of a text: which branches no compiler of a port takes, and constant expressions.

Lines keep their numbers.
"""

import ast
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mkport.port.lexer import tokens
from mkport.port.macros import DIRECTIVE, Macro, empty_lines, expand_text, logical_lines, read_macro

# What the compilers of a composed file define; unknown where they disagree.
COMPILERS: dict[str, str | None] = {
    "__CUDACC__": None,
    "__CUDA_ARCH__": None,
    "__CUDACC_RTC__": None,
    "__NVCC__": None,
    "__GNUC__": None,
    "MK_HOST": None,
    "__cplusplus": "201703L",
}
GPU = {"__CUDACC__": "1", "__CUDA_ARCH__": "900", "__CUDACC_RTC__": "1"}


def resolve(text: str, defines: Mapping[str, str], view: Mapping[str, str] | None = None) -> str:
    """The text without the branches that no compiler of the port takes.

    A condition on what the compilers disagree about (`__CUDACC__`, `__CUDA_ARCH__`) stays, unless
    `view` says how one compiler has it. Lines that go leave an empty line behind.
    """
    known: dict[str, Macro | None] = {}
    for name, value in {**COMPILERS, **(view or {})}.items():
        known[name] = None if value is None else Macro(name, None, tuple(tokens(value)))
    if view is not None:
        known = {name: macro for name, macro in known.items() if macro is not None}
    known |= {name: Macro(name, None, tuple(tokens(value))) for name, value in defines.items()}
    out: list[str] = []
    stack: list[_Branch] = []
    for chunk in logical_lines(text):
        found = DIRECTIVE.match(chunk)
        word, rest = (found[1], found[2]) if found else ("", "")
        live = all(branch.live is not False for branch in stack)
        if word in ("if", "ifdef", "ifndef"):
            holds = _condition(word, rest, known) if live else False
            stack.append(_Branch(holds, taken=holds is True, kept=live and holds is None))
            out.append(chunk if stack[-1].kept else empty_lines(chunk))
        elif word in ("elif", "else") and stack:
            top = stack[-1]
            outer = all(branch.live is not False for branch in stack[:-1])
            if top.kept:
                out.append(chunk)
            else:
                if top.taken or not outer:
                    top.live = False
                else:
                    top.live = True if word == "else" else _condition("if", rest, known) or False
                    top.taken = bool(top.live)
                out.append(empty_lines(chunk))
        elif word == "endif" and stack:
            out.append(chunk if stack.pop().kept else empty_lines(chunk))
        elif not live:
            out.append(empty_lines(chunk))
        else:
            if word == "define":
                macro = read_macro(rest, 0)
                if macro is not None:
                    known[macro.name] = macro
            elif word == "undef":
                known.pop(rest.strip(), None)
            out.append(chunk)
    return "".join(out)


@dataclass
class _Branch:
    live: bool | None  # None: left to the compiler
    taken: bool
    kept: bool


def _condition(word: str, rest: str, known: Mapping[str, Macro | None]) -> bool | None:
    rest = "".join(" " if t.kind == "comment" else t.text for t in tokens(rest)).replace("\\\n", "")
    if word in ("ifdef", "ifndef"):
        name = rest.strip()
        if name in known and known[name] is None:
            return None
        return (name in known) == (word == "ifdef")
    value = evaluate_condition(rest, known)
    return None if value is None else bool(value)


def evaluate_condition(text: str, known: Mapping[str, Macro | None]) -> int | None:
    """The value of an `#if`; None where it depends on what the compilers disagree about."""
    unknown = False

    def asked(found: re.Match[str]) -> str:
        nonlocal unknown
        name = found[1] or found[2]
        if name in known and known[name] is None:
            unknown = True
        return "1" if name in known else "0"

    text = re.sub(r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))", asked, text)
    text = re.sub(r"\b__has_\w+\s*\([^)]*\)", "0", text)
    given = {name: macro for name, macro in known.items() if macro is not None}
    text = expand_text(text, given)
    if any(name in known for name in re.findall(r"[A-Za-z_]\w*", text)):
        unknown = True
    if unknown:
        return None
    text = re.sub(r"\b(\d+)[uUlL]+\b", r"\1", text)
    text = re.sub(r"\b(?!0[xX])[A-Za-z_]\w*\b", "0", text)
    return integer_value(text)


_BINARY: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.LShift: operator.lshift,
    ast.RShift: operator.rshift,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def integer_value(text: str) -> int | None:
    """The value of a constant C expression of numbers alone; None where it is none."""
    text = re.sub(r"\b(0[xX][0-9a-fA-F]+|\d+)[uUlL]+\b", r"\1", text).replace("/", "//")
    text = re.sub(r"&&", " and ", text)
    text = re.sub(r"\|\|", " or ", text)
    text = re.sub(r"!(?!=)", " not ", text)
    text = re.sub(r"\b(true|false)\b", lambda m: "1" if m[0] == "true" else "0", text)
    text = re.sub(r"\b0+(?=\d)", "", text) if not re.search(r"\b0[0-7]+\b", text) else ""
    while "?" in text:
        found = re.fullmatch(r"([^?]*)\?([^:?]*):(.*)", text, re.DOTALL)
        if not found:
            return None
        text = f"(({found[2]}) if ({found[1]}) else ({found[3]}))"
    try:
        return _value(ast.parse(text.strip(), mode="eval").body)
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError):
        return None


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return int(node.value)
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left), _value(node.right)
        if isinstance(node.op, ast.FloorDiv | ast.Mod):
            quotient = abs(left) // abs(right) * (1 if (left < 0) == (right < 0) else -1)
            return quotient if isinstance(node.op, ast.FloorDiv) else left - quotient * right
        if type(node.op) in _BINARY:
            return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand)
        if isinstance(node.op, ast.Not):
            return int(not value)
        return {ast.USub: -value, ast.UAdd: value, ast.Invert: ~value}[type(node.op)]
    if isinstance(node, ast.BoolOp):
        values = [_value(v) for v in node.values]
        return int(all(values) if isinstance(node.op, ast.And) else any(values))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        left, right = _value(node.left), _value(node.comparators[0])
        return int(_COMPARE[type(node.ops[0])](left, right))
    if isinstance(node, ast.IfExp):
        return _value(node.body) if _value(node.test) else _value(node.orelse)
    raise ValueError("not a constant")
