"""CUDA C++ as trees: tree-sitter with what its grammar lacks blanked out first.

Trees serve analysis and byte-exact rewriting alike: places in the tree are places in the text.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from mkport.errors import UserError
from mkport.extras import install
from mkport.port.lexer import Token, blanked, tokens

if TYPE_CHECKING:
    from tree_sitter import Node, Parser

# Attributes that the grammar does not know; they say nothing that the analysis needs.
_ATTRIBUTES = (
    "__align__ alignas __cluster_dims__ __block_size__ __maxnreg__ __attribute__ __declspec "
    "__launch_bounds__"
).split()
_NO_TYPES = ("template", "operator", "return", "case", "using", "typedef", "friend", "else", "if")
_PLAIN = ("float", "double", "int", "unsigned", "char", "short", "long", "bool", "void", "signed")
_WORDS = ("__forceinline__", "__noinline__", "__inline__", "__host__", "__grid_constant__")
_RENAMED = {"__restrict": "restrict  ", "__volatile__": "volatile    ", "__asm__": "asm    "}


@cache
def _parser() -> "Parser":
    try:
        import tree_sitter
        import tree_sitter_cuda
    except ImportError as error:
        raise UserError(
            f"Porting CUDA files needs the parser, which is not installed: {install('port')}."
        ) from error
    return tree_sitter.Parser(tree_sitter.Language(tree_sitter_cuda.language()))


def ascii_only(text: str) -> str:
    """The text with a question mark for each other character: bytes and characters are the same."""
    return text.encode("ascii", "replace").decode()


def readable(text: str) -> str:
    """The text as the grammar can read it, of the same length."""
    ranges = [m.span() for m in re.finditer(r"(?m)^[ \t]*#[ \t]*pragma\b(?:\\\n|[^\n])*", text)]
    ranges += [m.span() for m in re.finditer(r"\b_Pragma\s*\(\s*\"[^\"]*\"\s*\)", text)]
    given = list(tokens(text))
    for at, token in enumerate(given):
        if token.kind != "name":
            continue
        if token.text in _WORDS:
            ranges.append((token.start, token.start + len(token.text)))
        if token.text in _ATTRIBUTES:
            end = at + 1
            while end < len(given) and given[end].blank:
                end += 1
            if end == len(given) or given[end].text != "(":
                continue
            depth = 0
            for close in range(end, len(given)):
                depth += (given[close].text == "(") - (given[close].text == ")")
                if depth == 0:
                    ranges.append((token.start, given[close].start + 1))
                    break
    ranges += _arguments_of_declared_types([t for t in given if not t.blank])
    text = blanked(text, ranges)
    text = re.sub(r"(?<=[.>])operator\s+(?=\w+\s*\(\s*\))", _joined, text)
    for word, known in _RENAMED.items():
        text = re.sub(rf"\b{word}\b", known[: len(word)], text)
    return re.sub(r"\bunsigned(?=\()", "uint32_t", text)  # `(unsigned(x) + 1) * y`


def _joined(found: re.Match[str]) -> str:
    """`x.operator T()`, which the grammar lacks, as the call of one name."""
    return found[0].rstrip() + "_" * (len(found[0]) - len(found[0].rstrip()))


def _arguments_of_declared_types(given: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Where a statement that declares something has a type's template arguments: `A<4> b = c;`,
    which the grammar takes for two comparisons."""
    for at, token in enumerate(given):
        if token.text not in (";", "{", "}"):
            continue
        here = at + 1
        while here < len(given) and given[here].text in ("const", "constexpr", "static"):
            here += 1
        while here + 2 < len(given) and given[here + 1].text == "::":
            here += 2
        if here + 1 >= len(given) or given[here].kind != "name" or given[here + 1].text != "<":
            continue
        if given[here].text in _NO_TYPES:
            continue
        depth, end = 0, here + 1
        while end < len(given):
            text = given[end].text
            depth += (text == "<") - (text == ">")
            if depth == 0:
                break
            if text in _PLAIN or not (given[end].kind in ("name", "number") or text in "<>,::"):
                break
            end += 1
        if depth or end + 2 >= len(given):
            continue
        start, stop = given[here + 1].start, given[end].start + 1
        if given[end + 1].text in ("*", "&"):
            end += 1
        if given[end + 1].kind == "name" and given[end + 2].text in ("=", ";", "(", "{", "[", ","):
            yield start, stop


class Tree:
    """A text and its tree. Raises UserError where the parser is not installed."""

    def __init__(self, text: str) -> None:
        self.text = ascii_only(text)
        self.root = _parser().parse(readable(self.text).encode()).root_node

    def of(self, node: "Node") -> str:
        """The text of a node."""
        return self.text[node.start_byte : node.end_byte]

    def type_of(self, node: "Node") -> str:
        """The text of a type, with template arguments that the grammar was not shown."""
        end = node.end_byte
        found = re.compile(r"\s*<").match(self.text, end)
        if found is None:
            return self.of(node)
        depth = 0
        for at in range(found.end() - 1, len(self.text)):
            depth += (self.text[at] == "<") - (self.text[at] == ">")
            if depth == 0:
                return self.text[node.start_byte : at + 1]
        return self.of(node)

    def line(self, node: "Node") -> int:
        """Its 1-based line."""
        return int(node.start_point[0]) + 1

    def column(self, node: "Node") -> int:
        """Its 1-based column."""
        return int(node.start_point[1]) + 1


