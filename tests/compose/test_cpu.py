"""The composed CPU file: whole, readable from top to bottom, and byte-identical to its sources."""

import ast
from pathlib import Path

import pytest

import mkport.machines.cpu as cpu
from mkport.compose import compose_cpu
from mkport.declare import Op
from mkport.declare.op import integer
from mkport.errors import UserError
from mkport.library import all_ops

OPS = [op for op in all_ops().values() if (op.folder / "task.py").is_file()]


@pytest.fixture(scope="module")
def source() -> str:
    return compose_cpu(OPS, "bf16", "bf16", "A title").source


def definitions(path: Path) -> list[str]:
    """The text of every function of a file, decorators included."""
    text = path.read_text()
    lines = text.splitlines(keepends=True)
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            found.append("".join(lines[first - 1 : node.end_lineno]))
    return found


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_every_body_is_byte_identical_to_its_task(op: Op, source: str) -> None:
    bodies = definitions(op.folder / "task.py")
    assert bodies
    assert all(body in source for body in bodies)


@pytest.mark.parametrize("name", ["vector", "dot", "sync", "worker"])
def test_every_primitive_is_byte_identical_to_its_file(name: str, source: str) -> None:
    folder = Path(cpu.__file__).parent
    assert all(text in source for text in definitions(folder / f"{name}.py"))


def test_it_is_one_file_that_imports_no_mkport(source: str) -> None:
    modules = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name.split(".")[0] for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            modules.add((node.module or "").split(".")[0])
    assert modules == {"math", "sys", "collections", "numpy", "llvmlite", "numba"}


def test_no_function_is_defined_twice(source: str) -> None:
    names = [
        n.name for n in ast.parse(source).body if isinstance(n, ast.FunctionDef | ast.ClassDef)
    ]
    assert len(set(names)) == len(names)


def test_it_opens_with_its_contents(source: str) -> None:
    head = source.split('"""')[1]
    assert head.startswith("A title.")
    titles = [line for line in source.splitlines() if line.startswith("# ======== ")]
    sections = [line.removeprefix("# ======== ").removesuffix(" ========") for line in titles]
    assert [f"  {n}. {name}" for n, name in enumerate(sections, 1)] == [
        line for line in head.splitlines() if line.startswith("  ")
    ]


@pytest.mark.parametrize(("weights", "cache"), [("f32", "bf16"), ("bf16", "f32")])
def test_storage_types_are_the_program_s_own(weights: str, cache: str) -> None:
    text = compose_cpu(OPS[:1], weights, cache).source
    assert f"load_weight = load_{weights}" in text
    assert f"load_{cache}" in text.split("load_kv", 1)[1].splitlines()[0]


def test_an_unknown_storage_type_is_refused() -> None:
    with pytest.raises(UserError, match="weights type 'fp8' is unknown"):
        compose_cpu(OPS, "fp8", "bf16")


def test_an_op_without_a_task_is_refused_by_name(tmp_path: Path) -> None:
    op = Op("mine", "nothing", (), lambda a: 0, lambda a, tile: (), "none", tmp_path)
    with pytest.raises(UserError, match="Op mine has no CPU task: .*task.py is missing"):
        compose_cpu([op], "f32", "f32")


BODY = "@body\ndef {name}(a, tile, arena):\n    pass\n"


def task_of(folder: Path, name: str, text: str = "") -> Op:
    """An op whose task holds `text` before its body."""
    (folder / name).mkdir()
    head = "from mkport.machines.cpu.vector import body, mul\n\n\n"
    (folder / name / "task.py").write_text(head + text + BODY.format(name=name))
    args = (integer("n", "nothing"),)
    return Op(name, "nothing", args, lambda a: 0, lambda a, tile: (), "none", folder / name)


@pytest.mark.parametrize(
    "text", ["LIMIT = 3\n", "LIMIT: int = 3\n", "@body\ndef LIMIT(x):\n    return x\n"]
)
def test_a_name_of_two_tasks_is_refused_with_both_files(tmp_path: Path, text: str) -> None:
    ops = [task_of(tmp_path, "one", "LIMIT = 2\n"), task_of(tmp_path, "two", text)]
    with pytest.raises(UserError, match="two/task.py defines 'LIMIT', which .*one/task.py"):
        compose_cpu(ops, "f32", "f32")


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("mul", "Vector primitives"),
        ("wait_for", "The worker"),
        ("run_tiles", "Dispatch"),
        ("RECORD_WORDS", "The record"),
        ("cgutils", "the file's head"),
        ("range", "Python itself"),
    ],
)
def test_a_name_of_the_file_s_own_is_refused(tmp_path: Path, name: str, owner: str) -> None:
    op = task_of(tmp_path, "one", f"{name} = 2\n")
    with pytest.raises(UserError, match=f"one/task.py defines '{name}', which {owner}"):
        compose_cpu([op], "f32", "f32")


def test_a_task_may_take_the_tiles_of_a_run_together(tmp_path: Path) -> None:
    whole = "@body\ndef two_tiles(a, first, stride, count, arena):\n    pass\n\n\n"
    ops = [task_of(tmp_path, "one"), task_of(tmp_path, "two", whole)]
    dispatch = compose_cpu(ops, "f32", "f32").source.split("def run_one(")[1]
    assert "        one(a, first + i * stride, arena)\n" in dispatch
    assert "    two_tiles(a, first, stride, get_i32(record, RUN + 2), arena)\n" in dispatch
    assert "  two(a," not in dispatch


def test_names_inside_functions_are_free(tmp_path: Path) -> None:
    text = "@body\ndef {}_part(x):\n    LIMIT = mul(x, x)\n    return LIMIT\n\n\n"
    ops = [task_of(tmp_path, name, text.format(name)) for name in ("one", "two")]
    assert "two_part" in compose_cpu(ops, "f32", "f32").source


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("from mkport.machines.cpu.vector import mul as times", "renames 'mul'"),
        ("from mkport.machines.cpu.vector import *", "lacks"),
        ("from mkport.machines.cpu.sync import now_ns", "lacks"),
        ("from math import exp", "lacks"),
        ("import numpy", "lacks"),
        ("import os", "lacks"),
        ("from . import helpers", "lacks"),
    ],
)
def test_an_import_that_the_file_lacks_is_refused(tmp_path: Path, line: str, named: str) -> None:
    op = task_of(tmp_path, "one", f"{line}\n")
    with pytest.raises(UserError, match=f"one/task.py:4: .*{named}"):
        compose_cpu([op], "f32", "f32")
