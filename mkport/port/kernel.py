"""A kernel as its file declares it: name, template, parameters, and the types they have.

What a parameter is in a record (a tensor, an integer, a float) is decided here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mkport.errors import UserError
from mkport.port.finding import Finding, RefusedPort
from mkport.port.lexer import replace_names, split_list
from mkport.port.syntax import declared, find, template_parameters
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
    "uchar": "u8", "bool": "u8", "void": "u8",
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
_VECTOR = re.compile(r"(float|double|half|int|uint|char|uchar|short|ushort|longlong|long)([1234])")
_VECTOR_PARTS = {"uint": "unsigned int", "longlong": "long long", "ushort": "unsigned short"}
MAX_WORDS = 16


@dataclass(frozen=True)
class Param:
    """One parameter: a tensor of a storage type, an integer, or a float.

    `type` is its C++ type as the kernel has it after instantiation, without qualifiers that
    pointers alone carry (`restrict`).
    """

    name: str
    type: str
    kind: str  # "tensor", "int", "float"
    dtype: str = ""  # tensors
    const: bool = False  # tensors: what it points to
    width: int = 1  # tensors: elements of the storage type in one of the pointee
    line: int = 0
    fields: tuple[tuple[str, str, int], ...] = ()  # of a struct by value: name, dtype, offset
    nbytes: int = 0  # by value, and not in the record itself: read from a tensor of this size

    @property
    def boxed(self) -> bool:
        """True for a value that the record cannot carry, and a tensor does."""
        return self.nbytes > 0


@dataclass(frozen=True)
class Kernel:
    """A kernel to port: where it stands, what it is called with, and how it is instantiated."""

    item: Item
    name: str
    params: tuple[Param, ...]
    template: tuple[str, ...]  # names of the template's parameters
    arguments: tuple[str, ...]  # what --instantiate gives for them
    bounds: int | None  # of __launch_bounds__
    line: int
    default_args: tuple[str, ...] = ()

    @property
    def call(self) -> str:
        """How C++ names the function: "softmax<float, 4>"."""
        return f"{self.name}<{', '.join(self.arguments)}>" if self.arguments else self.name

    @property
    def bindings(self) -> dict[str, str]:
        """Template parameters with their arguments."""
        return dict(zip(self.template, self.arguments, strict=False))

    def qualified(self, unit: Unit) -> str:
        """How the file's global scope names the function: "layers::norm<layers::scalar>"."""
        spaces = self.item.namespace

        def full(name: str) -> str | None:
            for item in unit.items:
                own = item.namespace
                if name in item.names and own and spaces[: len(own)] == own:
                    return "::".join([*(space for space in own if space), name])
            return None

        given = [value if "::" in value else replace_names(value, full) for value in self.arguments]
        call = f"{self.name}<{', '.join(given)}>" if given else self.name
        return "::".join([*(space for space in spaces if space), call])


