"""Inline PTX as C++ that a CPU runs: statements of `asm` that consist of known instructions.

What each instruction does stands in mkport/machines/host/ptx.h; which are known, in `ptx_code.py`.
A statement with another one ends a run that comes to it.
"""

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mkport.port.lexer import split_list
from mkport.port.ptx_code import Unknown, instruction
from mkport.port.syntax import Tree, find

if TYPE_CHECKING:
    from tree_sitter import Node

HEADER = "ptx.h"
NOT_HERE = "inline PTX that no CPU runs here"
UNKNOWN = f'mk_fault("{NOT_HERE} at line {{line}}");'
_STATEMENT = re.compile(
    r"(?:asm|__asm__|__asm)\s*(?:volatile|__volatile__)?\s*(?:volatile|__volatile__)?\s*\("
    r"(?P<inside>.*)\)\s*;?\s*\Z",
    re.DOTALL,
)
_STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
_OPERAND = re.compile(r'(?:\[\s*(\w+)\s*\]\s*)?"([=+&]*)([hrlfdn])"\s*\((.*)\)\Z', re.DOTALL)
_REGISTERS = re.compile(r"\.reg\s+\.\w+\s+(.*)\Z", re.DOTALL)


def translated(text: str) -> tuple[str, bool]:
    """The text with its inline assembly as C++, lines kept, and whether it has any."""
    tree = Tree(text)
    parts, at = [], 0
    for node in statements(tree):
        parts += [tree.text[at : node.start_byte], host_code(tree.of(node), tree.line(node))]
        parts.append("\n" * tree.of(node).count("\n"))
        at = node.end_byte
    return "".join([*parts, tree.text[at:]]), bool(at)


def statements(tree: Tree) -> "Iterator[Node]":
    """The inline assembly of a text, each as the statement that it is, in order."""
    for node in find(tree.root, "gnu_asm_expression"):
        outer = node.parent
        yield outer if outer is not None and outer.type == "expression_statement" else node


def host_code(statement: str, line: int = 0) -> str:
    """One statement of inline assembly as C++ in one line; `UNKNOWN` where it has what is not
    known."""
    found = _STATEMENT.match(statement.strip())
    parts = _parts(found["inside"]) if found else None
    try:
        if parts:
            return _written(*parts)
    except Unknown:
        pass
    return UNKNOWN.format(line=line)


def _parts(inside: str) -> tuple[str, list[str], list[str]] | None:
    """The code of a statement, its outputs and its inputs."""
    depth, sections, start = 0, [], 0
    at = 0
    while at < len(inside):
        if inside[at] == '"':
            string = _STRING.match(inside, at)
            if string is None:
                return None
            at = string.end()
            continue
        depth += (inside[at] in "([{") - (inside[at] in ")]}")
        if (
            inside[at] == ":"
            and depth == 0
            and inside[at : at + 2] != "::"
            or (inside[at : at + 2] == "::" and depth == 0)
        ):
            sections.append(inside[start:at])
            start = at + 1
        at += 1
    sections.append(inside[start:])
    head = sections[0]
    if re.sub(r"/\*.*?\*/|//[^\n]*", " ", _STRING.sub("", head), flags=re.DOTALL).strip():
        return None  # something that is no text, such as a macro
    code = "".join(_STRING.findall(head)).replace("\\n", "\n").replace("\\t", "\t")
    if "\\" in code:
        return None
    lists = [split_list(" ".join(s.split())) for s in sections[1:3]] + [[], []]
    return code, lists[0], lists[1]


def _written(code: str, outputs: list[str], inputs: list[str]) -> str:
    names = {"_": "mk_none"}
    before = ["mk_ptx::R mk_none;"] if re.search(r"\b_\b", code) else []
    after: list[str] = []
    for number, text in enumerate([*outputs, *inputs]):
        found = _OPERAND.match(text)
        if found is None:
            raise Unknown(text)
        name, flags, kind, value = found.groups()
        register = f"mk_r{number}"
        names[f"%{number}"] = register
        if name:
            names[f"%[{name}]"] = register
        sort = {"h": "uint16_t", "r": "uint32_t", "f": "float", "d": "double"}.get(kind, "")
        if "=" in flags:
            before.append(f"mk_ptx::R {register} = 0;")
        elif kind in "fd":
            before.append(f"mk_ptx::R {register} = mk_ptx::put<{sort}>({value});")
        else:
            wide = f"(mk_ptx::R)({value})"
            before.append(f"mk_ptx::R {register} = {wide};")
        if flags:
            after.append(f"mk_ptx::out({value}, {register});")
    lines: list[str] = []
    code = re.sub(r"/\*.*?\*/|//[^\n]*", " ", code, flags=re.DOTALL)
    for part in code.split(";"):
        words = " ".join(part.replace("%%", "%").split())
        while words[:1] in ("{", "}") and words:
            words = words[1:].strip()
        if not words:
            continue
        if declared := _REGISTERS.match(words):
            for register in split_list(declared[1]):
                count = re.fullmatch(r"(%?\w+)<(\d+)>", register)
                many = range(int(count[2])) if count else ()
                for one in [f"{count[1]}{n}" for n in many] if count else [register]:
                    names[one] = f"mk_own_{one.lstrip('%')}"
                    before.append(f"mk_ptx::R {names[one]} = 0;")
            continue
        lines.append(instruction(words, names))
    return "do { " + " ".join([*before, *lines, *after]) + " } while (0);"
