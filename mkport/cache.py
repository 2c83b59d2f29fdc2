"""Where mkport keeps files it can make again. What is kept there is the business of the callers."""

import os
import tempfile
from pathlib import Path

from mkport.errors import UserError

CACHE_VARIABLE = "MKPORT_CACHE_DIR"
NUMBA_VARIABLE = "NUMBA_CACHE_DIR"


def cache_dir(*parts: str) -> Path:
    """The folder `parts` inside the cache, made if absent.

    The cache is `$MKPORT_CACHE_DIR`, or `~/.cache/mkport` when that is unset or empty.
    Raises UserError when the folder cannot be made or written to.
    """
    root = os.environ.get(CACHE_VARIABLE)
    try:
        base = Path(root).expanduser() if root else Path.home() / ".cache" / "mkport"
        folder = base.joinpath(*parts)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except (OSError, RuntimeError) as error:  # RuntimeError: there is no home directory
        where = root or "~/.cache/mkport"
        raise UserError(
            f"The cache folder {Path(where).joinpath(*parts)} cannot be written to ({error}). "
            f"Set {CACHE_VARIABLE} to a folder that you may write to."
        ) from error
    return folder


def keep_compiled(package: Path) -> None:
    """Has Numba keep compiled code in the cache where it cannot keep it in the folder `package`.

    To be called before Numba is imported, which reads its variable then. What the user has set
    stays; without a cache that can be written to, Numba looks for a place of its own.
    """
    if os.environ.get(NUMBA_VARIABLE) or os.access(package, os.W_OK):
        return
    try:
        os.environ[NUMBA_VARIABLE] = str(cache_dir("numba").resolve())
    except UserError:
        return