def bracketed(text: str) -> str:
    """What stands in a text's first round brackets."""
    depth, start = 0, text.index("(") + 1
    for place in range(start - 1, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return text[start:place]
    return text[start:]


def parse_instance(text: str) -> tuple[str, tuple[str, ...]]:
    """ "softmax<float, 4>" as ("softmax", ("float", "4")); a plain list gives the name ""."""
    text = text.strip()
    found = re.fullmatch(r"(?:[\w:]*::)?(\w+)\s*<(.*)>", text, re.DOTALL)
    if found:
        return found[1], tuple(split_list(found[2]))
    if re.fullmatch(r"[A-Za-z_]\w*", text) and text not in STORAGE and not _VECTOR.fullmatch(text):
        return text, ()
    return "", tuple(split_list(text))


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

    def resolve(self, name: str) -> str:
        """A type's plain name: aliases, template arguments and macros replaced."""
        for _ in range(20):
            name = " ".join(
                word for word in re.sub(r"\bstd\s*::", "", name).split()
                if word not in ("const", "volatile", "typename", "struct", "restrict", "register")
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
            return STORAGE[name], 2 if name.endswith(("half2", "bfloat162")) else 1
        found = _VECTOR.fullmatch(name)
        if found and found[1] != "half":
            part = _VECTOR_PARTS.get(found[1], found[1])
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
        if plain.endswith("3") and _VECTOR.fullmatch(plain):
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


def read_kernel(unit: Unit, item: Item, instance: Sequence[str]) -> Kernel:
    """The kernel of an item.

    Raises RefusedPort for an open template or an unfit parameter, and UserError for arguments of
    what is no template.
    """
    tree, node = unit.tree, item.node
    line = tree.line(node)
    template, defaults = template_of(unit, item)
    special = unit.special(item) is not None
    arguments = () if special else tuple(instance)
    if arguments and not template:
        raise UserError(f"{item.name} is no template: leave --instantiate out.")
    if len(arguments) < len(template):
        rest = defaults[len(arguments) : len(template)]
        if any(not value for value in rest):
            missing = [t for t, d in zip(template, defaults, strict=True) if not d]
            listed = ", ".join(template)
            raise RefusedPort(
                Finding(
                    "MK102", line, tree.column(node),
                    f"The kernel {item.name} is a template over {listed}, and nothing says for "
                    "which arguments.",
                    "A task is compiled once, for one set of arguments; which would be a guess.",
                    f'Say for what: --instantiate "{item.name}<{", ".join(missing)}>" with values '
                    "in place of the names.",
                )
            )  # fmt: skip
        arguments += tuple(rest)
    types = Types(unit, dict(zip(template, arguments, strict=False)))
    declarator = next(find(node, "function_declarator"))
    parameters = declarator.child_by_field_name("parameters")
    params: list[Param] = []
    default_args = []
    for child in parameters.children if parameters is not None else ():
        if child.type in ("parameter_declaration", "optional_parameter_declaration"):
            param = _param(unit, types, child, len(params))
            if param is None:
                continue
            params.append(param)
            value = child.child_by_field_name("default_value")
            default_args.append("" if value is None else tree.of(value))
        elif child.type == "variadic_parameter_declaration" or child.type == "...":
            raise RefusedPort(_unfit(unit, child, "a parameter pack", "template parameter pack"))
    words = sum(1 for _ in params)
    bounds = None
    body = node.child_by_field_name("body")
    head = unit.text[node.start_byte : body.start_byte if body is not None else node.end_byte]
    if "__launch_bounds__" in head:
        inner = bracketed(head[head.index("__launch_bounds__") :])
        bounds = constant(unit, split_list(inner)[0], types.bindings)
    if words >= MAX_WORDS:
        raise RefusedPort(too_many(item.name, line, words + 1))
    return Kernel(
        item, item.name, tuple(params), template, arguments, bounds, line, tuple(default_args)
    )


def too_many(name: str, line: int, words: int) -> Finding:
    """The refusal of a kernel whose record would need too many words."""
    return Finding(
        "MK104", line, 1,
        f"{name} has {words} arguments with its grid, and a record carries {MAX_WORDS}.",
        "The arguments beyond that would not reach the task.",
        "Make the parameters that never change constants of the file, or put several into one "
        "array.",
    )  # fmt: skip


def template_of(unit: Unit, item: Item) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The names of a template's parameters, and their defaults."""
    found = template_parameters(unit.tree, item.outer)
    return tuple(name for name, _ in found), tuple(default for _, default in found)


def constant(unit: Unit, text: str, bindings: Mapping[str, str]) -> int | None:
    """The value of a constant expression: literals, the file's constants, macros, template
    arguments."""
    from mkport.port.constants import Constants

    return Constants(unit, bindings).value(text)


def _param(unit: Unit, types: Types, node, place: int) -> Param | None:  # type: ignore[no-untyped-def]
    from mkport.port.layout import Layouts

    tree = unit.tree
    declarator = node.child_by_field_name("declarator")
    base_node = node.child_by_field_name("type")
    base = tree.of(base_node) if base_node is not None else ""
    if base == "void" and declarator is None:
        return None
    named = declared(declarator) if declarator is not None else None
    name = tree.of(named) if named is not None else f"unused{place}"
    head = tree.text[node.start_byte : (declarator or node).start_byte]
    const = bool(re.search(r"\bconst\b", head + (_between(tree, base_node, declarator))))
    shape = tree.of(declarator) if declarator is not None else ""
    stars = shape.split(name)[0].count("*") if declarator is not None else 0
    array = declarator is not None and any(
        n.type == "array_declarator" for n in find(declarator, "array_declarator")
    )
    plain = types.resolve(base)
    while plain.endswith("*"):  # an alias or an argument that is itself a pointer
        if "const" in types.bindings.get(base, types.aliases.get(base, "")).split():
            const = True
        plain = types.resolve(plain[:-1])
        stars += 1
    line = tree.line(node)
    if "&" in shape or "(" in shape or stars > 1 or (array and stars):
        raise RefusedPort(_unfit(unit, node, tree.of(node), "pointer to pointers, or a reference"))
    if stars == 1 or array:
        found = types.storage(plain)
        if found is None and "::" in plain:  # an alias in a class
            plain = types.resolve(Layouts(unit).spelled(plain, types.bindings) or plain)
            found = types.storage(plain)
        dtype, width = found if found is not None else ("u8", 1)
        if found is None and plain.split("<")[0].split("::")[-1].strip() not in _structs(unit):
            raise RefusedPort(
                _unfit(unit, node, tree.of(node), "pointer to an unknown type", plain)
            )
        return Param(name, f"{'const ' if const else ''}{plain}*", "tensor", dtype, const, width,
                     line)  # fmt: skip
    if plain in INTEGERS or plain in unit.enums:
        return Param(name, plain, "int", line=line)
    if plain == "float":
        return Param(name, plain, "float", line=line)
    if plain in ("cudaTextureObject_t", "cudaSurfaceObject_t"):
        raise RefusedPort(
            Finding(
                "MK141", line, tree.column(node),
                f"The parameter `{' '.join(tree.of(node).split())}` is a texture or surface.",
                "It is read past the cache that other workers' writes go through: stale data.",
                "Read through a plain pointer.",
            )
        )  # fmt: skip
    if plain == "double":
        return Param(name, plain, "tensor", "f64", True, 1, line, (), 8)
    return _struct(unit, types, node, name, replace_names(base, types.bindings.get))


def _struct(unit: Unit, types: Types, node, name: str, text: str) -> Param:  # type: ignore[no-untyped-def]
    """A struct by value: its bytes come in a tensor, unless there are pointers among them."""
    from mkport.port.layout import Layouts

    layout = Layouts(unit).of(text, types.bindings)
    if layout is None:
        what = "value of a type that is no plain number, and whose layout cannot be told"
        raise RefusedPort(_unfit(unit, node, unit.tree.of(node), what))
    if layout.pointers:
        raise RefusedPort(
            Finding(
                "MK103", unit.tree.line(node), unit.tree.column(node),
                f"The parameter `{' '.join(unit.tree.of(node).split())}` is a struct with "
                "pointers in it.",
                "What a task reads and writes is known by its tensors: behind these pointers "
                "nobody would wait for anybody.",
                "Pass its pointers as parameters of their own, and put it together in the kernel.",
            )
        )  # fmt: skip
    fields: list[tuple[str, str, int]] = []
    for field in layout.fields:
        found = types.storage(field.type)
        if found is None or field.count != 1 or found[1] != 1:
            fields = []
            break
        fields.append((field.name, found[0], field.offset))
    line = unit.tree.line(node)
    return Param(name, text, "tensor", "u8", True, 1, line, tuple(fields), layout.size)


def _between(tree, start, end) -> str:  # type: ignore[no-untyped-def]
    if start is None or end is None:
        return ""
    return str(tree.text[start.end_byte : end.start_byte])


def _structs(unit: Unit) -> set[str]:
    return {name for item in unit.items if item.kind == "type" for name in item.names}


def _unfit(unit: Unit, node, text: str, what: str, resolved: str = "") -> Finding:  # type: ignore[no-untyped-def]
    text = " ".join(text.split())
    fix = "Pass its parts as pointers, integers and floats, and put it together in the kernel."
    if re.search(r"\b(?:c10|at|torch)\s*::", resolved or text):
        fix = "Torch's types are not here: instantiate it with float, __half or __nv_bfloat16."
    return Finding(
        "MK103", unit.tree.line(node), unit.tree.column(node),
        f"The parameter `{text}` is a {what}.",
        "A task's arguments are pointers to plain storage, numbers, and structs of these numbers; "
        "anything else would arrive as something different.",
        fix,
    )  # fmt: skip
