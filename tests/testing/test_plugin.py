"""The fixture `check_op` from another repository: an op of one's own, in a folder of one's own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

FILES = {
    "op.py": '''
        """Doubles rows."""
        from pathlib import Path
        from mkport.declare import Op, integer, read, tensor, write

        def access(a, tile):
            yield read("x", (tile, tile + 1), (0, a.k))
            yield write("y", (tile, tile + 1), (0, a.k))

        OP = Op(
            name="double",
            doc="y = 2 x",
            args=(
                tensor("x", "f32", "[rows, k] input"),
                tensor("y", "f32", "[rows, k] output"),
                integer("k", "columns, a multiple of 16"),
            ),
            tiles=lambda a: a.y.shape[0],
            access=access,
            order="none",
            folder=Path(__file__).parent,
        )
    ''',
    "oracle.py": '''
        """What it must compute."""
        import numpy as np
        from mkport.declare.case import Case

        SHAPES = {"small": {"rows": 5, "k": 48}}

        def oracle(t):
            return {"y": t.x * 2}

        def make(rng, weights, cache, rows, k):
            x = rng.standard_normal((rows, k), np.float32)
            return Case({"x": x, "y": np.full_like(x, np.nan)}, {"k": k}, ("y",))

        def call_standalone(kernel, a):
            kernel(a.x, a.y)
    ''',
    "standalone.py": '''
        """An ordinary kernel."""
        def double(x, y):
            y[:] = x + x
    ''',
    "task.py": '''
        """The port."""
        from mkport.machines.cpu.vector import add, body, load_f32, store_f32

        @body
        def double(a, tile, arena):
            for i in range(tile * a.k, (tile + 1) * a.k, 16):
                x = load_f32(a.x, i)
                store_f32(a.y, i, add(x, x))
    ''',
    "test_double.py": """
        import pytest
        from op import OP

        def test_double(check_op):
            check_op(OP)

        def test_one_form_and_shape(check_op):
            check_op(OP, form="solo", workers=3, shapes={"long": {"rows": 9, "k": 160}})
    """,
}


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join([str(ROOT), str(folder)])
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "mkport.testing.plugin", str(folder)],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": python_path, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
    )


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).write_text(textwrap.dedent(text))
    return tmp_path


def test_an_op_of_another_repository_is_checked(repository: Path) -> None:
    done = run(repository)
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_wrong_port_fails_with_the_error_and_its_bound(repository: Path) -> None:
    task = repository / "task.py"
    task.write_text(task.read_text().replace("add(x, x)", "x"))
    done = run(repository)
    assert "2 failed" in done.stdout
    assert "double ported on 'small' (bf16): error" in done.stdout


def test_the_fixture_is_registered_with_the_distribution() -> None:
    text = (ROOT / "pyproject.toml").read_text()
    assert '[project.entry-points.pytest11]\nmkport = "mkport.testing.plugin"' in text
