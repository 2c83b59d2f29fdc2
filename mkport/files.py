"""Writing one file whole or not at all. What goes into the file is the caller's business."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from mkport.errors import UserError


def replace_file(path: Path, fill: Callable[[Path], object]) -> None:
    """Let `fill` write a temporary neighbour of `path`, then rename it to `path`.

    The neighbour keeps the suffix of `path`. If `fill` raises, `path` is as it was before and the
    neighbour is gone.

    Raises:
        UserError: the folder is missing or cannot be written, or the disk is full.
    """
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".tmp-", suffix=path.suffix)
    except OSError as error:
        raise UserError(_cannot_write(path, error)) from error
    os.close(handle)
    neighbour = Path(name)
    try:
        fill(neighbour)
        neighbour.chmod(0o666 & ~_umask())
        os.replace(neighbour, path)
    except OSError as error:
        raise UserError(_cannot_write(path, error)) from error
    finally:
        with contextlib.suppress(OSError):
            neighbour.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a UTF-8 text file, whole or not at all; errors as in `replace_file`."""
    replace_file(path, lambda at: at.write_text(text, encoding="utf-8"))


def check_folder_of(path: Path) -> None:
    """Find out before long work whether `path` can be written after it, without writing it.

    Raises:
        UserError: the folder is missing or cannot be written, or `path` is itself a folder.
    """
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise UserError(_cannot_write(path, error)) from error


def _cannot_write(path: Path, error: OSError) -> str:
    return (
        f"Cannot write {path}: {error.strerror or error}. "
        "Choose a path in an existing folder that you may write to."
    )


def _umask() -> int:
    """The process's file mode mask; the system offers no way to read it without setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def make_folder(path: Path) -> Path:
    """The folder, made with its parents where it is absent.

    Raises:
        UserError: it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(
            f"Cannot make the folder {path}: {error.strerror or error}. "
            "Choose a path that you may write to."
        ) from error
    return path
