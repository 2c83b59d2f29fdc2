"""Which names stand at the top of a composed file, and who put them there: a name has one owner."""

import ast
import builtins
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from mkport.errors import UserError

PRIMITIVES = tuple(
    f"mkport.machines.cpu.{name}"
    for name in ("vector", "dot", "many", "lanes", "norm", "draw", "pairs")
)


def defined(code: str) -> set[str]:
    """The names that a module's own statements define; imports are left out."""
    return set(_bound(ast.parse(code).body))


def imported(code: str) -> set[str]:
    """The names under which a module's imports stand in it."""
    found = (item for node in ast.parse(code).body for item in _imported(node))
    return {alias or name for _, name, alias in found}


def check_task(path: Path) -> set[str]:
    """The names that an op's task defines.

    Raises UserError where the file cannot be read, is no Python, or imports what the composed file
    lacks: it takes primitives under their own names, NumPy as `np`, and `math`.
    """
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read as Python: {error}. Mend it.") from error
    for node in ast.walk(tree):
        for module, name, alias in _imported(node):
            if (module, name, alias) in (("", "numpy", "np"), ("", "math", None)):
                continue
            here = f"{path}:{getattr(node, 'lineno', 0)}: `{ast.unparse(node)}`"
            if module not in PRIMITIVES or name == "*":
                raise UserError(
                    f"{here} brings in what the composed file lacks. Import only names of "
                    f"{', '.join(PRIMITIVES)}, `numpy as np` and `math`; write helpers in the task."
                )
            if alias is not None and alias != name:
                raise UserError(
                    f"{here} renames {name!r}, but in the composed file primitives stand under "
                    f"their own names. Import {name!r} as it is."
                )
    return set(_bound(tree.body))


def refuse_shared(
    generated: Mapping[str, Iterable[str]], tasks: Mapping[Path, Iterable[str]]
) -> None:
    """Raises UserError for a name that two files define, naming both.

    `generated` are the names of the composed file's other sections, `tasks` those of each task.
    """
    owners = dict.fromkeys(dir(builtins), "Python itself")
    owners |= {name: source for source, names in generated.items() for name in names}
    for path, names in tasks.items():
        for name in sorted(names):
            if name in owners:
                raise UserError(
                    f"{path} defines {name!r}, which {owners[name]} defines too, and all of them "
                    "share one composed file. Give it a name that starts with its op's."
                )
            owners[name] = str(path)


def _imported(node: ast.AST) -> Iterator[tuple[str, str, str | None]]:
    """(module, name, alias) of what a statement imports; the module is "" for `import name`."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield "", alias.name, alias.asname
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield "." * node.level + (node.module or ""), alias.name, alias.asname


def _bound(body: Iterable[ast.AST]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif not isinstance(node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp):
            yield from _bound(ast.iter_child_nodes(node))