def walk(node: "Node", into: tuple[str, ...] = ()) -> Iterator["Node"]:
    """The node and all below it, in order; not what is below nodes of the types `into` names."""
    stack = [node]
    first = True
    while stack:
        here = stack.pop()
        yield here
        if first or here.type not in into:
            stack.extend(reversed(here.children))
        first = False


def find(node: "Node", *types: str) -> Iterator["Node"]:
    """The nodes of some types at and below a node."""
    return (here for here in walk(node) if here.type in types)


def broken(node: "Node") -> "Node | None":
    """The first place below a node that the parser could not read."""
    if not node.has_error:
        return None
    return next((here for here in walk(node) if here.is_error or here.is_missing), node)


def declared(node: "Node") -> "Node | None":
    """The identifier that a declarator declares; None for one without a name."""
    while node is not None:
        if node.type in ("identifier", "field_identifier", "type_identifier", "operator_name",
                         "destructor_name", "qualified_identifier", "operator_cast",
                         "template_function"):  # fmt: skip
            return node
        inner = node.child_by_field_name("declarator")
        if inner is None:
            inner = next((c for c in node.children if c.type in DECLARATORS), None)
        if inner is None:
            return None
        node = inner
    return None


def template_parameters(tree: "Tree", outer: "Node") -> list[tuple[str, str]]:
    """The names and defaults of a template's parameters, "" for what is not there."""
    head = outer.child_by_field_name("parameters")
    if outer.type != "template_declaration" or head is None:
        return []
    found = []
    for child in head.named_children:
        if child.type == "comment":
            continue
        default = child.child_by_field_name("default_value") or child.child_by_field_name(
            "default_type"
        )
        declarator = child.child_by_field_name("declarator")
        if "type_parameter" in child.type or "template_template" in child.type:
            names = [n for n in find(child, "type_identifier") if n != default]
            if default is not None:
                names = [n for n in names if n.end_byte <= default.start_byte]
            name = names[-1] if names else None
        else:
            name = declared(declarator) if declarator is not None else None
        found.append((
            tree.of(name) if name is not None else "",
            tree.of(default) if default is not None else "",
        ))  # fmt: skip
    return found


def members(tree: "Tree", outer: "Node") -> "Iterator[tuple[str, int, int]]":
    """A class's member functions with a body that only run when they are named, and their places;
    no constructors, destructors, operators and virtual functions."""
    classes = {
        tree.of(name).split("<")[0] for node in find(outer, "struct_specifier", "class_specifier")
        if (name := node.child_by_field_name("name")) is not None
    }  # fmt: skip
    for node in find(outer, "function_definition"):
        whole = node
        while whole.parent is not None and whole.parent.type == "template_declaration":
            whole = whole.parent
        body, name = node.child_by_field_name("body"), declared(node)
        if whole.parent is None or whole.parent.type != "field_declaration_list" or body is None:
            continue
        plain = name is not None and name.type in ("identifier", "field_identifier")
        head = tree.text[whole.start_byte : body.start_byte]
        if (
            not plain
            or name is None
            or tree.of(name) in classes
            or "virtual" in head
            or ("override" in head)
        ):
            continue
        yield tree.of(name), whole.start_byte, whole.end_byte


def declared_members(tree: "Tree", outer: "Node") -> list[tuple[int, int]]:
    """Where a class declares member functions whose bodies stand elsewhere."""
    return [
        (node.start_byte, node.end_byte)
        for node in find(outer, "field_declaration")
        if any(d.type == "function_declarator" for d in declarators(node))
        and not re.search(r"\bvirtual\b|\boverride\b|\boperator\b", tree.of(node))
    ]


DECLARATORS = (
    "identifier", "field_identifier", "type_identifier", "pointer_declarator", "array_declarator",
    "reference_declarator", "function_declarator", "parenthesized_declarator", "init_declarator",
    "qualified_identifier", "operator_name", "destructor_name", "operator_cast",
    "variadic_declarator",
)  # fmt: skip


def declarators(node: "Node") -> "list[Node]":
    """The declarators of a declaration, a field or a parameter."""
    return node.children_by_field_name("declarator")


def words_of(tree: Tree, node: "Node") -> set[str]:
    """The words that stand before a declaration's body: its qualifiers, specifiers and type."""
    body = node.child_by_field_name("body")
    found: set[str] = set()
    for child in node.children:
        if child == body:
            break
        if child.type in ("function_declarator", "init_declarator", "array_declarator"):
            break
        found |= set(re.findall(r"\w+", tree.of(child)))
    return found
