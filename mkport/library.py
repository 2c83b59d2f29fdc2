"""The ops there are, by name: those that come with mkport, and those in a folder of the user's."""

import difflib
import importlib
from collections.abc import Mapping
from pathlib import Path

import mkport.kernels
from mkport.declare import Op
from mkport.errors import UserError


def all_ops() -> dict[str, Op]:
    """Every op of the installed package, by name, in name order."""
    folder = Path(mkport.kernels.__file__).parent
    names = sorted(path.parent.name for path in folder.glob("*/op.py"))
    return {name: importlib.import_module(f"mkport.kernels.{name}.op").OP for name in names}


def ops_in(folder: Path) -> dict[str, Op]:
    """The ops of a user's folder, by name: every folder in it, or itself, that has an op.py.

    Raises UserError where there is none, an op.py cannot be imported or declares no `OP`, and
    where two have the same name.
    """
    files = sorted([*folder.glob("op.py"), *folder.glob("*/op.py")])
    if not files:
        raise UserError(
            f"There is no op in {folder}: neither it nor a folder in it has an op.py. Make one "
            f"with `mkport new NAME --ops {folder}`, or port a kernel with `mkport port`."
        )
    found: dict[str, Op] = {}
    for file in files:
        op = _load(file)
        if op.name in found:
            raise UserError(
                f"{file} declares the op {op.name!r}, and so does {found[op.name].folder / 'op.py'}"
                ". Rename one of the two."
            )
        found[op.name] = op
    return dict(sorted(found.items()))


def find_op(name: str, ops: Mapping[str, Op] | None = None) -> Op:
    """The op called `name` among `ops`, or the package's own.

    Raises UserError, naming the nearest ops, when there is none.
    """
    where = "" if ops is not None else f" in {Path(mkport.kernels.__file__).parent}"
    ops = all_ops() if ops is None else ops
    if name in ops:
        return ops[name]
    near = difflib.get_close_matches(name, ops)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(ops)}."
    raise UserError(f"There is no op {name!r}{where}; {hint}")


def _load(file: Path) -> Op:
    from mkport.testing.parts import load_file

    try:
        op = getattr(load_file(file), "OP", None)
    except UserError:
        raise
    except Exception as error:  # whatever the user's file does when it is imported
        raise UserError(f"{file} cannot be imported: {type(error).__name__}: {error}.") from error
    if not isinstance(op, Op):
        raise UserError(f"{file} declares no op: it must hold one `OP = Op(...)`.")
    return op
