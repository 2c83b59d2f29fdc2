"""What a C++ type is in the tensor table: its storage type, and how many of it make one.

Structs and templates have no storage type; how they lie in memory is `layout.py`'s.
"""

import re
from collections.abc import Mapping

from mkport.port.syntax import declared
from mkport.port.unit import Item, Unit

# The storage type of what a pointer points to; bool and char are bytes, vectors their parts.
STORAGE = {
    "float": "f32", "double": "f64", "half": "f16", "__half": "f16", "__half2": "f16",
    "half2": "f16", "__nv_bfloat16": "bf16", "__nv_bfloat162": "bf16", "nv_bfloat16": "bf16",
    "int": "i32", "signed": "i32", "unsigned": "i32", "unsigned int": "i32", "uint": "i32",
    "int32_t": "i32", "uint32_t": "i32",
    "short": "i16", "int16_t": "i16",
    "unsigned short": "bf16", "uint16_t": "bf16", "ushort": "bf16",
    "long": "i64", "unsigned long": "i64", "long long": "i64", "unsigned long long": "i64",
    "int64_t": "i64", "uint64_t": "i64", "size_t": "i64", "ptrdiff_t": "i64",
    "char": "u8", "signed char": "i8", "int8_t": "i8", "unsigned char": "u8", "uint8_t": "u8",
    "uchar": "u8", "bool": "u8", "void": "u8", "__nv_fp8_e4m3": "u8", "__nv_fp8_e5m2": "u8",
    "__nv_fp8x2_e4m3": "u8", "__nv_fp8x2_e5m2": "u8", "__nv_fp8x4_e4m3": "u8",
    "__nv_fp8x4_e5m2": "u8",
}  # fmt: skip
SIZES = {
    "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i32": 4, "i16": 2, "i64": 8, "u8": 1, "i8": 1,
}  # fmt: skip
INTEGERS = {
    "int", "signed", "unsigned", "unsigned int", "uint", "int32_t", "uint32_t", "short", "int16_t",
    "unsigned short", "uint16_t", "long", "unsigned long", "long long", "unsigned long long",
    "int64_t", "uint64_t", "size_t", "ptrdiff_t", "char", "signed char", "int8_t", "unsigned char",
    "uint8_t", "bool",
}  # fmt: skip
VECTOR = re.compile(r"(float|double|half|int|uint|char|uchar|short|ushort|longlong|long)([1234])")
_PARTS = {"uint": "unsigned int", "longlong": "long long", "ushort": "unsigned short"}


class Types:
    """Type names of a file, resolved through its aliases and a kernel's template arguments."""

    def __init__(self, unit: Unit, bindings: Mapping[str, str]) -> None:
        self.unit = unit
        self.bindings = dict(bindings)
        self.aliases: dict[str, str] = {}
        for item in unit.items:
            self._alias(unit, item)

    def _alias(self, unit: Unit, item: Item) -> None:
        node = item.node
        if item.kind != "type" or node != item.outer:
            return
        if node.type == "alias_declaration":
            kind = node.child_by_field_name("type")
            name = node.child_by_field_name("name")
            if kind is not None and name is not None:
                self.aliases[unit.tree.of(name)] = unit.tree.of(kind)
        if node.type == "type_definition":
            kind = node.child_by_field_name("type")
            for declarator in node.children_by_field_name("declarator"):
                if kind is not None and declarator.type in ("type_identifier", "primitive_type"):
                    self.aliases[unit.tree.of(declarator)] = unit.tree.of(kind)
                elif declarator.type == "pointer_declarator":
                    name = declared(declarator)
                    text = unit.text[node.start_byte : declarator.end_byte]
                    stars = unit.tree.of(declarator).count("*")
                    if name is not None and declarator == node.child_by_field_name("declarator"):
                        words = text[: name.start_byte - node.start_byte].split("*")[0].split()
                        self.aliases[unit.tree.of(name)] = f"{' '.join(words[1:])} {'*' * stars}"

    def resolve(self, name: str) -> str:
        """A type's plain name: aliases, template arguments and macros replaced."""
        for _ in range(20):
            name = " ".join(
                word for word in re.sub(r"\bstd\s*::", "", name).split()
                if word not in ("const", "volatile", "typename", "struct", "restrict", "register",
                                "__restrict__", "__restrict")
            )  # fmt: skip
            name = _sorted_words(name)
            if name in self.bindings:
                name = self.bindings[name]
            elif name in self.aliases and name not in STORAGE:
                name = self.aliases[name]
            elif name in self.unit.macros and self.unit.macros[name].parameters is None:
                name = self.unit.macros[name].text
            else:
                return name
        return name

    def storage(self, name: str) -> tuple[str, int] | None:
        """The storage type of a plain type and how many of it make one: ("f32", 4) of float4."""
        name = self.resolve(name)
        if name in STORAGE:
            four = 4 if "fp8x4" in name else 1
            return STORAGE[name], 2 if name.endswith(
                ("half2", "bfloat162")
            ) or "8x2" in name else four
        found = VECTOR.fullmatch(name)
        if found and found[1] != "half":
            part = _PARTS.get(found[1], found[1])
            return STORAGE["unsigned char" if part == "uchar" else part], int(found[2])
        return None

    def size(self, name: str) -> int | None:
        """Bytes of a type; None where it is not known."""
        if name.rstrip().endswith("*"):
            return 8
        if self.resolve(name) == "bool":
            return 1
        found = self.storage(name)
        return None if found is None else SIZES[found[0]] * found[1]

    def align(self, name: str) -> int:
        """The alignment of a type of known size."""
        size = self.size(name) or 16
        plain = self.resolve(name)
        if plain.endswith("3") and VECTOR.fullmatch(plain):
            return size // 3
        return min(size, 16)


def _sorted_words(name: str) -> str:
    words = name.split()
    if len(words) > 1 and set(words) <= {"unsigned", "signed", "int", "long", "short", "char"}:
        sign = "unsigned" if "unsigned" in words else ""
        if "char" in words:
            return f"{sign or 'signed'} char" if sign or "signed" in words else "char"
        size = "long " * words.count("long") or ("short " if "short" in words else "")
        size = size.strip()
        return f"{sign} {size}".strip() or "int" if size else (f"{sign} int".strip() or "int")
    return name
