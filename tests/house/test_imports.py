"""What may be imported where: no module-level torch, no bare folder names, no cycle of layers."""

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("mkport", "kernels", "recipes", "engine")
TORCH_IS_FINE_IN = ("mkport/testing/", "mkport/testing.py")


def _sources(*folders: str) -> Iterator[Path]:
    """The Python files of the top-level `folders`, each once (the symlinks are not followed)."""
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(part.is_symlink() for part in path.parents if part != ROOT):
                yield path


def _imported(path: Path, module_level: bool) -> set[str]:
    """The dotted names that `path` imports: all of them, or only those that its import runs."""
    names: set[str] = set()

    def visit(node: ast.AST) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                names.update(alias.name for alias in child.names)
            elif isinstance(child, ast.ImportFrom) and child.module and not child.level:
                names.update({child.module, *(f"{child.module}.{a.name}" for a in child.names)})
            elif module_level and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            elif (
                module_level
                and isinstance(child, ast.If)
                and ("TYPE_CHECKING" in ast.dump(child.test) or "__main__" in ast.dump(child.test))
            ):
                continue
            else:
                visit(child)

    visit(ast.parse(path.read_text(), str(path)))
    return names


def _top(names: set[str]) -> set[str]:
    return {name.split(".")[0] for name in names}


def test_torch_is_imported_by_oracles_and_the_testing_library_only() -> None:
    guilty = []
    for path in _sources("mkport", "kernels", "engine"):
        relative = path.relative_to(ROOT).as_posix()
        if relative.startswith(TORCH_IS_FINE_IN) or path.name == "oracle.py":
            continue
        if _top(_imported(path, module_level=True)) & {"torch", "transformers"}:
            guilty.append(relative)
    assert not guilty, f"torch or transformers at module level in {guilty}"


def test_the_folders_are_imported_through_mkport() -> None:
    guilty = [
        path.relative_to(ROOT).as_posix()
        for path in _sources(*PACKAGES, "tests")
        if _top(_imported(path, module_level=False)) & {"kernels", "engine", "recipes"}
    ]
    assert not guilty, f"write mkport.kernels, mkport.engine, mkport.recipes in {guilty}"


def test_the_library_does_not_import_the_engine_outside_its_command_line() -> None:
    guilty = [
        path.relative_to(ROOT).as_posix()
        for path in _sources("mkport", "kernels")
        if not path.is_relative_to(ROOT / "mkport/cli")
        and any(name.startswith("mkport.engine") for name in _imported(path, module_level=False))
    ]
    assert not guilty, f"mkport.engine is imported by {guilty}"


# What each file of an op may import of mkport; files not named here, nothing at all.
ALLOWED = {
    "op.py": ("mkport.declare", "mkport.kernels"),
    "oracle.py": ("mkport.declare", "mkport.kernels"),
    "task.py": tuple(
        f"mkport.machines.cpu.{name}"
        for name in ("vector", "dot", "many", "lanes", "norm", "draw", "pairs")
    ),
}


def test_kernels_import_only_the_declarations_and_the_primitives() -> None:
    guilty = {
        path.relative_to(ROOT).as_posix(): sorted(strange)
        for path in _sources("kernels")
        if (
            strange := {
                name
                for name in _imported(path, module_level=True)
                if name.startswith("mkport.") and not name.startswith(ALLOWED.get(path.name, ()))
            }
        )
    }
    assert not guilty


@pytest.mark.parametrize("package", PACKAGES[1:])
def test_the_links_are_relative_and_point_at_the_folders(package: str) -> None:
    link = ROOT / "mkport" / package
    assert link.is_symlink()
    assert link.readlink() == Path("..") / package
    command = ["git", "ls-files", "--error-unmatch", f"{package}/__init__.py"]
    subprocess.run(command, cwd=ROOT, check=True)  # a clone has the folder, so the link resolves
    assert importlib.import_module(f"mkport.{package}").__doc__


def test_transformers_works_from_the_repository_root() -> None:
    code = (
        "import sys; sys.path.insert(0, '')\n"
        "from transformers import LlamaConfig, LlamaForCausalLM\n"
        "config = LlamaConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1,\n"
        "                     num_attention_heads=1, num_key_value_heads=1, vocab_size=8)\n"
        "print(type(LlamaForCausalLM(config)).__name__)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "LlamaForCausalLM"


def test_the_command_line_starts_without_a_heavy_import() -> None:
    code = (
        "import sys, mkport.cli.main\n"
        "heavy = {'numba', 'numpy', 'torch', 'transformers', 'tokenizers', 'cupy', 'rich.table'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr
