"""Whether an iteration of an `@njit` function's outer loop leans on the one before it.

An iteration that becomes a tile begins with nothing: a number must be set in it on every path
before it is read, and a scratch array written before anything else is done with it.
"""

import ast
from collections.abc import Iterable, Iterator, Sequence

Loop = ast.For | ast.While
Unset = tuple[ast.Name, str]


def unset(body: Sequence[ast.stmt], given: Iterable[str]) -> Iterator[ast.Name]:
    """The names that some path through a loop's body reads before it has set them.

    `given` are names that have a value before the loop, or in the file.
    """
    stored = {n.id for s in body for n in ast.walk(s) if isinstance(n, ast.Name) and _stores(n)}
    yield from _Paths(stored - set(given)).block(body, set())[0]


class _Paths:
    """Definite assignment, as compilers have it: a set of names that every path has set."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def block(
        self, body: Sequence[ast.stmt], known: set[str]
    ) -> tuple[list[ast.Name], set[str] | None]:
        """What is read too early, and what is set at the end; None where the end is not met."""
        early: list[ast.Name] = []
        now: set[str] | None = set(known)
        for statement in body:
            if now is None:
                break
            found, now = self.statement(statement, now)
            early += found
        return early, now

    def statement(self, node: ast.stmt, known: set[str]) -> tuple[list[ast.Name], set[str] | None]:
        """As `block`, of one statement."""
        if isinstance(node, ast.If):
            early = self.reads(node.test, known)
            ends = [self.block(part, known | self.stores(node.test))
                    for part in (node.body, node.orelse)]  # fmt: skip
            met = [end for _, end in ends if end is not None]
            both = set.intersection(*met) if met else None
            return early + ends[0][0] + ends[1][0], both
        if isinstance(node, ast.For):
            early = self.reads(node.iter, known)
            inner, _ = self.block(node.body, known | self.stores(node.target))
            last, _ = self.block(node.orelse, known)
            return early + inner + last, known
        if isinstance(node, ast.While):
            early = self.reads(node.test, known)
            inner, _ = self.block(node.body, known | self.stores(node.test))
            last, _ = self.block(node.orelse, known)
            return early + inner + last, known
        if isinstance(node, ast.Continue | ast.Break | ast.Return | ast.Raise):
            return self.reads(node, known), None
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            own = node.target
            late = [] if own.id in known or own.id not in self.names else [own]
            return self.reads(node.value, known) + late, known | {own.id}
        return self.reads(node, known), known | self.stores(node)

    def reads(self, node: ast.AST, known: set[str]) -> list[ast.Name]:
        """Names of the loop's own that are read in an expression and not known there."""
        return [
            n for n in ast.walk(node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.id in self.names
            and n.id not in known
        ]  # fmt: skip

    def stores(self, node: ast.AST) -> set[str]:
        """Names that a statement or expression sets."""
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and _stores(n)}


def kept(body: Sequence[ast.stmt], name: str) -> ast.AST | None:
    """The first place where a scratch array is used, unless an element is written there, in a loop
    or outside of conditions; None for an array that each iteration fills before it reads it."""
    for node, inside in _in_order(body, False):
        if not isinstance(node, ast.Name) or node.id != name:
            continue
        return None if isinstance(inside, ast.Subscript) else node
    return None


def _in_order(
    nodes: Sequence[ast.AST], conditional: bool
) -> Iterator[tuple[ast.AST, ast.AST | None]]:
    """Names in the order in which they are evaluated, each with the subscript that it is the array
    of where an element is assigned to and nothing decides whether."""
    for node in nodes:
        if isinstance(node, ast.Assign):
            yield from _in_order([node.value], conditional)
            for target in node.targets:
                if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
                    yield from _in_order([target.slice], conditional)
                    yield target.value, None if conditional else target
                else:
                    yield from _in_order([target], conditional)
        elif isinstance(node, ast.If | ast.While | ast.IfExp):
            yield from _in_order([node.test], conditional)
            rest = [node.body, node.orelse]
            parts = [p if isinstance(p, list) else [p] for p in rest]
            for part in parts:
                yield from _in_order(part, True)
        elif isinstance(node, ast.Name):
            yield node, None
        else:
            yield from _in_order(list(ast.iter_child_nodes(node)), conditional)


def _stores(node: ast.Name) -> bool:
    return isinstance(node.ctx, ast.Store)
