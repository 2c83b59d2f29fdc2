"""A kernel as its file declares it: name, template, parameters, and the types they have.

What a parameter is in a record (a tensor, an integer, a float) is decided here.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mkport.declare.record import MAX_ARGS
from mkport.errors import UserError
from mkport.port.constants import Constants
from mkport.port.finding import Finding, RefusedPort
from mkport.port.layout import Layout, Layouts
from mkport.port.lexer import replace_names, split_list
from mkport.port.storage import INTEGERS, STORAGE, VECTOR, Types
from mkport.port.syntax import declared, find, template_parameters
from mkport.port.unit import Item, Unit

MAX_WORDS = MAX_ARGS  # of a record, with the grid
MOST_NUMBERS = 32  # of a struct that are given one by one


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
    if re.fullmatch(r"[A-Za-z_]\w*", text) and text not in STORAGE and not VECTOR.fullmatch(text):
        return text, ()
    return "", tuple(split_list(text))


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
    opened = item.outer.child_by_field_name("parameters") if template else None
    packed = opened is not None and "..." in tree.of(opened)
    if len(arguments) > len(template) and not packed:
        raise UserError(
            f"{item.name} is a template over {', '.join(template)}: --instantiate gives it "
            f"{len(arguments)} arguments, {', '.join(arguments)}."
        )
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
        for default in rest:  # which may be made of the arguments before it
            known = dict(zip(template, arguments, strict=False))
            arguments += (replace_names(default, known.get),)
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
    return Constants(unit, bindings).value(text)


def _param(unit: Unit, types: Types, node, place: int) -> Param | None:  # type: ignore[no-untyped-def]
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
        if "const" in types.bindings.get(base, types.aliases.get(base, "")).split("*")[0].split():
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
    fields = _numbers(unit, types, layout)
    line = unit.tree.line(node)
    return Param(name, text, "tensor", "u8", True, 1, line, tuple(fields), layout.size)


def _numbers(unit: Unit, types: Types, layout: Layout) -> list[tuple[str, str, int]]:
    """The numbers in a struct, its arrays' and its structs' too: name, dtype and offset of each.
    None where they are not all plain, lie over one another, or are too many to be typed."""
    numbers: list[tuple[str, str, int]] = []
    end = 0
    for field in layout.fields:
        if field.offset < end or field.count > MOST_NUMBERS:
            return []
        end = field.offset + field.size
        found = types.storage(field.type)
        inner = [("", found[0], 0)] if found is not None and found[1] == 1 else []
        if not inner:
            nested = Layouts(unit).of(field.type, types.bindings)
            inner = (
                [(f".{n}", d, at) for n, d, at in _numbers(unit, types, nested)] if nested else []
            )
        if not inner:
            return []
        for place in range(field.count):
            label = f"{field.name}[{place}]" if field.count > 1 else field.name
            start = field.offset + place * (field.size // field.count)
            numbers += [(label + name, dtype, start + at) for name, dtype, at in inner]
    return numbers if len(numbers) <= MOST_NUMBERS else []


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
