"""The ops that come with mkport, by name: every folder of `kernels/` that declares one."""

import difflib
import importlib
from pathlib import Path

import mkport.kernels
from mkport.declare import Op
from mkport.errors import UserError


def all_ops() -> dict[str, Op]:
    """Every op of the installed package, by name, in name order."""
    folder = Path(mkport.kernels.__file__).parent
    names = sorted(path.parent.name for path in folder.glob("*/op.py"))
    return {name: importlib.import_module(f"mkport.kernels.{name}.op").OP for name in names}


def find_op(name: str) -> Op:
    """The op called `name`. Raises UserError, naming the nearest ops, when there is none."""
    ops = all_ops()
    if name in ops:
        return ops[name]
    near = difflib.get_close_matches(name, ops)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(ops)}."
    raise UserError(f"There is no op {name!r} in {Path(mkport.kernels.__file__).parent}; {hint}")
