"""What a module's docstrings leave out, read from its source text alone.

Left out are private names, functions in functions, and commands, whose help is on the command
line's page. A shape stands in brackets, a unit is a word or the end of a name, an error is named
behind "raises". Which modules are looked at is the test's business.
"""

import ast
import builtins
import re
from collections.abc import Iterable, Iterator

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Numbers side by side; a tuple of ints is a shape, a set has none.
NUMBERS = re.compile(
    r"np\.ndarray|NDArray|(list|Sequence|Iterable)\[(list\[|Sequence\[)?(int|float)\b"
)
BY_NAME = re.compile(r"Mapping|dict\[|Callable")
SHAPE = r"\[[^\]]+\]|\bshape\b"
MEASURED = re.compile(
    r"(^|_)(rate|bandwidth|timeout|interval|duration|latency|delay|elapsed|memory|size|length"
    r"|room|time|limit|context|window|chunk)$"
)
UNITS = (
    r"\b(?i:seconds?|s|ms|us|ns|nanoseconds|(?:MiB|MB|bytes)|tokens?|positions?|keys|elements"
    r"|characters|rows|pixels|pages|requests)\b"
)

UNTOLD = {"AssertionError", "NotImplementedError"}  # a mistake of ours; a method to be written

MADE = ("__init__", "__post_init__")  # the class's docstring may speak for these


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Every function that is no other's, with the class that it is a method of."""
    for node in tree.body:
        for child in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(child, Function):
                yield node if isinstance(node, ast.ClassDef) else None, child


def _raised(
    nodes: Iterable[ast.AST], private: dict[str, Function], seen: frozenset[str] = frozenset()
) -> set[str]:
    """The classes that statements raise, or a private function of the module that they call."""
    found: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Try):
            inside = _raised(node.body, private, seen)
            found |= {name for name in inside if not any(_catches(h, name) for h in node.handlers)}
            found |= _raised([*node.handlers, *node.orelse, *node.finalbody], private, seen)
            continue
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Raise) and node.exc:
            for error in _either(node.exc):
                what = error.func if isinstance(error, ast.Call) else error
                name = ast.unparse(what).rsplit(".", 1)[-1]
                if isinstance(error, ast.Call) or name[0].isupper():  # else it is passed on
                    found.add(name if name[0].isupper() else "")  # "": what a function makes
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).removeprefix("self.")
            if name in private and name not in seen:
                found |= _raised(private[name].body, private, seen | {name})
        found |= _raised(ast.iter_child_nodes(node), private, seen)
    return found - UNTOLD


def _either(node: ast.expr) -> tuple[ast.expr, ...]:
    """Both sides of `a if c else b`, or the one expression."""
    return (node.body, node.orelse) if isinstance(node, ast.IfExp) else (node,)


def _catches(handler: ast.ExceptHandler, name: str) -> bool:
    """Whether a handler takes an error of that class; classes of our own by their name alone."""
    if handler.type is None:
        return True
    for caught in re.findall(r"\w+", ast.unparse(handler.type)):
        cls, other = getattr(builtins, name, None), getattr(builtins, caught, None)
        if caught in (name, "Exception") or (cls and other and issubclass(cls, other)):
            return True
    return False


def _numbers(function: Function) -> Iterator[str]:
    """The parameters that are arrays or lists of numbers; of those without a type, the indexed."""
    indexed = {
        node.value.id
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name)
        if not (isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str))
    }
    for arg in [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]:
        kind = ast.unparse(arg.annotation) if arg.annotation else None
        if arg.arg in ("self", "shape", "logical"):
            continue
        if (
            arg.arg in indexed
            if kind is None
            else NUMBERS.search(kind) and not BY_NAME.search(kind)
        ):
            yield arg.arg


def _says(name: str, what: str, text: str) -> bool:
    """Whether `what` stands behind a name, in the same sentence and near it."""
    return re.search(rf"\b{name}\b[^.;\[]{{0,80}}?({what})", text, re.DOTALL) is not None


