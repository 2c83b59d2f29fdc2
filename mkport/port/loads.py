"""Non-coherent loads in the assembler's input: which read what a task may find written.

A load of a constant table that is compiled in, the file's own or the math library's (`sinf` reduces
its argument by one), reads what nothing ever writes.
"""

import re

_LOAD = re.compile(r"\b(?:ld\.global\S*\.nc|ldu\.global)\S*\s+[^\[;]*\[\s*([\w$%]+)")
_TABLE = re.compile(r"\.global\s+(?:\.align\s+\d+\s+)?\.\w+\s+([\w$]+)")
# What an address may go through and still lie in the same table.
_MOVES = re.compile(r"(?:mov|cvta(?:\.to)?(?:\.global)?|add|sub|mad\.\w+|cvt)\b")
_STEP = re.compile(r"^\s*(?:@!?%\w+\s+)?([a-z][\w.]*)\s+(\{[^}]*\}|[\w$%]+)\s*,\s*([^;]+);", re.M)


def noncoherent(text: str, module: str) -> tuple[int, int]:
    """How many non-coherent loads some functions have: of memory, and of a module's tables."""
    tables = set(_TABLE.findall(module))
    counted = [0, 0]
    for body in re.split(r"(?m)^}$", text):  # registers are a function's own
        if found := _LOAD.findall(body):
            derived = _derived(body, tables)
            constant = sum(address in tables or address in derived for address in found)
            counted[0] += len(found) - constant
            counted[1] += constant
    return counted[0], counted[1]


def _derived(body: str, tables: set[str]) -> set[str]:
    """The registers that hold an address in a table wherever they are set."""
    made: dict[str, list[tuple[str, list[str]]]] = {}
    for operation, result, sources in _STEP.findall(body):
        for register in re.findall(r"%\w+", result):
            made.setdefault(register, []).append((operation, re.findall(r"[\w$%]+", sources)))
    derived = set(made)
    while True:
        gone = {
            register for register in derived
            if not all(
                _MOVES.match(operation) and any(s in derived or s in tables for s in sources)
                for operation, sources in made[register]
            )
        }  # fmt: skip
        if not gone:
            return derived
        derived -= gone
