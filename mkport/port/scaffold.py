"""Starts an op of the user's own: a copy of the folder `example` under another name.

The copy is a whole op with a trivial body, so that every check passes before the first change.
"""

import builtins
import keyword
import os
import re
import tempfile
from pathlib import Path

import mkport.port.example as example
from mkport.compose.names import PRIMITIVES, defined
from mkport.errors import UserError
from mkport.files import make_folder, write_text

EXAMPLE = Path(example.__file__).parent
FILES = ("op.py", "oracle.py", "standalone.py", "standalone.cu", "task.py", "task.cuh")
TEST = "test_example.py.txt"
NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
CXX_WORDS = frozenset(
    "alignas alignof and_eq asm auto bitand bitor bool case catch char class compl const constexpr "
    "default delete do double else enum explicit export extern float for friend goto if inline int "
    "long mutable namespace new not_eq operator or_eq private protected public register requires "
    "return short signed sizeof static struct switch template this throw try typedef typeid "
    "typename union unsigned using virtual void volatile while xor xor_eq main".split()
)


def new_op(name: str, folder: Path) -> tuple[Path, ...]:
    """Writes `folder`/`name`/ and `folder`/test_`name`.py, and returns the files.

    Raises UserError for a name that cannot be an op's, and where one of the two is there already.
    """
    check_name(name)
    target, test = folder / name, folder / f"test_{name}.py"
    for path in (target, test):
        if path.exists() or path.is_symlink():
            raise UserError(
                f"{path} is there already, and nothing is overwritten. Choose another name."
            )
    make_folder(folder)
    texts = {file: _renamed((EXAMPLE / file).read_text(encoding="utf-8"), name) for file in FILES}
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as work:
            draft = Path(work) / name
            draft.mkdir()
            for file, text in texts.items():
                (draft / file).write_text(text, encoding="utf-8")
            os.replace(draft, target)
    except OSError as error:
        raise UserError(
            f"Cannot write {target}: {error.strerror or error}. Choose a folder that you may "
            "write to."
        ) from error
    write_text(test, _renamed((EXAMPLE / TEST).read_text(encoding="utf-8"), name))
    return (*(target / file for file in FILES), test)


def check_name(name: str) -> None:
    """Raises UserError for a name that no function of Python and struct of C++ can have."""
    if not NAME.fullmatch(name):
        raise UserError(
            f"{name!r} cannot be an op's name: it names a Python function and a C++ struct, so it "
            "starts with a lower-case letter and goes on with at most 39 of a-z, 0-9 and _."
        )
    taken = {
        "a word of Python": {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)},
        "a word of C++": CXX_WORDS,
        "a primitive of the CPU machine": _primitives(),
        "what the files that begin a megakernel call themselves": {"join", "megakernel"},
    }
    for what, words in taken.items():
        if name in words:
            raise UserError(f"{name!r} cannot be an op's name: it is {what}. Choose another.")
    if name.startswith("mk_"):
        raise UserError(f"{name!r} cannot be an op's name: mk_ is for mkport's own primitives.")


def _primitives() -> set[str]:
    root = Path(example.__file__).parents[2]
    names: set[str] = set()
    for module in PRIMITIVES:
        names |= defined((root / Path(*module.split(".")[1:])).with_suffix(".py").read_text())
    return names


def _renamed(text: str, name: str) -> str:
    struct = "".join(part.capitalize() for part in name.split("_"))
    return re.sub(r"example(?![a-z])", name, text).replace("ExampleArgs", f"{struct}Args")
