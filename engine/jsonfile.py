"""Reading a checkpoint's JSON files with errors that say which file and what to do."""

import json
from pathlib import Path
from typing import Any

from mkport.errors import UserError


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file. Raises UserError when it is missing, garbled or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UserError(
            f"{path} is missing. A model directory needs config.json, tokenizer.json and "
            f"safetensors weights: fetch the whole checkpoint again."
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{path} cannot be read as JSON ({error}). Fetch this file again."
        ) from error
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object. Fetch this file again.")
    return value


def read_optional_json(path: Path) -> dict[str, Any]:
    """As `read_json`, but an absent file reads as an empty object."""
    return read_json(path) if path.exists() else {}