def _text(tree: ast.Module, owner: ast.ClassDef | None, function: Function) -> str:
    """A function's docstring, with its class's, and with that of what it says to see."""
    own = ast.get_docstring(function) or ""
    text = [own, ast.get_docstring(owner) or "" if owner else ""]
    for name in re.findall(r"\b(?:[Ss]ee|[Aa]s|[Ll]ike) `(\w+)`", own):
        text += [
            ast.get_docstring(other) or ""
            for cls, other in _functions(tree)
            if other.name == name or (cls and cls.name == name and other.name == function.name)
        ]
    return "\n".join(text)


def _function_faults(
    tree: ast.Module, owner: ast.ClassDef | None, function: Function
) -> Iterator[str]:
    if any(ast.unparse(mark).endswith("overload") for mark in function.decorator_list):
        return
    if not ast.get_docstring(function) and function.name not in MADE:
        yield "has no docstring"
        return
    text = _text(tree, owner, function)
    for name in _numbers(function):
        if not _says(name, SHAPE, text):
            yield f"does not say the shape of `{name}`"
    returns = ast.unparse(function.returns) if function.returns else ""
    if NUMBERS.search(returns) and not BY_NAME.search(returns) and not re.search(SHAPE, text):
        yield "does not say the shape of what it returns"
    measured = [
        arg.arg
        for arg in [*function.args.args, *function.args.kwonlyargs]
        if arg.annotation and re.search(r"\b(int|float)\b", ast.unparse(arg.annotation))
    ]
    for name in measured:
        if MEASURED.search(name) and not _says(name, UNITS, text):
            yield f"does not say the unit of `{name}`"
    if returns in ("int", "float") and MEASURED.search(function.name):
        if not re.search(UNITS, text):
            yield "does not say the unit of what it returns"
    said = "".join(re.findall(r"\b[Rr]aises?\b.*", text, re.DOTALL))
    private = {f.name: f for _, f in _functions(tree) if f.name.startswith("_")}
    for error in sorted(_raised(function.body, private)):
        if not re.search(rf"\b{error or '[A-Z]'}", said[6:]):
            yield f"does not say that it raises {error or 'what it makes'}"


def _field_faults(lines: list[str], cls: ast.ClassDef) -> Iterator[str]:
    for node in cls.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            name, kind = node.target.id, ast.unparse(node.annotation)
            if name.startswith("_"):
                continue
            first = node.lineno - 1
            while lines[first - 1].strip().startswith("#"):
                first -= 1
            said = "\n".join(lines[first : node.end_lineno])
            comment = "\n".join(re.findall(r"#.*", said))
            text = ast.get_docstring(cls) or ""
            if NUMBERS.search(kind) and not BY_NAME.search(kind):
                if not re.search(SHAPE, comment) and not _says(name, SHAPE, text):
                    yield f"does not say the shape of `{name}`"
            if MEASURED.search(name) and kind in ("int", "float"):
                if not re.search(UNITS, comment) and not _says(name, UNITS, text):
                    yield f"does not say the unit of `{name}`"


def _is_command(function: Function) -> bool:
    """Whether a function is a verb, or a verb's verb, of the command line."""
    marks = [ast.unparse(mark) for mark in function.decorator_list]
    return function.name == "command" or any(mark.startswith("app.command(") for mark in marks)


def faults(source: str, path: str = "") -> list[str]:
    """What a module's docstrings leave out, each with its place."""
    tree, found = ast.parse(source), []
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            if not ast.get_docstring(node):
                found.append(f"{path}:{node.lineno} {node.name} has no docstring")
            found += [
                f"{path}:{node.lineno} {node.name} {fault}"
                for fault in _field_faults(source.splitlines(), node)
            ]
    for owner, function in _functions(tree):
        if owner and owner.name.startswith("_") or _is_command(function):
            continue
        if not function.name.startswith("_") or function.name in MADE:
            name = f"{owner.name}.{function.name}" if owner else function.name
            found += [
                f"{path}:{function.lineno} {name} {fault}"
                for fault in _function_faults(tree, owner, function)
            ]
    return found
